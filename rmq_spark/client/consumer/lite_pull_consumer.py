"""Consumer: pulls the messages of a group's queues ahead, and returns them from `poll`.

This is the public class; `lite_pull_consumer_impl` implements it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn, TypeAlias

from rmq_spark.client.arguments import explain_keywords
from rmq_spark.client.consumer.lite_pull_consumer_impl import (
    LitePullConsumerImpl,
    MessageQueueListener,
)
from rmq_spark.client.consumer.push_consumer import GroupConsumer, delegate
from rmq_spark.client.consumer.settings import LitePullSettings
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.times import Start


class Consumer(GroupConsumer):
    """A member of a consumer group that returns messages when it is polled.

    `LitePullConsumer`, RocketMQ's name, is the same class.

    Either `subscribe` to topics, and share their queues with the group, or `assign` queues. With
    ``auto_commit``, calling `poll` again confirms that the messages it returned before were
    processed; messages are delivered at least once. Methods may be called from any thread.

    Besides the errors that they list, methods raise `ClientShutDown` if the consumer does not run,
    `NotAssigned` for a queue that is not this consumer's, another `ClientError` if a broker refuses
    or does not answer, and TypeError for an argument of the wrong type. Methods that may be called
    before `start` raise `ClientShutDown` only if the consumer has ended, or belongs to the parent
    process.

    Example:
        consumer = Consumer("billing", "localhost:9876")
        consumer.subscribe("orders", "paid || refunded")
        with consumer:
            for message in consumer.poll(timeout_ms=5_000):
                print(message.keys, message.body)

    Args:
        group: Name of the consumer group.
        namesrv: Addresses of the name servers, as ``"host:port;host:port"`` or an iterable of
            ``"host:port"``. Defaults to the environment variable NAMESRV_ADDR.
        settings: Settings of the consumer; `LitePullSettings()` by default.
        message_queue_listener: Called with topic, all queues and own queues, when these change. New
            queues are assigned when it is called, and pulled when it has returned: it may `seek`.
            If it raises, the error is logged, and it is called again every second until it returns.
        instance: A `ClientInstance` to share with other producers and consumers; ``namesrv`` is
            then ignored. Without it, the consumer has an instance of its own.
        start: Where a new group starts in each queue: ``"earliest"``, ``"latest"``, ``"-1h"`` (an
            hour ago), or a time: such as ``"2026-01-31T12:00:00Z"``, a datetime with a zone, or
            milliseconds since 1970. It replaces ``consume_from_where`` of the settings; a group
            that has committed offsets continues at these. As in RocketMQ, a queue whose first
            message is still in the broker's memory is read from that message.
        namespace: Namespace of the names of topics and groups: a topic ``orders`` is ``eu%orders``
            for brokers. A shared instance has its own.

    Raises:
        MessageRejected: The group is not a valid name, or a setting is out of range.
        TypeError: An argument has the wrong type.
    """

    _impl: LitePullConsumerImpl

    @explain_keywords
    def __init__(
        self,
        group: str,
        namesrv: str | Iterable[str] | None = None,
        settings: LitePullSettings | None = None,
        message_queue_listener: MessageQueueListener | None = None,
        *,
        instance: ClientInstance | None = None,
        start: Start | None = None,
        namespace: str | None = None,
    ) -> None:
        super().__init__(
            LitePullConsumerImpl(
                *(group, namesrv, settings, message_queue_listener),
                instance=instance,
                start=start,
                namespace=namespace,
            )
        )

    assign = delegate(LitePullConsumerImpl.assign)
    fetch_message_queues = delegate(LitePullConsumerImpl.fetch_message_queues)
    register_topic_message_queue_change_listener = delegate(
        LitePullConsumerImpl.register_topic_message_queue_change_listener
    )
    pause = delegate(LitePullConsumerImpl.pause)
    resume = delegate(LitePullConsumerImpl.resume)

    poll = delegate(LitePullConsumerImpl.poll)

    def __iter__(self) -> NoReturn:
        """Refuse to be iterated over: `poll` returns messages.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "a Consumer is not iterable: write for message in consumer.poll(timeout_ms=5_000), in "
            "a loop"
        )

    @property
    def cached_messages(self) -> int:
        """Number of messages that `poll` may return without a pull."""
        return self._impl.cached_messages

    commit = delegate(LitePullConsumerImpl.commit)
    committed = delegate(LitePullConsumerImpl.committed)
    seek = delegate(LitePullConsumerImpl.seek)
    seek_to_begin = delegate(LitePullConsumerImpl.seek_to_begin)
    seek_to_end = delegate(LitePullConsumerImpl.seek_to_end)
    seek_to_time = delegate(LitePullConsumerImpl.seek_to_time)
    offset_for_timestamp = delegate(LitePullConsumerImpl.offset_for_timestamp)


LitePullConsumer: TypeAlias = Consumer
"""RocketMQ's name of `Consumer`."""
