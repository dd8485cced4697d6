"""PushConsumer: a listener is called with the messages of the topics that are subscribed to.

What users see; `push_member` does the work.
"""

from __future__ import annotations

from rmq_spark.client.consumer.group_consumer import GroupConsumer, of_member
from rmq_spark.client.consumer.listeners import (
    MessageListenerConcurrently,
    MessageListenerOrderly,
)
from rmq_spark.client.consumer.push_member import PushMember
from rmq_spark.client.consumer.service_state import ConsumerInstance
from rmq_spark.client.consumer.settings import PushSettings


class PushConsumer(GroupConsumer):
    """A member of a consumer group that calls a listener with the messages it receives.

    The kind of listener decides the kind of consumer. ``listener`` is called by as many
    threads as the setting ``consume_thread_max`` says, in no order; what fails comes again later,
    and after 16 times is a dead letter.
    ``orderly_listener`` gets each queue's messages one after the other; what fails is tried again
    in place. A listener succeeds if it returns None, or the SUCCESS of its kind; anything else it
    returns or raises is a failure. Messages are delivered at least once. Methods may be called from
    any thread.

    Example:
        def listen(messages, context):
            for message in messages:
                print(message.keys, message.body)

        with PushConsumer("shipping", "localhost:9876", listener=listen) as consumer:
            consumer.subscribe("orders")
            input("Enter ends it")

    Args:
        group: Name of the consumer group.
        instance: A shared `ClientInstance`, or addresses of name servers
            (``"host:port;host:port"``) for an instance of its own; None takes them from the
            environment variable NAMESRV_ADDR.
        listener: Function of ``(messages, context)``, with a `ConsumeConcurrentlyContext`.
        orderly_listener: Function of ``(messages, context)``, with a `ConsumeOrderlyContext`.
        settings: Settings of the consumer; `PushSettings()` by default.

    Raises:
        MessageRejected: The group is not a valid name, or a setting is out of range.
        TypeError: There is not exactly one listener, or an argument has the wrong type.
    """

    _member: PushMember

    def __init__(
        self,
        group: str,
        instance: ConsumerInstance | str | None = None,
        *,
        listener: MessageListenerConcurrently | None = None,
        orderly_listener: MessageListenerOrderly | None = None,
        settings: PushSettings | None = None,
    ) -> None:
        super().__init__(
            PushMember(
                group,
                instance,
                listener=listener,
                orderly_listener=orderly_listener,
                settings=settings,
            )
        )

    suspend = of_member(PushMember.suspend)
    resume = of_member(PushMember.resume)
    assignment = of_member(PushMember.assignment)

    @property
    def is_paused(self) -> bool:
        """True while pulling is suspended."""
        return self._member.is_paused

    @property
    def cached_bytes(self) -> int:
        """Number of bytes in the bodies of all messages that were pulled and not yet consumed."""
        return self._member.cached_bytes
