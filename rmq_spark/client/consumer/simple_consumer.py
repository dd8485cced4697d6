"""SimpleConsumer: pops messages, which stay invisible to the group until they are acknowledged.

The brokers give each message to one member, whatever the number of queues; the consumer has no
queues, no offsets and no thread of its own. It needs RocketMQ 5, or rocketpoll's broker.

    receive ─> POP_MESSAGE to one broker after the other ─> messages with receipts
    ack ─> ACK_MESSAGE, or BATCH_ACK_MESSAGE for several
    neither in time ─> the broker redelivers, and after retryMaxTimes stores a dead letter
    close ─> leave the group ─> give back what pops that are still pending bring

A pending pop belongs to its `receive` until the consumer closes. From then on, and after a Ctrl-C
in the wait, nobody would get its messages: they are made visible again at once, so that another
member need not wait until their invisible time is over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from rmq_spark.client.arguments import (
    check_flag,
    check_group,
    check_kind,
    check_range,
    check_time_ms,
    check_topic,
    explain_all_keywords,
    wrong_kind,
)
from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.concurrency.lifecycle import StartsInBlock, run_steps
from rmq_spark.client.concurrency.threads import SIGNAL_CHECK_SECONDS, start_thread
from rmq_spark.client.consumer.group_lifecycle import GroupLifecycle
from rmq_spark.client.errors import (
    ClientError,
    ClientShutDown,
    MessageRejected,
    ThreadNotStarted,
)
from rmq_spark.client.instance.instance import ClientInstance, require_topics
from rmq_spark.client.message import MessageExt, to_message
from rmq_spark.client.subscriptions import (
    ALL,
    MessageSelector,
)
from rmq_spark.client.times import EARLIEST, LATEST
from rmq_spark.errors import HeaderError, RocketPollError, excerpt
from rmq_spark.wire.bodies.clients import ConsumerData, ConsumeType, SubscriptionData
from rmq_spark.wire.bodies.pop import BatchAck, BatchAckMessageRequestBody
from rmq_spark.wire.headers.members import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    PopMessageRequestHeader,
)
from rmq_spark.wire.message.record import StoredMessage
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.pop import (
    ANY_QUEUE,
    POP_CK,
    POP_MESSAGES_MAX,
    PopReceipt,
    decode_offsets,
    encode_bits,
    real_topic,
    retry_mark,
)

if TYPE_CHECKING:
    from rmq_spark.client.results import PopResult
    from rmq_spark.client.transport.pending_requests import ResponseFuture
    from rmq_spark.wire.bodies.operators import ConsumeMessageDirectlyResult, ConsumerRunningInfo

_log: Final = logging.getLogger(__name__)

_FROM_FIRST, _FROM_LAST = 0, 1
_TURN_MS: Final = 1_000
"""Milliseconds for which one of several brokers may hold a pop before the next is asked."""
INVISIBLE_MS: Final = 60_000
INVISIBLE_MS_MIN: Final = 1_000
RECEIVE_TIMEOUT_MS: Final = 20_000
GIVE_BACK_MS_MAX: Final = 300
"""Most milliseconds that `close` waits for pending pops, and then for giving back messages."""
_LOOK_AGAIN_SECONDS: Final = 0.005

PopSteps: TypeAlias = Generator[tuple[str, PopMessageRequestHeader], "PopResult", list[MessageExt]]
"""The steps of a `receive`: a generator whose caller does the waiting.

It yields the address and the header of each pop, is sent the result, and returns the messages.
"""


class _PendingPop(NamedTuple):
    response: ResponseFuture[PopResult]
    broker_name: str


def check_pop_start(start: str) -> None:
    """Raise an error for a start other than the two that brokers offer to groups that pop."""
    check_kind("start", start, str, "a string (str)", '"earliest"')
    if start.lower() not in (EARLIEST, LATEST):
        needed = '"earliest" or "latest", because groups that pop cannot begin elsewhere'
        raise MessageRejected("start", needed, start)


class PopMember:
    """The member of the group that answers for a `SimpleConsumer` when brokers ask.

    Brokers divide messages among members that pop, and not queues: there is nothing to rebalance or
    to reset, and the member has no threads.
    """

    def __init__(self, group: str, subscriptions: Callable[[], Iterable[SubscriptionData]]) -> None:
        self._group = group
        self._subscriptions = subscriptions

    def consumer_data(self) -> ConsumerData:
        """Return the description of the consumer that heartbeats carry."""
        return ConsumerData(
            group_name=self._group,
            consume_type=ConsumeType.CONSUME_POP,
            subscription_data_set=tuple(self._subscriptions()),
        )

    def request_rebalance(self) -> None:
        """Do nothing on NOTIFY_CONSUMER_IDS_CHANGED: there is nothing to rebalance."""

    def on_connection_closed(self, address: str) -> None:
        """Do nothing: a pop that has lost its connection to ``address`` raises an error itself."""

    def stop_threads(self) -> None:
        """Do nothing: the member has no threads."""

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Do nothing: brokers have the ``offsets`` of groups that pop a ``topic``."""

    def consume_status(self, topic: str) -> Mapping[MessageQueue, int]:  # noqa: ARG002  # the member's interface
        """Return no queues of a ``topic``, because the member has no offsets."""
        return {}

    def running_info(self) -> ConsumerRunningInfo:
        """Return the consumer's report on itself, for operators."""
        from rmq_spark.wire.bodies.operators import ConsumerRunningInfo  # noqa: PLC0415  # rarely needed

        return ConsumerRunningInfo(
            properties={"PROP_CONSUME_TYPE": ConsumeType.CONSUME_POP.name},
            subscription_set=tuple(self._subscriptions()),
        )

    def consume_directly(
        self, message: MessageExt, broker_name: str
    ) -> ConsumeMessageDirectlyResult:
        """Refuse a ``message`` that an operator has chosen, because there is no listener."""
        raise MessageRejected("consumer", "one with a listener", f"{message} {broker_name}")


@explain_all_keywords
class SimpleConsumer(GroupLifecycle, StartsInBlock):
    """A member of a consumer group that receives messages and acknowledges them one by one.

    More members than queues can share the work, and a slow message delays no other. A message that
    is not acknowledged within its invisible time is delivered again, with ``reconsume_times`` one
    higher. Messages are delivered at least once, in no order. Methods may be called from any
    thread.

    Besides the errors that they list, methods raise `ClientShutDown` if the consumer does not run,
    a `ClientError` if a broker does not answer, or refuses, and TypeError for an argument of the
    wrong type.

    Example:
        consumer = SimpleConsumer("billing", "localhost:9876")
        consumer.subscribe("orders")
        with consumer:
            for message in consumer.receive(16, invisible_ms=30_000):
                print(message.keys, message.body)
                consumer.ack(message)

    Args:
        group: Name of the consumer group.
        namesrv: Addresses of the name servers, as ``"host:port;host:port"`` or an iterable of
            ``"host:port"``. Defaults to the environment variable NAMESRV_ADDR.
        instance: A `ClientInstance` to share with other producers and consumers; ``namesrv`` is
            then ignored. Without it, the consumer has an instance of its own.
        start: Where a new group begins in each queue: ``"earliest"``, at the first message, or
            ``"latest"``, at the last one; but a queue whose messages are all in the broker's
            memory is read from its first one. Groups that pop cannot begin at a time.
        in_order: True to receive the messages of each queue in their order: the next ones come
            when all before them are acknowledged, or are delivered again.
        namespace: Namespace of the names of topics and groups: a topic ``orders`` is ``eu%orders``
            for brokers. A shared instance has its own.

    Raises:
        MessageRejected: The group is not a valid name, or ``start`` has another value.
        TypeError: An argument has the wrong type.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Iterable[str] | None = None,
        *,
        instance: ClientInstance | None = None,
        start: str = LATEST,
        in_order: bool = False,
        namespace: str | None = None,
    ) -> None:
        self.group = check_group(group)
        check_pop_start(start)
        check_flag("in_order", in_order)
        super().__init__(self.group, namesrv, instance, namespace)
        self._init_mode = _FROM_FIRST if start.lower() == EARLIEST else _FROM_LAST
        self._in_order = in_order
        self._namespace = self._instance.namespace
        self._member = PopMember(self._full_group, lambda: self._subscriptions.values())  # noqa: PLW0108  # changes replace the dict
        self._turns = count()
        self._pending_pops: dict[object, _PendingPop] = {}
        """The last pop of each `receive`; the caller that removes a pop gets its messages."""
        self._unfinished: set[object] = set()
        """What `close` waits for: sends of pops, and messages that are to be given back."""
        ForkAware.__init__(self)

    # ---- life cycle

    @property
    def topics(self) -> frozenset[str]:
        """The subscribed topics."""
        return frozenset(map(self._namespace.strip, self._subscriptions))

    def start(self) -> None:
        """Join the group. A consumer can be started only once.

        Raises:
            ClientShutDown: The consumer was started before.
            RouteNotFound: The name servers do not know a topic that is subscribed to.
            ClientError: The brokers cannot be reached, or refuse the subscriptions.
        """
        self._start()

    def _join_group(self) -> None:
        require_topics(self._instance, self._subscriptions)
        self._instance.register_consumer(self._full_group, self._member)
        self._is_registered = True
        self._instance.heartbeat()

    def close(self) -> None:
        """Leave the group, within two seconds; a `receive` that waits raises `ClientShutDown`.

        Messages that were received and not acknowledged are delivered to other members when their
        invisible time is over. Messages that arrive while the consumer closes are delivered again
        within about two seconds.
        """
        self._shut_down()

    def shutdown(self) -> None:
        """Leave the group: RocketMQ's name of `close`."""
        self.close()

    def _leave_group(self) -> None:
        if self._has_joined:
            run_steps(
                self.group,
                lambda: self._instance.unregister_consumer(self._full_group),
                self._give_back_pending,
                self._instance.stop,
            )

    def _after_fork(self) -> None:
        super()._after_fork()
        self._pending_pops, self._unfinished = {}, set()

    # ---- subscriptions

    def subscribe(self, topic: str, selector: MessageSelector | str = ALL) -> None:
        """Receive messages of a topic from now on.

        Args:
            topic: Name of the topic.
            selector: Tags, as ``"red || blue"``, or what `by_sql` returns; by default all messages.

        Raises:
            MessageRejected: The topic's name or the selector is not valid.
            RouteNotFound: The consumer is running, and there is no such topic.
        """
        data = self._new_subscription(topic, selector)
        if self.is_running:
            require_topics(self._instance, (data.topic,))
        self._set_subscription(data)
        if self.is_running:
            self._instance.heartbeat()

    def unsubscribe(self, topic: str) -> None:
        """Receive no more messages of a ``topic``; those received can still be acknowledged.

        Raises:
            MessageRejected: The topic's name is not valid.
        """
        self._remove_subscription(self._namespace.wrap(check_topic(topic)))

    # ---- messages

    def receive(
        self,
        max_messages: int = POP_MESSAGES_MAX,
        *,
        invisible_ms: int = INVISIBLE_MS,
        timeout_ms: int = RECEIVE_TIMEOUT_MS,
    ) -> list[MessageExt]:
        """Return the next messages, or an empty list if none comes in time.

        Args:
            max_messages: The most messages to return, 1 to 32.
            invisible_ms: Milliseconds, at least 1,000, in which they have to be acknowledged.
            timeout_ms: Milliseconds to wait for the first message.

        Raises:
            MessageRejected: A number is out of range, or no topic is subscribed to.
        """
        check_receive(max_messages, invisible_ms, timeout_ms)
        receive = object()
        steps = self._receive_steps(max_messages, invisible_ms, timeout_ms)
        try:
            address, header = next(steps)
            while True:
                response = self._send_pop(receive, address, header)
                address, header = steps.send(self._pop_result(receive, response))
        except StopIteration as end:
            found: list[MessageExt] = end.value
            return found

    def _send_pop(
        self, receive: object, address: str, header: PopMessageRequestHeader
    ) -> ResponseFuture[PopResult]:
        """Send the next pop of a `receive`."""
        self._unfinished.add(receive)
        try:
            self._check_running()
            response = self._instance.api.pop_async(address, header)
            self._pending_pops[receive] = _PendingPop(response, header.broker_name or "")
        finally:
            self._unfinished.discard(receive)
        return response

    def _pop_result(self, receive: object, response: ResponseFuture[PopResult]) -> PopResult:
        """Wait for the result of a pop and return it, unless its messages are given back."""
        try:
            while not response.done():
                with suppress(FutureTimeout):
                    response.exception(SIGNAL_CHECK_SECONDS)
                self._check_running()
            self._check_running()
        except BaseException:  # the consumer was closed, or Ctrl-C
            self._give_back_when_done(receive, response)
            raise
        if self._pending_pops.pop(receive, None) is None:
            raise ClientShutDown(f"the consumer {self._state_machine.state.value}")
        return response.result()

    # ---- messages that nobody receives

    def _give_back_pending(self) -> None:
        """Give back what the pending pops bring, because the consumer closes."""
        deadline = time.monotonic() + GIVE_BACK_MS_MAX / 1_000
        found: list[_PendingPop] = []
        while self._pending_pops or self._unfinished:
            for receive, pending in list(self._pending_pops.items()):
                with suppress(FutureTimeout, ClientError):
                    pending.response.exception(max(deadline - time.monotonic(), 0))
                if pending.response.done():
                    found += self._claim_messages(receive)
            if time.monotonic() >= deadline:
                break
            if self._unfinished:
                time.sleep(_LOOK_AGAIN_SECONDS)
        self._give_back_popped(found)
        for receive, pending in list(self._pending_pops.items()):
            self._give_back_when_done(receive, pending.response)

    def _give_back_when_done(self, receive: object, response: ResponseFuture[PopResult]) -> None:
        """Give back the messages of a pop when they come."""
        response.add_done_callback(lambda _: self._give_back_soon(receive))

    def _give_back_soon(self, receive: object) -> None:
        """Give back the messages of a finished pop, in a thread of its own."""
        own = object()
        self._unfinished.add(own)
        found = self._claim_messages(receive)

        def give_back() -> None:
            try:
                self._give_back_popped(found)
            finally:
                self._unfinished.discard(own)

        try:
            if found:
                name = f"rocketpoll gives back {self.group}"
                start_thread(threading.Thread(target=give_back, name=name, daemon=True))
                return
        except ThreadNotStarted as error:
            _log_not_given_back(self.group, error)
        self._unfinished.discard(own)

    def _claim_messages(self, receive: object) -> list[_PendingPop]:
        """Take over a finished pop, unless another caller has it or it brings no messages."""
        pending = self._pending_pops.pop(receive, None)
        if pending is None or pending.response.exception() is not None:
            return []
        return [pending] if pending.response.result().messages else []

    def _give_back_popped(self, popped: Iterable[_PendingPop]) -> None:
        self._give_back(
            message
            for each in popped
            for message in self._popped(each.broker_name, each.response.result())
        )

    def _give_back(self, messages: Iterable[MessageExt]) -> None:
        """Make messages visible again, so that they are redelivered soon."""
        change = self._instance.api.change_invisible_time_async
        try:
            asked = [
                change(*self._change_request(message, _receipt_of(message), 0))
                for message in messages
            ]
            deadline = time.monotonic() + GIVE_BACK_MS_MAX / 1_000
            for changing in asked:
                changing.result(max(deadline - time.monotonic(), 0))
        except (RocketPollError, FutureTimeout) as error:
            _log_not_given_back(self.group, error)

    def _receive_steps(self, max_messages: int, invisible_ms: int, timeout_ms: int) -> PopSteps:
        deadline = time.monotonic() + timeout_ms / 1_000
        hold_ms = 0
        while True:
            self._check_running()
            targets = self._targets()
            for topic, broker_name in targets:
                subscription = self._subscriptions.get(topic)
                if subscription is None:
                    continue  # unsubscribed meanwhile
                left_ms = max(int((deadline - time.monotonic()) * 1_000), 0)
                header = PopMessageRequestHeader(
                    consumer_group=self._full_group,
                    topic=topic,
                    queue_id=ANY_QUEUE,
                    max_msg_nums=max_messages,
                    invisible_time=invisible_ms,
                    poll_time=left_ms if len(targets) == 1 else min(left_ms, hold_ms),
                    born_time=time.time_ns() // 1_000_000,
                    init_mode=self._init_mode,
                    exp_type=subscription.expression_type,
                    exp=subscription.sub_string,
                    order=self._in_order or None,
                    broker_name=broker_name,
                )
                result = yield self._address(topic, broker_name), header
                if result.messages:
                    return self._popped(broker_name, result)
            hold_ms = _TURN_MS
            if time.monotonic() >= deadline:
                return []

    def _popped(self, broker_name: str, result: PopResult) -> list[MessageExt]:
        starts, api = decode_offsets(result.start_offset_info), self._instance.api
        return [
            self._namespace.strip_message(
                replace(
                    to_message(
                        stored, broker_name, max_body_bytes=api.max_body_bytes, with_fault=True
                    ),
                    properties={
                        **stored.properties,
                        POP_CK: _receipt_text(stored, broker_name, result, starts),
                    },
                )
            )
            for stored in result.messages
        ]

    def ack(self, messages: MessageExt | Iterable[MessageExt]) -> None:
        """Acknowledge ``messages``, one or several at once; they are not delivered again.

        When it returns, the brokers have stored the acknowledgements. An acknowledgement that comes
        after the message was redelivered has no effect.

        Raises:
            MessageRejected: A message was not returned by `receive`.
            BrokerRefused: A broker does not know the message.
        """
        self._check_running()
        if isinstance(messages, MessageExt):
            messages = [messages]
        elif not isinstance(messages, Iterable):
            raise wrong_kind("messages", "a message or several", excerpt(messages), "receive()")
        receipts = [(each, _receipt_of(each)) for each in messages]
        by_broker: dict[str, list[tuple[MessageExt, PopReceipt]]] = {}
        for each, receipt in receipts:
            by_broker.setdefault(receipt.broker_name, []).append((each, receipt))
        for broker_name, own in by_broker.items():
            address = self._address(self._namespace.wrap(own[0][0].topic), broker_name)
            if len(own) == 1:
                self._instance.api.ack(address, self._ack_header(*own[0]))
            else:
                acks = self._batch_acks(own)
                body = BatchAckMessageRequestBody(broker_name=broker_name, acks=acks)
                self._instance.api.batch_ack(address, body)

    def change_invisible_duration(self, message: MessageExt, invisible_ms: int) -> MessageExt:
        """Let a message be delivered again in ``invisible_ms`` from now, unless it is acknowledged.

        Return the message with its new receipt: acknowledge that one. 0 redelivers it within about
        two seconds.

        Raises:
            MessageRejected: The message was not returned by `receive`, or the time is below zero.
            BrokerRefused: The broker does not know the message.
        """
        check_range("invisible_ms", invisible_ms, 0)
        self._check_running()
        receipt = _receipt_of(message)
        changed = self._instance.api.change_invisible_time(
            *self._change_request(message, receipt, invisible_ms)
        )
        start = receipt.start_offset if receipt.is_in_order else receipt.queue_offset
        renewed = receipt._replace(
            start_offset=start,
            pop_time=changed.pop_time,
            invisible_time=changed.invisible_time,
            revive_queue_id=changed.revive_qid,
        )
        return replace(message, properties={**message.properties, POP_CK: renewed.encode()})

    def _change_request(
        self, message: MessageExt, receipt: PopReceipt, invisible_ms: int
    ) -> tuple[str, ChangeInvisibleTimeRequestHeader]:
        """Return the broker's address, and the request that changes an invisible time."""
        header = ChangeInvisibleTimeRequestHeader(
            *self._ack_header(message, receipt)[:5],
            invisible_time=invisible_ms,
            broker_name=receipt.broker_name,
        )
        topic = self._namespace.wrap(message.topic)
        return self._address(topic, receipt.broker_name), header

    def _targets(self) -> list[tuple[str, str]]:
        """Return the topics and brokers to ask, starting at another place each time."""
        routes = self._instance.routes
        targets = [
            (topic, broker_name)
            for topic in self._subscriptions
            for broker_name in sorted({each.broker_name for each in routes.subscribe_queues(topic)})
        ]
        if not targets:
            raise MessageRejected("subscriptions", "a topic", "none", "Call subscribe first")
        first = next(self._turns) % len(targets)
        return targets[first:] + targets[:first]

    def _ack_header(self, message: MessageExt, receipt: PopReceipt) -> AckMessageRequestHeader:
        return AckMessageRequestHeader(
            consumer_group=self._full_group,
            topic=real_topic(self._namespace.wrap(message.topic), self._full_group, receipt.retry),
            queue_id=receipt.queue_id,
            extra_info=receipt.encode(),
            offset=receipt.queue_offset,
            broker_name=receipt.broker_name,
        )

    def _batch_acks(self, messages: list[tuple[MessageExt, PopReceipt]]) -> tuple[BatchAck, ...]:
        """Return the acknowledgements of messages, one for all messages of a check point."""
        indexes_by_check_point: dict[tuple[str, PopReceipt], list[int]] = {}
        for message, receipt in messages:
            key = self._namespace.wrap(message.topic), receipt._replace(queue_offset=0)
            indexes_by_check_point.setdefault(key, []).append(
                receipt.queue_offset - receipt.start_offset
            )
        return tuple(
            BatchAck(
                consumer_group=self._full_group,
                topic=topic,
                retry=receipt.retry,
                start_offset=receipt.start_offset,
                queue_id=receipt.queue_id,
                revive_queue_id=receipt.revive_queue_id,
                pop_time=receipt.pop_time,
                invisible_time=receipt.invisible_time,
                bit_set=encode_bits(indexes),
            )
            for (topic, receipt), indexes in indexes_by_check_point.items()
        )

    def _address(self, topic: str, broker_name: str) -> str:
        routes = self._instance.routes
        return routes.refresh_if_missing(topic, lambda: routes.master_address(broker_name))


def check_receive(max_messages: int, invisible_ms: int, timeout_ms: int) -> None:
    """Check the arguments of `SimpleConsumer.receive`."""
    check_range("max_messages", max_messages, 1, POP_MESSAGES_MAX)
    check_range("invisible_ms", invisible_ms, INVISIBLE_MS_MIN)
    check_time_ms("timeout_ms", timeout_ms)


def _log_not_given_back(group: str, error: Exception) -> None:
    _log.info(
        "%s: giving messages back failed, brokers redeliver them after their invisible time: %s",
        group,
        str(error) or type(error).__name__,
    )


def _receipt_of(message: MessageExt) -> PopReceipt:
    check_kind("message", message, MessageExt, "a message", "receive()[0]")
    try:
        return PopReceipt.decode(message.properties.get(POP_CK, ""))
    except HeaderError:
        raise MessageRejected(
            "message", "a message that receive has returned", excerpt(message)
        ) from None


def _receipt_text(
    stored: StoredMessage,
    broker_name: str,
    result: PopResult,
    starts: Mapping[tuple[str, str], str],
) -> str:
    """Return the receipt of a message; a redelivered message has one from its broker."""
    known = stored.properties.get(POP_CK)
    if known is not None:
        return known
    mark = retry_mark(stored.topic)
    start = starts.get((mark, str(stored.queue_id)))
    return PopReceipt(
        stored.queue_offset if start is None else int(start),
        result.pop_time,
        result.invisible_time,
        result.revive_queue_id,
        mark,
        broker_name,
        stored.queue_id,
        stored.queue_offset,
    ).encode()
