"""PushConsumer: calls a listener with the messages of the subscribed topics.

This is the public class; `push_consumer_impl` implements it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, ParamSpec, TypeVar

from rmq_spark.client.arguments import check_keywords, explain_keywords
from rmq_spark.client.concurrency.lifecycle import StartsInBlock
from rmq_spark.client.consumer.base_consumer_impl import BaseConsumerImpl
from rmq_spark.client.consumer.dispatch.listeners import (
    MessageListenerConcurrently,
    MessageListenerOrderly,
)
from rmq_spark.client.consumer.group_lifecycle import ServiceState
from rmq_spark.client.consumer.push_consumer_impl import PushConsumerImpl
from rmq_spark.client.consumer.settings import PushSettings
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.times import Start

_Arguments = ParamSpec("_Arguments")
_Member = TypeVar("_Member", bound=BaseConsumerImpl)
_Result = TypeVar("_Result")


def delegate(
    method: Callable[Concatenate[_Member, _Arguments], _Result],
) -> Callable[Concatenate[Any, _Arguments], _Result]:
    """Return a consumer method that calls the same method of its member; they share a docstring.

    The member's own override is called, which may do more than the base class.
    """
    name = method.__name__

    @functools.wraps(method)
    def call(
        self: GroupConsumer, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        try:
            found: _Result = getattr(self._impl, name)(*args, **kwargs)
        except TypeError:
            check_keywords(f"{type(self).__name__}.{name}()", method, kwargs)
            raise
        return found

    return call


class GroupConsumer(StartsInBlock):
    """A member of a consumer group: the base class of both kinds of consumers.

    Methods may be called from any thread. A ``with`` statement starts and closes a consumer.
    """

    def __init__(self, impl: BaseConsumerImpl) -> None:
        self._impl = impl

    @property
    def group(self) -> str:
        """The name of the consumer group."""
        return self._impl.namespace.strip(self._impl.group)

    @property
    def service_state(self) -> ServiceState:
        """The state that this consumer is in: created, starting, running, shut down."""
        return self._impl.service_state

    @property
    def is_running(self) -> bool:
        """True if the consumer was started in this process, and it and its instance still run."""
        return self._impl.is_running

    @property
    def topics(self) -> frozenset[str]:
        """The subscribed topics."""
        return frozenset(map(self._impl.namespace.strip, self._impl.topics))

    @property
    def cached_bytes(self) -> int:
        """Number of bytes in the bodies of all messages that were pulled and not yet consumed."""
        return self._impl.cached_bytes

    start = delegate(BaseConsumerImpl.start)
    subscribe = delegate(BaseConsumerImpl.subscribe)
    unsubscribe = delegate(BaseConsumerImpl.unsubscribe)
    health = delegate(BaseConsumerImpl.health)
    assignment = delegate(BaseConsumerImpl.assignment)

    def close(self) -> None:
        """Store the offsets and leave the group, within two seconds, whatever is running.

        If an orderly listener is still busy with a queue, no other consumer gets the queue before
        it has finished. A `start` that is running, perhaps in the very thread that a signal has
        interrupted, gives up and raises `ClientShutDown`. Calling it again has no effect.
        """
        self._impl.shutdown()

    def shutdown(self) -> None:
        """Leave the group: RocketMQ's name of `close`."""
        self.close()


class PushConsumer(GroupConsumer):
    """A member of a consumer group that calls a listener with the messages it receives.

    A consumer has one of two kinds of listeners. ``listener`` is called by up to
    ``consume_thread_max`` threads, in no order; messages that fail are redelivered later, and
    become dead letters after 16 times. ``orderly_listener`` gets each queue's messages one after
    the other; a message that fails is retried in place. A listener succeeds if it returns None, or
    the SUCCESS of its kind; anything else it returns or raises is a failure. Messages are delivered
    at least once.
    Methods may be called from any thread. They raise `ClientShutDown` if the consumer has ended, or
    is the parent process's.

    Example:
        def listen(messages, context):
            for message in messages:
                print(message.keys, message.body)

        with PushConsumer("shipping", "localhost:9876", listener=listen) as consumer:
            consumer.subscribe("orders")
            input("Enter ends it")

    Args:
        group: Name of the consumer group.
        namesrv: Addresses of the name servers, as ``"host:port;host:port"`` or an iterable of
            ``"host:port"``. Defaults to the environment variable NAMESRV_ADDR.
        listener: Function of ``(messages, context)``, with a `ConsumeConcurrentlyContext`.
        orderly_listener: Function of ``(messages, context)``, with a `ConsumeOrderlyContext`.
        settings: Settings of the consumer; `PushSettings()` by default.
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
        TypeError: There is not exactly one listener, or an argument has the wrong type.
    """

    _impl: PushConsumerImpl

    @explain_keywords
    def __init__(
        self,
        group: str,
        namesrv: str | Iterable[str] | None = None,
        *,
        instance: ClientInstance | None = None,
        listener: MessageListenerConcurrently | None = None,
        orderly_listener: MessageListenerOrderly | None = None,
        settings: PushSettings | None = None,
        start: Start | None = None,
        namespace: str | None = None,
    ) -> None:
        super().__init__(
            PushConsumerImpl(
                group,
                namesrv,
                instance=instance,
                listener=listener,
                orderly_listener=orderly_listener,
                settings=settings,
                start=start,
                namespace=namespace,
            )
        )

    suspend = delegate(PushConsumerImpl.suspend)
    resume = delegate(PushConsumerImpl.resume)

    @property
    def is_paused(self) -> bool:
        """True while pulling is suspended."""
        return self._impl.is_paused
