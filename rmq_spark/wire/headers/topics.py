"""Topic headers: topics, their statistics, and the broker's own state."""

from typing import NamedTuple

from rmq_spark.wire.headers.codec import Int32, Int64


class CreateTopicRequestHeader(NamedTuple):
    """A topic to create or to change."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


class TopicRequestHeader(NamedTuple):
    """The header of requests that name a topic and nothing else."""

    topic: str


class ViewBrokerStatsDataRequestHeader(NamedTuple):
    """The counter of the broker's statistics that is requested."""

    stats_name: str
    stats_key: str


class GetConsumeStatsInBrokerHeader(NamedTuple):
    """A request for the lag of every group."""

    is_order: bool


class GetAllTopicConfigRequestHeader(NamedTuple):
    """A request for all topics; 5.5 may ask for them in pages."""

    topic_seq: Int32 | None = None
    data_version: str | None = None
    max_topic_num: Int32 | None = None


class GetAllSubscriptionGroupRequestHeader(NamedTuple):
    """A request for all consumer groups; 5.5 may ask for them in pages."""

    group_seq: Int32 | None = None
    data_version: str | None = None
    max_group_num: Int32 | None = None


class GetBrokerConfigResponseHeader(NamedTuple):
    """The data version of the configuration that the body lists."""

    version: str


class QueryDataVersionRequestHeader(NamedTuple):
    """A broker that asks whether its topics are known; the body is its data version."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponseHeader(NamedTuple):
    """The header of the response that says whether the topics have changed."""

    changed: bool
