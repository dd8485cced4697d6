"""Headers of consumer groups and of the clients in them."""

from typing import NamedTuple

from rmq_spark.wire.headers.codec import Int32


class UnregisterClientRequestHeader(NamedTuple):
    """A client leaves a producer group, a consumer group, or both."""

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


UNREGISTER_CLIENT_KEYS = {"client_id": "clientID"}


class ConsumerGroupRequestHeader(NamedTuple):
    """Requests that name a group and nothing else."""

    consumer_group: str


class GetProducerConnectionListRequestHeader(NamedTuple):
    """Who produces under a group name."""

    producer_group: str


class GetConsumerRunningInfoRequestHeader(NamedTuple):
    """What one consumer is doing; the broker passes the question on."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectlyResultRequestHeader(NamedTuple):
    """Have one consumer process one message now, and say how it went."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None


class GetConsumeStatsRequestHeader(NamedTuple):
    """A group's lag, over all its topics, one, or (5.x) several."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class DeleteSubscriptionGroupRequestHeader(NamedTuple):
    """Forget a group, and on request its offsets: 4.9 asks by one name, 5.x by the other."""

    group_name: str
    remove_offset: bool = False
    clean_offset: bool = False


class GetSubscriptionGroupConfigRequestHeader(NamedTuple):
    """One group's configuration."""

    group: str


class QuerySubscriptionByConsumerRequestHeader(NamedTuple):
    """What a group subscribes to in one topic."""

    group: str
    topic: str
