"""Queue checks: which queues a request may name: those of an existing topic, and with messages."""

from __future__ import annotations

from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.codes import ResponseCode

from ..state.tables.topic_config import TopicConfigManager
from ..store.message_store import MessageStore
from .request import RequestRejected


def require_topic(topics: TopicConfigManager, topic: str) -> TopicConfig:
    """Return a topic's configuration.

    Raises:
        RequestRejected: There is no such topic.
    """
    config = topics.get(topic)
    if config is None:
        raise topic_not_exist(topic)
    return config


def topic_not_exist(topic: str) -> RequestRejected:
    """Return the refusal of a request that names a topic which is not there."""
    return RequestRejected(
        ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
    )


def check_queue(store: MessageStore, config: TopicConfig, queue_id: int) -> None:
    """Refuse a queue that a topic does not have; a removed one counts while it has messages.

    Raises:
        RequestRejected: The topic has no such queue.
    """
    queues = max(config.read_queue_nums, config.write_queue_nums)
    if 0 <= queue_id < queues or (
        queue_id >= 0 and store.queue_offsets(config.topic_name, queue_id).next
    ):
        return
    raise RequestRejected(
        ResponseCode.SYSTEM_ERROR,
        f"queueId[{queue_id}] is illegal, topic[{config.topic_name}] has the queues 0 to "
        f"{queues - 1}",
    )
