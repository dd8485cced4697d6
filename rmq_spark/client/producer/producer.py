"""Producer: sends messages, in each of RocketMQ's ways.

    send            waits for the response; up to three tries, each at another broker if possible
    send_async      returns a future; up to three tries as well, but only if a connection fails
    send_one_way    no response
    send_batch      several messages of one topic in as few requests as brokers accept
    request         waits for the reply of a consumer; `reply` sends one
    send_table      an Arrow table or a DataFrame, at bulk speed (`arrow_sender`)

A send is retried if it may succeed at another broker or later (`sync_sender`). It is not retried if
it would fail everywhere, or would add load to a busy broker. A message with a sharding key or a
given queue is tried once: elsewhere it would be out of order. A broker that cannot be reached is
skipped while others can be.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from rmq_spark.client import observer
from rmq_spark.client.arguments import (
    check_flag,
    check_group,
    check_kind,
    check_range,
    check_send_topic,
    check_time_ms,
    check_topic,
    explain_all_keywords,
)
from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.concurrency.lifecycle import SafeStop, StartsInBlock
from rmq_spark.client.errors import ClientShutDown, MessageRejected, TooManyPending
from rmq_spark.client.instance.instance import SHUTDOWN_MS, ClientInstance, RegisteredProducer
from rmq_spark.client.instance.request_futures import ReplyPromise, RequestFuture
from rmq_spark.client.message import CorrelatedMessage, Message, MessageExt
from rmq_spark.client.namespace import Namespace
from rmq_spark.client.producer.async_sender import AsyncSender, SendPermits
from rmq_spark.client.producer.prepared_message import (
    PreparedMessage,
    SendRules,
    check_bulk_settings,
    check_member,
)
from rmq_spark.client.producer.sync_sender import SyncSender
from rmq_spark.client.producer.topic_sender import Selector, TopicSender
from rmq_spark.client.producer.trace_dispatcher import TraceDispatcher, check_trace
from rmq_spark.client.results import ProducerHealth, SendResult
from rmq_spark.client.serializers import Serializer, resolve_serializer
from rmq_spark.wire.headers.members import RecallMessageRequestHeader
from rmq_spark.wire.message.message_id import decode_recall_handle
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import TRACE_TOPIC

if TYPE_CHECKING:
    from rmq_spark.client.producer.arrow_sender import BulkResult

SEND_TIMEOUT_MS: Final = 3_000
RETRIES: Final = 2
PENDING_MAX: Final = 10_000
PENDING_BYTES_MAX: Final = 64 * 1024 * 1024


@explain_all_keywords
class Producer(ForkAware, StartsInBlock):
    """Sends messages under the name of a producer group.

    Call `start` before the first send and `close` after the last, or use the producer in a
    ``with`` statement. All methods may be called from any thread. In a forked child process, a
    producer that was running starts again when it is first used.

    Example:
        with Producer("shop", "localhost:9876") as producer:
            result = producer.send(Message("orders", b"one", key="order-42"))
            print(result.queue, result.queue_offset)

    Args:
        group: Name of the producer group.
        namesrv: Addresses of the name servers, as ``"host:port;host:port"`` or an iterable of
            ``"host:port"``. Defaults to the environment variable NAMESRV_ADDR.
        instance: A `ClientInstance` to share with other producers and consumers; ``namesrv``
            is then ignored. Without it, the producer has an instance of its own.
        namespace: Namespace of the names of topics and groups: a topic ``orders`` is ``eu%orders``
            for brokers. A shared instance has its own.
        rules: Settings of the messages: size limit, compression, queues of new topics.
        send_timeout_ms: Milliseconds that one send may take, with all its tries; 3,000 by default.
        retries: Further tries of a send after the first one failed; 2 by default. RocketMQ's
            retryTimesWhenSendFailed and retryTimesWhenSendAsyncFailed.
        retry_another_broker_when_not_store_ok: Whether `send` tries another broker if the message
            was stored, but with a status other than ``SendStatus.SEND_OK``.
        send_latency_fault_enable: Whether brokers that answer slowly are avoided for a while.
        pending_max: Number of sends of `send_async` that may wait for their responses at once;
            10,000 by default.
        pending_bytes_max: Most bytes of the bodies of these sends together; 64 MiB by default.
        serializer: Serializer of bodies that are not bytes: ``"json"``, ``"msgpack"``, ``"text"``,
            `avro`, or an object with ``dumps`` and ``loads``. Without one, bodies must be bytes.
        member: Answers the requests that brokers make of producers (transaction checks).
        enable_trace: Whether the sends of single messages and batches are recorded in the topic of
            traces, in the background, for ``rocketpoll message``, the console and RocketMQ's
            tools.
        trace_topic: The topic of traces; RocketMQ's, RMQ_SYS_TRACE_TOPIC, by default.

    Raises:
        MessageRejected: The group is not a valid name, or a number is out of range.
        TypeError: An argument has the wrong type.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Iterable[str] | None = None,
        *,
        instance: ClientInstance | None = None,
        namespace: str | None = None,
        rules: SendRules | None = None,
        send_timeout_ms: int = SEND_TIMEOUT_MS,
        retries: int = RETRIES,
        retry_another_broker_when_not_store_ok: bool = False,
        send_latency_fault_enable: bool = False,
        pending_max: int = PENDING_MAX,
        pending_bytes_max: int = PENDING_BYTES_MAX,
        serializer: str | Serializer | None = None,
        member: RegisteredProducer | None = None,
        enable_trace: bool = False,
        trace_topic: str = TRACE_TOPIC,
    ) -> None:
        self.group = check_group(group)
        for name, number, least in (
            ("retries", retries, 0),
            ("pending_max", pending_max, 1),
            ("pending_bytes_max", pending_bytes_max, 1),
        ):
            check_range(name, number, least)
        check_flag("retry_another_broker_when_not_store_ok", retry_another_broker_when_not_store_ok)
        check_flag("send_latency_fault_enable", send_latency_fault_enable)
        check_time_ms("send_timeout_ms", send_timeout_ms)
        check_kind(
            "instance",
            instance,
            (ClientInstance, NoneType),
            "a ClientInstance",
            "ClientInstance('localhost:9876')",
        )
        check_kind("rules", rules, (SendRules, NoneType), "SendRules", "SendRules('shop')")
        check_member(member)
        check_trace(enable_trace, trace_topic)
        Namespace.check_unshared(namespace, instance, "instance")
        self.instance = instance or ClientInstance(namesrv, namespace=namespace)
        self._tracer = (
            TraceDispatcher(self.instance, self.group, trace_topic) if enable_trace else None
        )
        self._sender = TopicSender(
            self.instance,
            self._full_rules(rules),
            send_latency_fault_enable=send_latency_fault_enable,
            serializer=resolve_serializer(serializer),
            tracer=self._tracer,
        )
        self.send_timeout_ms = send_timeout_ms
        self._sync_sender = SyncSender(
            self._sender,
            retries=retries,
            is_retried_when_not_ok=retry_another_broker_when_not_store_ok,
        )
        self._async_sender = AsyncSender(
            self._sender,
            retries=retries,
            pending_max=pending_max,
            pending_bytes_max=pending_bytes_max,
        )
        self._pending_max = pending_max
        self._request_permits = SendPermits(pending_max, pending_bytes_max)
        self._member = member
        self._is_running = False
        self._restarts_after_fork = False
        self._state_lock = threading.RLock()
        self._safe_stop = self._new_safe_stop()
        self._current_stop: SafeStop | None = None
        ForkAware.__init__(self)

    def _full_rules(self, rules: SendRules | None) -> SendRules:
        rules = rules or SendRules(self.group)
        namespace = self.instance.namespace
        if not namespace:
            return rules
        return replace(rules, producer_group=namespace.wrap(rules.producer_group))

    # ---- life cycle

    @property
    def is_running(self) -> bool:
        """True if the producer was started in this process, and it and its instance still run."""
        return self._is_running and not self.instance.is_shut_down

    def health(self) -> ProducerHealth:
        """Return the state of this producer right now, from memory, without waiting."""
        pending, connections = self._async_sender.permits, self.instance.connections
        return ProducerHealth(
            is_running=self.is_running,
            pending_sends=pending.count,
            pending_bytes=pending.bytes,
            pending_requests=self.instance.requests.count(self),
            unwritten_bytes=connections.unwritten_bytes,
            dropped_traces=0 if self._tracer is None else self._tracer.dropped_count,
            threads=self._async_sender.thread_count
            + (0 if self._tracer is None else self._tracer.thread_count),
            instance_threads=self.instance.thread_count,
            silent_brokers=connections.silent_addresses,
        )

    def start(self) -> None:
        """Start the producer. Calling it again has no effect.

        Raises:
            MessageRejected: Another producer of the instance has the same group.
            ClientShutDown: The instance was shut down.
        """
        with self._state_lock:
            if self._is_running:
                return
            self.instance.start()
            try:
                self.instance.register_producer(
                    self.instance.namespace.wrap(self.group), self._member
                )
            except BaseException:
                self.instance.stop()
                raise
            self._async_sender.start()
            self._safe_stop = self._new_safe_stop()
            self._restarts_after_fork = False
            self._is_running = True

    def _check_running(self) -> None:
        """Raise `ClientShutDown` unless the producer runs; in a forked child, restart it.

        If only its instance has stopped, the requests themselves raise `ClientShutDown`.
        """
        if self._restarts_after_fork:
            self.start()
        if not self._is_running:
            raise ClientShutDown(
                "the producer is not running. Start it, or use it in a with statement"
            )

    def close(self) -> None:
        """Stop the producer, within two seconds. Calling it again has no effect.

        Later sends raise `ClientShutDown`. Sends that wait for responses fail if the instance stops
        as well, that is, if it has no other user.
        """
        self._restarts_after_fork = False
        if self._is_running:
            # Recorded first, so that a caller interrupted after this can call `close` again.
            self._current_stop = self._safe_stop
            self._is_running = False
        if self._current_stop is not None:
            self._current_stop.run()

    def shutdown(self) -> None:
        """Stop the producer: RocketMQ's name of `close`."""
        self.close()

    def _new_safe_stop(self) -> SafeStop:
        return SafeStop(f"{self.group} ends", self._stop, SHUTDOWN_MS / 1000)

    def _stop(self) -> None:
        self._async_sender.stop()
        self.instance.requests.shut_down(self)
        if self._tracer is not None:
            self._tracer.stop()
        self.instance.unregister_producer(self.instance.namespace.wrap(self.group))
        self.instance.stop()

    def _after_fork(self) -> None:
        self._restarts_after_fork |= self._is_running
        self._is_running = False
        self._current_stop = None
        self._state_lock = threading.RLock()
        self._request_permits = SendPermits(self._pending_max, self._request_permits.bytes_max)
        self._sender.after_fork()
        self._async_sender.after_fork()

    # ---- sending

    def send(
        self,
        message: Message,
        queue: MessageQueue | Selector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message and wait until a broker has stored it.

        A send that fails is tried again at another broker, if there is one, within the remaining
        time: a silent broker may use it up. A message with a given queue or a sharding key is tried
        once only: elsewhere it would be out of order.

        Args:
            message: The message to send.
            queue: The queue to send to, or a function that chooses one of the topic's queues. By
                default, the producer takes the queues in turn, or by the message's sharding key.
            timeout_ms: Milliseconds for all tries together; ``send_timeout_ms`` by default.

        Returns:
            The queue and the offset at which the message is stored.

        Raises:
            ClientShutDown: The producer is not running.
            MessageRejected: No broker would accept the message.
            RouteNotFound: The topic does not exist, and no broker creates it.
            BrokerRefused: A broker refused the message for a reason that makes trying again
                useless.
            SendFailed: All tries failed. The message may have been stored all the same.
            ClientError: The only try of a message with a given queue or a sharding key failed.
        """
        sending = observer.observe_send((message,))
        if sending is None:
            return self._send(message, queue, timeout_ms)
        with sending:
            result = self._send(sending.messages[0], queue, timeout_ms)
            sending.on_results((result,))
        return result

    def _send(
        self, message: Message, queue: MessageQueue | Selector | None, timeout_ms: int | None
    ) -> SendResult:
        prepared = self._prepare(message)
        timeout_ms = self._time(timeout_ms)
        fixed = self._sender.fixed_queue(message, queue)
        if fixed is not None:
            return self._sync_sender.send_once(prepared, fixed, timeout_ms)
        return self._sync_sender.send(prepared, timeout_ms)

    def send_async(
        self,
        message: Message,
        queue: MessageQueue | Selector | None = None,
        timeout_ms: int | None = None,
    ) -> Future[SendResult]:
        """Send a message and return a future of the result, without waiting for the response.

        A send whose connection fails is tried again at another broker, if there is one; one with a
        given queue or a sharding key is tried once only, as it would be out of order elsewhere. The
        future's callbacks run in a thread of this producer. The call itself may wait for room,
        while too many sends are pending; for the topic's route, if it is not known yet; and for the
        connection to a broker, up to the try's share of the time (1 s by default, 3 s with a given
        queue or a sharding key).

        Args:
            message: The message to send.
            queue: The queue to send to, or a function that chooses one of the topic's queues. By
                default, the producer takes the queues in turn, or by the message's sharding key.
            timeout_ms: Milliseconds for all tries together; ``send_timeout_ms`` by default.

        Returns:
            A future that yields the queue and the offset at which the message is stored. It fails
            with `RouteNotFound` if there is no such topic and no broker creates it, with
            `BrokerRefused` if a broker refused the message for good, with `SendFailed` after the
            last try, and with another `ClientError` if only one try was possible: the message may
            have been stored all the same.

        Raises:
            ClientShutDown: The producer is not running.
            MessageRejected: No broker would accept the message, or a number is out of range.
            TypeError: An argument has the wrong type.
            RouteNotFound: A function or a sharding key must choose the queue, and the topic does
                not exist.
            TooManyPending: Too many sends wait for responses, and no room was made within the time.
        """
        sending = observer.observe_send((message,))
        if sending is None:
            return self._send_async(message, queue, timeout_ms)
        with sending:
            future = self._send_async(sending.messages[0], queue, timeout_ms)
            sending.end_with_future(future)
        return future

    def _send_async(
        self, message: Message, queue: MessageQueue | Selector | None, timeout_ms: int | None
    ) -> Future[SendResult]:
        prepared = self._prepare(message)
        timeout_ms = self._time(timeout_ms)
        fixed = self._sender.fixed_queue(message, queue)
        return self._async_sender.send(prepared, fixed, timeout_ms)

    def send_one_way(self, message: Message, queue: MessageQueue | Selector | None = None) -> None:
        """Send a message without a response; whether it was stored remains unknown.

        Args:
            message: The message to send.
            queue: The queue to send to, or a function that chooses one of the topic's queues.

        Raises:
            ClientShutDown: The producer is not running.
            MessageRejected: No broker would accept the message.
            RouteNotFound: The topic does not exist, and no broker creates it.
            ConnectionFailed, BrokerNotFound: The broker of the given queue cannot be reached.
            ConnectionClosed: The connection failed while the message was written.
            SendFailed: No broker that was tried can be reached.
        """
        sending = observer.observe_send((message,))
        if sending is None:
            self._send_one_way(message, queue)
            return
        with sending:
            self._send_one_way(sending.messages[0], queue)

    def _send_one_way(self, message: Message, queue: MessageQueue | Selector | None) -> None:
        prepared = self._prepare(message)
        fixed = self._sender.fixed_queue(message, queue)
        if fixed is not None:
            self._sync_sender.send_one_way_once(prepared, fixed, self.send_timeout_ms)
        else:
            self._sync_sender.send_one_way(prepared, self.send_timeout_ms)

    def recall(self, handle: str | SendResult, timeout_ms: int | None = None) -> str:
        """Recall a message that waits for its time of delivery; return its id.

        The broker does not look up whether there is such a message.

        Args:
            handle: The ``recall_handle`` of the result of the send, or the result.
            timeout_ms: Milliseconds that this may take; ``send_timeout_ms`` by default.

        Raises:
            ClientShutDown: The producer is not running.
            MessageRejected: The result has no handle, or the text is not a handle.
            BrokerRefused: The message is due already, or the broker allows no recall.
            ConnectionFailed, BrokerNotFound: The broker cannot be reached.
        """
        self._check_running()
        timeout_ms = self._time(timeout_ms)
        text = handle.recall_handle if isinstance(handle, SendResult) else handle
        needed = "the recall_handle of a message sent with deliver_at or deliver_after"
        check_kind("handle", text, (str, NoneType), needed, "result.recall_handle")
        try:
            found = decode_recall_handle(text or "")
        except ValueError:
            raise MessageRejected("handle", needed, text) from None
        self._sender.publish_queues(found.topic)
        address = self.instance.routes.master_address(found.broker_name)
        header = RecallMessageRequestHeader(found.topic, text or "", self.group)
        return self.instance.api.recall(address, header, timeout_ms)

    # ---- requests and replies

    def request(
        self,
        message: Message,
        queue: MessageQueue | Selector | None = None,
        timeout_ms: int | None = None,
    ) -> MessageExt:
        """Send a message, and wait for the reply of the consumer that gets it.

        The consumer answers with `reply`, or with ``producer.reply`` of a Java client. The message
        is stored and delivered like any other; if it is delivered twice, the first reply counts.

        Args:
            message: The message to send.
            queue: The queue to send to, or a function that chooses one of the topic's queues. By
                default, the producer takes the queues in turn, or by the message's sharding key.
            timeout_ms: Milliseconds until the reply must arrive, including all tries of the send;
                ``send_timeout_ms`` by default.

        Returns:
            The reply. It was not read from a queue: its ``queue_offset`` is -1.

        Raises:
            ClientShutDown: The producer is not running, or was shut down meanwhile.
            MessageRejected: No broker would accept the message.
            RouteNotFound: The topic does not exist, and no broker creates it.
            TooManyPending: Too many requests wait for their replies, or too many sends for their
                responses, and no room was made within the time.
            BrokerRefused: A broker refused the message for good.
            SendFailed: All tries of the send failed. The message may have been stored all the same.
            ClientError: The only try of a message with a given queue or a sharding key failed.
            ReplyTimeout: No reply arrived in time; the error says whether the message is stored.
            BodyError: The reply is compressed, and cannot be inflated.

        Example:
            reply = producer.request(Message("prices", b"AAPL"), timeout_ms=5_000)
            print(reply.body)
        """
        return self.request_async(message, queue, timeout_ms).result()

    def request_async(
        self,
        message: Message,
        queue: MessageQueue | Selector | None = None,
        timeout_ms: int | None = None,
    ) -> Future[MessageExt]:
        """Send a message, and return a future of the reply, without waiting for it.

        The future's callbacks run in a thread of this producer. The call itself may wait: for the
        topic's route, for a broker that is not connected yet, for up to a second until the brokers
        know this client, and for room, while too many requests or sends are pending.

        Args:
            message: The message to send.
            queue: The queue to send to, or a function that chooses one of the topic's queues.
            timeout_ms: Milliseconds until the reply must arrive; ``send_timeout_ms`` by default.

        Returns:
            A future that yields the reply, or fails with the errors that a blocking request
            raises.

        Raises:
            ClientShutDown: The producer is not running.
            MessageRejected: No broker would accept the message, or a number is out of range.
            TypeError: An argument has the wrong type.
            RouteNotFound: The topic does not exist, and no broker creates it.
            TooManyPending: Too many requests or sends are pending, and no room was made in time.
        """
        self._check_running()
        timeout_ms = self._time(timeout_ms)
        deadline = time.monotonic() + timeout_ms / 1000
        future = self._async_sender.new_reply_future()
        if not self._request_permits.acquire(future, 0, timeout_ms / 1000):
            raise TooManyPending(self._request_permits.count, 0)
        # not in the thread of users' callbacks, which may be busy
        Future.add_done_callback(future, self._request_permits.release)
        try:
            self._ensure_registered(message, timeout_ms)
            left_ms = max(int((deadline - time.monotonic()) * 1000), 1)
            request, waiting = self._begin_request(message, timeout_ms, left_ms, future)
            Future.add_done_callback(future, lambda _: waiting.discard())
            # The send has the whole timeout: if it is late, `ReplyTimeout` is raised first.
            sent = self.send_async(request, queue, timeout_ms)
            Future.add_done_callback(sent, waiting.on_sent)
        except BaseException:
            future.cancel()  # releases the permit
            raise
        return future

    def _ensure_registered(self, message: Message, timeout_ms: int) -> None:
        check_kind("message", message, Message, "a Message", "Message('orders', b'body')")
        self._sender.ensure_registered(check_send_topic(check_topic(message.topic)), timeout_ms)

    def _begin_request(
        self, message: Message, timeout_ms: int, left_ms: int, promise: ReplyPromise
    ) -> tuple[CorrelatedMessage, RequestFuture]:
        waiting = self.instance.requests.register(self, message.topic, timeout_ms, promise, left_ms)
        request = CorrelatedMessage.of_request(
            message, waiting.correlation_id, self.instance.client_id, timeout_ms
        )
        return request, waiting

    def reply(
        self,
        request: MessageExt,
        body: Any,
        properties: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Reply to a request, and wait until its sender has the reply and a broker has stored it.

        ``producer.send(request.reply(body))`` does the same; `send_async` and `send_one_way` accept
        ``request.reply(body)`` as well.

        Args:
            request: The message that a consumer got; its sender waits in `request`.
            body: Payload of the reply, as of a `Message`.
            properties: Properties of the reply, text to text.
            timeout_ms: Milliseconds for all tries together; ``send_timeout_ms`` by default.

        Returns:
            The place at which the reply is stored, in the cluster's topic of replies.

        Raises:
            ClientShutDown: The producer is not running.
            MessageRejected: The message is not a request, or no broker would accept the reply.
            BrokerRefused: The sender of the request is not connected to the broker any more.
            SendFailed: All tries failed. The sender may have the reply all the same.
            ClientError: The only try, at the broker that has the request, failed.
        """
        check_kind("request", request, MessageExt, "the message received", "messages[0]")
        return self.send(request.reply(body, properties), timeout_ms=timeout_ms)

    def send_batch(
        self, messages: Iterable[Message], timeout_ms: int | None = None
    ) -> list[SendResult]:
        """Send messages of one topic together, in as few requests as the brokers' limits allow.

        Args:
            messages: Messages with the same ``topic``, ``sharding_key`` and ``wait_store_ok``,
                without a delay level.
            timeout_ms: Milliseconds for each request; ``send_timeout_ms`` by default.

        Returns:
            One result for each request, in the order of the messages.

        Raises:
            ClientShutDown: The producer is not running.
            TypeError: ``messages`` is not an iterable of messages.
            MessageRejected: No broker would accept one of the messages, or they cannot be sent
                together. None was sent.
            RouteNotFound: The topic does not exist, and no broker creates it.
            PartlySent: A request failed after others had succeeded.
            SendFailed, BrokerRefused: The first request failed.
        """
        self._check_running()
        timeout_ms = self._time(timeout_ms)
        check_kind(
            "messages", messages, Iterable, "several messages", "[Message('orders', b'body')]"
        )
        messages = list(messages)
        sending = observer.observe_send(messages)
        if sending is None:
            return self._sync_sender.send_batch(messages, timeout_ms)
        with sending:
            results = self._sync_sender.send_batch(sending.messages, timeout_ms)
            sending.on_results(results)
        return results

    def send_table(self, table: Any, topic: str | None = None, **settings: Any) -> BulkResult:
        """Send each row of a pyarrow Table or RecordBatch, or of a DataFrame, as a message.

        For example::

            orders = pandas.DataFrame({"body": ["one", "two"], "tags": "paid"})
            producer.send_table(orders, "orders")

        Args:
            table: A table of pyarrow, pandas or polars, with the column ``body`` (binary or text)
                and, optionally, ``topic``, ``keys``, ``tags``, ``properties`` (maps of text to
                text), ``flag`` and ``bornTimestamp``.
            topic: The topic of all rows; by default each row names its own in the column ``topic``.
            settings: ``queue`` keeps all rows in order in one queue, with one request at a time and
                no second try; ``in_flight`` is the number of requests sent at once (4),
                ``chunk_bytes`` the size of each (4 MiB), ``timeout_ms`` the time for each (30,000).

        Returns:
            The number of messages stored, and the spans of queue offsets at which they are.

        Raises:
            ClientShutDown: The producer is not running.
            TypeError: An object is not a table, a column has a wrong type, or a setting is unknown.
            MessageRejected: A column is unknown, a row cannot be a message, or a setting is out of
                range. Rows that were sent before stay sent.
            RouteNotFound: A topic does not exist, and no broker creates it.
            PartlySent: A request failed after others had succeeded.
            SendFailed: The first request failed.
        """
        return self.send_batches([table], topic, **settings)

    def send_batches(
        self, batches: Iterable[Any], topic: str | None = None, **settings: Any
    ) -> BulkResult:
        """Send each row of several tables, record batches or DataFrames as a message.

        Args:
            batches: Tables of pyarrow, pandas or polars, with the column ``body`` (binary or text)
                and, optionally, ``topic``, ``keys``, ``tags``, ``properties`` (maps of text to
                text), ``flag`` and ``bornTimestamp``.
            topic: The topic of all rows; by default each row names its own in the column ``topic``.
            settings: ``queue`` keeps all rows in order in one queue, with one request at a time and
                no second try; ``in_flight`` is the number of requests sent at once (4),
                ``chunk_bytes`` the size of each (4 MiB), ``timeout_ms`` the time for each (30,000).

        Returns:
            The number of messages stored, and the spans of queue offsets at which they are.

        Raises:
            ClientShutDown: The producer is not running.
            TypeError: An object is not a table, a column has a wrong type, or a setting is unknown.
            MessageRejected: A column is unknown, a row cannot be a message, or a setting is out of
                range. Rows that were sent before stay sent.
            RouteNotFound: A topic does not exist, and no broker creates it.
            PartlySent: A request failed after others had succeeded.
            SendFailed: The first request failed.
        """
        return self._send_batches(batches, topic, settings)

    # ---- internal

    def _send_batches(
        self,
        batches: Iterable[Any],
        topic: str | None,
        settings: Mapping[str, Any],
        *,
        are_of_sink: bool = False,
    ) -> BulkResult:
        from rmq_spark.client.producer import arrow_rows, arrow_sender  # noqa: PLC0415  # bring pyarrow

        self._check_running()
        check_bulk_settings(settings)
        if self.instance.namespace:
            raise MessageRejected(
                "namespace",
                "an instance without a namespace, to send tables (use the full name, eu%orders)",
                self.instance.namespace.name or "",
            )
        columns = arrow_rows.SINK_COLUMNS if are_of_sink else arrow_rows.COLUMNS
        return arrow_sender.send_batches(
            self._sender, self._sync_sender.retries, batches, topic, columns, **settings
        )

    def _prepare(self, message: Message) -> PreparedMessage:
        self._check_running()
        return self._sender.prepare(message)

    def _time(self, timeout_ms: int | None) -> int:
        if timeout_ms is None:
            return self.send_timeout_ms
        check_time_ms("timeout_ms", timeout_ms)
        return timeout_ms

    def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that a topic's messages may go to, now or once it is created.

        Args:
            topic: Name of the topic.

        Raises:
            MessageRejected: The name is not valid.
            RouteNotFound: The topic does not exist, and no broker creates it.
            NoNameServer: No name server answers.
            TypeError: The name is not a str.
        """
        namespace = self.instance.namespace
        queues = self._sender.publish_queues(namespace.wrap(check_topic(topic)))
        return tuple(map(namespace.strip_queue, queues))


def topic_sender(producer: Producer) -> TopicSender:
    """Return the `TopicSender` of a producer, for modules that implement other ways of sending."""
    return producer._sender


def send_sink_rows(producer: Producer, rows: Any, topic: str, **settings: Any) -> BulkResult:
    """Send rows of the Spark sink, which may have a column more than those of `send_table`."""
    return producer._send_batches([rows], topic, settings, are_of_sink=True)
