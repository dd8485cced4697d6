"""BrokerHelpers: operations on a running broker: topics, sends, all messages of a topic, waiting.

Waiting for messages uses pulls that the broker holds, so it ends as soon as a message arrives.
Brokers do not announce new topics or committed offsets, so these are polled every few milliseconds.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Final

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.admin.lag import Lag
from rmq_spark.client.admin.table_display import ROWS_MAX, MessageTable, format_html
from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.arguments import check_kind, check_number, wrong_kind
from rmq_spark.client.errors import GroupNotFound, RouteNotFound
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message, MessageExt
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.reading.bulk_pull import stored_messages
from rmq_spark.client.reading.read_bounds import READER_GROUP, Bound, ReadRange
from rmq_spark.client.results import PullResult, SendResult
from rmq_spark.client.serializers import Serializer
from rmq_spark.client.times import EARLIEST, LATEST
from rmq_spark.client.transport.remoting_client import RemotingClient
from rmq_spark.client.transport.tls.settings import TlsSettings
from rmq_spark.errors import RocketPollError, excerpt, format_count, nearest_name
from rmq_spark.wire.codes import PullSysFlag
from rmq_spark.wire.headers.members import PullMessageRequestHeader
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import is_system_topic

if TYPE_CHECKING:
    import pyarrow as pa

QUEUES: Final = 4

WAIT_SECONDS: Final = 10.0
STREAM_SECONDS: Final = 60
POLL_SECONDS: Final = 0.01
_LONG_POLL_FLAG: Final = int(PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND)


class NotInTime(RocketPollError, TimeoutError, page="troubleshooting.md#brokers-in-tests"):
    """Messages or commits did not arrive within the timeout; the error says how many did."""

    __module__ = "rocketpoll"  # from which programs import it


class BrokerHelpers(ABC):
    """Operations on a running broker that tests and notebooks need: topics, sends, reads, waiting.

    All methods may be called from any thread, and in a fork of the process.
    """

    def __init__(self) -> None:
        self._client: _HelperClient | None = None
        self._client_lock = threading.Lock()

    @property
    @abstractmethod
    def address(self) -> str:
        """The address for clients, as ``127.0.0.1:port``; broker and name server share it."""

    @property
    @abstractmethod
    def tls(self) -> TlsSettings | None:
        """The TLS settings with which clients reach the broker; None if it needs none."""

    @property
    @abstractmethod
    def spark_options(self) -> dict[str, str]:
        """The options with which Spark's source and sink reach the broker: address and TLS."""

    def create_topic(self, name: str, queues: int = QUEUES) -> None:
        """Create a topic, or change the number of its queues.

        Args:
            name: The name of the topic.
            queues: The number of its queues, for reading and writing alike.

        Raises:
            MessageRejected: The name is not valid, or the number of queues is 0.
            TypeError: The name is not a string, or ``queues`` is not a number.
            EmbeddedBrokerError: The broker does not run, or belongs to another process.
        """
        admin = self._connect().admin
        admin.create_topic(name, queues)
        admin.instance.routes.refresh(name)  # the next sends see the new number of queues

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages; a missing topic is not an error.

        Raises:
            BrokerRefused: The name is not valid, or the topic is the broker's own.
            TypeError: The name is not a string.
            EmbeddedBrokerError: The broker does not run, or belongs to another process.
        """
        self._connect().admin.delete_topic(name, missing_ok=True)

    def has_topic(self, name: str) -> bool:
        """Return whether a topic exists.

        Raises:
            TypeError: The name is not a string.
            EmbeddedBrokerError: The broker does not run, or belongs to another process.
        """
        return self._ends(name) is not None

    def producer(self, group: str | None = None) -> Producer:
        """Return a new, started producer, which is shut down with the broker if not before.

        Args:
            group: The producer group; None generates a unique name.

        Raises:
            MessageRejected: The group's name is not valid, or another producer of this broker uses
                it.
            TypeError: The group is not a string.
            EmbeddedBrokerError: The broker does not run, or belongs to another process.
        """
        return self._connect().producer(group)

    def send(
        self,
        topic: str,
        *bodies: bytes | str,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        key: str | None = None,
    ) -> list[SendResult]:
        """Send messages one by one, waiting until each is stored, and return the results.

        The messages go to the queues of the topic in turn. For everything else that a `Message` can
        have, use a `producer`::

            broker.send("orders", "one", json.dumps({"id": 2}), tags="created")

        Args:
            topic: The topic to send to; it is created if it does not exist.
            *bodies: The body of each message, at least one; texts are encoded as UTF-8.
            tags: The tags of every message.
            keys: The keys of every message, a sequence of them or separated by spaces.
            key: The key of every message, if it is only one.

        Returns:
            One result for each body, in the same order.

        Raises:
            TypeError: The topic is not a string, or a body is neither text nor bytes. Nothing was
                sent.
            ValueError: No body was given.
            MessageRejected: One of the messages is invalid. Those before it are stored.
            ClientError: The broker refused a message, for example because of a full disk. Those
                before it are stored.
            EmbeddedBrokerError: The broker does not run, or belongs to another process.
        """
        _check_topic(topic)
        if not bodies:
            raise ValueError(
                "bodies: needed at least one after the topic, found none; for example: "
                f"send({excerpt(topic)}, 'one', 'two')"
            )
        for body in bodies:
            _check_body(body)
        messages = [
            Message(topic, body.encode() if isinstance(body, str) else body, tags, keys, key=key)
            for body in bodies
        ]
        sender = self._connect().sender
        return [sender.send(message) for message in messages]

    def messages(self, topic: str) -> MessageTable:
        """Return all messages of a topic, in the order in which they were stored.

        No offset is committed: the messages stay for all consumers. A message that cannot be read
        has a ``fault``, and its body as it is stored.

        Raises:
            RouteNotFound: The topic does not exist.
        """
        address = self.address
        found: list[MessageExt] = []
        with _LongPoller(address, self.tls) as reader:
            for queue, span in self._connect().admin.topic_offsets(topic).items():
                held = ReadRange(queue, address, span.min_offset, span.max_offset)
                found += stored_messages(reader.api, held)
        return MessageTable(sorted(found, key=lambda message: message.commit_log_offset))

    def read_table(
        self,
        topic: str,
        *,
        start: Bound = EARLIEST,
        end: Bound = LATEST,
        columns: Iterable[str] | None = None,
        tags: str | None = None,
        body: str | Serializer | None = None,
        on_bad_record: str = "fail",
        bytes_max: int = 2 << 30,
    ) -> pa.Table:
        """Return the messages of a topic as a pyarrow Table; no offset is committed.

        Args:
            topic: The topic to read.
            start: The first message: ``"earliest"``, ``"latest"``, ``"-1h"``, a time (a text, a
                datetime with a zone, or milliseconds since 1970), or ``{queue: offset}``.
            end: The end, in the same forms; the message at this bound is not included.
            columns: Names of columns, as ``["body", "tags"]``; nothing else is decoded. By default:
                topic, brokerName, queueId, queueOffset, keys, tags, body, bornTimestamp,
                storeTimestamp.
            tags: ``"a || b"`` for messages with one of these tags.
            body: ``"json"``, ``"msgpack"``, ``"text"`` or a serializer such as `avro` makes: the
                fields of the bodies are columns in place of ``body``, with the types that their
                values have; a body without fields cannot be read. By default, bodies are bytes.
            on_bad_record: How to handle a message that cannot be read: ``"fail"`` ends the read,
                ``"null"`` returns a row without its body, ``"skip"`` leaves it out.
            bytes_max: The maximum size of the table in bytes, with decompressed bodies.

        Raises:
            RouteNotFound: The topic does not exist.
            MessageRejected: An argument is invalid.
            OffsetOutOfRange: A queue does not hold the offset that was given for it.
            TableTooLarge: The table would take more than ``bytes_max``.
            MessageUnreadable: A message cannot be read, and ``on_bad_record`` is ``"fail"``.
            EmbeddedBrokerError: The broker does not run, or belongs to another process.
        """
        admin = self._connect().admin
        return admin.read_table(
            topic,
            start=start,
            end=end,
            columns=columns,
            tags=tags,
            body=body,
            on_bad_record=on_bad_record,
            bytes_max=bytes_max,
        )

    def wait_until_arrived(self, topic: str, count: int, timeout: float = WAIT_SECONDS) -> None:
        """Wait until at least ``count`` messages have arrived in a topic since its creation.

        The topic need not exist when the wait begins.

        Args:
            topic: The topic to watch.
            count: The number of messages, including deleted ones.
            timeout: The maximum time to wait, in seconds.

        Raises:
            NotInTime: Fewer messages have arrived within ``timeout`` seconds.
        """
        __tracebackhide__ = True
        check_number("count", count, 3)
        deadline = time.monotonic() + checked_seconds(timeout)
        with _LongPoller(self.address, self.tls) as reader:
            while True:
                ends = self._ends(topic)
                if ends is not None and sum(ends.values()) >= count:
                    return
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise NotInTime(
                        f"{format_count(count, 'message')} did not arrive in topic {topic} within "
                        f"{timeout} s: {self._arrived_count(topic, ends)}"
                    )
                if ends is None:
                    time.sleep(min(POLL_SECONDS, remaining))
                else:
                    reader.wait_for_more(ends, remaining)

    def wait_until_consumed(self, group: str, topic: str, timeout: float = WAIT_SECONDS) -> None:
        """Wait until a group has committed the end offset of every queue of a topic.

        Consumers commit at intervals, every five seconds by default.

        Args:
            group: The consumer group.
            topic: The topic that it consumes.
            timeout: The maximum time to wait, in seconds.

        Raises:
            NotInTime: Messages are left after ``timeout`` seconds.
            RouteNotFound: The topic does not exist.
        """
        __tracebackhide__ = True
        deadline = time.monotonic() + checked_seconds(timeout)
        while behind := [lag for lag in self._lag(group, topic) if lag.messages]:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                committed = ", ".join(
                    f"{lag.consumer_offset or 0} of {lag.broker_offset} in queue "
                    f"{lag.queue.queue_id}"
                    for lag in behind
                )
                raise NotInTime(
                    f"group {group} did not consume all of topic {topic} within {timeout} "
                    f"s: it has committed {committed}; {self._member_count(group)} of its "
                    "consumers are online"
                )
            time.sleep(min(POLL_SECONDS, remaining))

    # ---- internals

    def _connect(self) -> _HelperClient:
        """Return this process's client, which the first call connects."""
        address = self.address
        with self._client_lock:
            if self._client is None or self._client.process != os.getpid():
                self._client = _HelperClient(address, self.tls)
            return self._client

    def _disconnect(self) -> None:
        with self._client_lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _after_fork(self) -> None:
        """Replace the lock in a forked child: the thread that held it may not exist there."""
        self._client_lock = threading.Lock()

    def _shown(self, title: str, *, is_running: bool) -> str:
        rows: list[tuple[object, ...]] = []
        count = 0
        if is_running:
            try:
                rows, count = self._topic_rows()
            except (RocketPollError, OSError) as error:
                title = f"{title}; its topics cannot be shown: {error}"
        return format_html(title, ("topic", "queues", "messages"), rows, count)

    def _topic_rows(self) -> tuple[list[tuple[object, ...]], int]:
        admin = self._connect().admin
        cluster = admin.cluster_info()
        own = {*cluster.cluster_addr_table, *cluster.broker_addr_table}
        topics = sorted(topic for topic in admin.topics() - own if not _is_internal_topic(topic))
        rows: list[tuple[object, ...]] = []
        for topic in topics[:ROWS_MAX]:
            spans = admin.topic_offsets(topic).values()
            held = sum(span.max_offset - span.min_offset for span in spans)
            rows.append((topic, len(spans), f"{held:,}"))
        return rows, len(topics)

    def _lag(self, group: str, topic: str) -> Iterable[Lag]:
        """Return the progress of a group, even if none of its consumers has started yet."""
        admin = self._connect().admin
        try:
            return admin.lag(group, topic)
        except GroupNotFound:
            ends = {queue: span.max_offset for queue, span in admin.topic_offsets(topic).items()}
            return [Lag(queue, end, None, 0) for queue, end in ends.items()]

    def _member_count(self, group: str) -> int:
        try:
            return len(self._connect().admin.members(group))
        except GroupNotFound:  # none of its consumers has started yet
            return 0

    def _ends(self, topic: str) -> dict[MessageQueue, int] | None:
        """Return the end offset of each queue of a topic; None if the topic does not exist."""
        try:
            spans = self._connect().admin.topic_offsets(topic)
        except RouteNotFound:
            return None
        return {queue: span.max_offset for queue, span in spans.items()}

    def _arrived_count(self, topic: str, ends: Mapping[MessageQueue, int] | None) -> str:
        if ends is None:
            nearest = nearest_name(topic, self._connect().admin.topics())
            return f"there is no topic {topic}{'' if nearest is None else f', only {nearest}'}"
        queues = ", ".join(
            f"{end} in queue {queue.queue_id}" for queue, end in sorted(ends.items())
        )
        return f"{sum(ends.values())} have arrived, {queues}"


_SEND_OF_MESSAGE: Final = "producer().send(Message('orders', b'one'))"


def _check_topic(topic: object) -> None:
    example = _SEND_OF_MESSAGE if isinstance(topic, Message) else "send('orders', 'one', 'two')"
    check_kind("topic", topic, str, "a string (str), followed by bodies", example)


def _check_body(body: object) -> None:
    kinds = (str, bytes, bytearray, memoryview)
    if isinstance(body, (list, tuple)) and all(isinstance(each, kinds) for each in body):
        found = f"{type(body).__name__} {excerpt(body)}"
        raise wrong_kind(
            "body", "each body as an argument of its own", found, "send('orders', *bodies)"
        )
    example = f"str({excerpt(body)})"
    if isinstance(body, Message):
        example = _SEND_OF_MESSAGE
    elif isinstance(body, (dict, list, tuple)):
        example = "json.dumps({'id': 1})"
    check_kind("body", body, kinds, "text (str) or bytes", example)


def checked_seconds(timeout: float) -> float:
    """Check that a timeout is a number of seconds, and return it.

    Raises:
        TypeError: The timeout is not a number.
    """
    check_kind("timeout", timeout, (int, float), "a number of seconds", str(WAIT_SECONDS))
    return timeout


def _is_internal_topic(topic: str) -> bool:
    return is_system_topic(topic) or topic.startswith("%") or topic.endswith("_REPLY_TOPIC")


class _HelperClient:
    def __init__(self, address: str, tls: TlsSettings | None) -> None:
        self.process = os.getpid()
        self._instance = ClientInstance(address, tls=tls)
        self._instance.start()
        self.admin = Admin(instance=self._instance)
        self._producers: list[Producer] = []
        self._lock = threading.Lock()
        self._sender: Producer | None = None

    @property
    def sender(self) -> Producer:
        """The producer that `BrokerHelpers.send` uses."""
        with self._lock:
            if self._sender is None:
                self._sender = self._start_producer("embedded")
            return self._sender

    def producer(self, group: str | None) -> Producer:
        with self._lock:
            return self._start_producer(group or f"embedded-{len(self._producers)}")

    def _start_producer(self, group: str) -> Producer:
        producer = Producer(group, instance=self._instance)
        producer.start()
        self._producers.append(producer)
        return producer

    def close(self) -> None:
        for producer in self._producers:
            producer.shutdown()
        self._instance.shutdown()


class _LongPoller:
    """A separate connection for pulls: when it closes, the broker drops the pulls that it holds."""

    def __init__(self, address: str, tls: TlsSettings | None) -> None:
        self._address = address
        self._connections = RemotingClient(tls=tls)
        self.api = BrokerApi(self._connections)
        self._pending_pulls: dict[MessageQueue, Future[PullResult]] = {}

    def __enter__(self) -> _LongPoller:
        return self

    def __exit__(self, *_: object) -> None:
        self._connections.shutdown()

    def wait_for_more(self, ends: Mapping[MessageQueue, int], seconds: float) -> None:
        """Wait until a queue has grown past its given end, for at most ``seconds``."""
        for queue, end in ends.items():
            if queue not in self._pending_pulls:
                suspend_ms = max(int(seconds * 1000), 1)
                header = PullMessageRequestHeader(
                    consumer_group=READER_GROUP,
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    queue_offset=end,
                    max_msg_nums=1,
                    sys_flag=_LONG_POLL_FLAG,
                    commit_offset=0,
                    suspend_timeout_millis=suspend_ms,
                    sub_version=0,
                    subscription="*",
                    expression_type="TAG",
                )
                self._pending_pulls[queue] = self.api.pull_async(self._address, header)
        done, _ = wait(self._pending_pulls.values(), seconds, FIRST_COMPLETED)
        self._pending_pulls = {
            queue: pull for queue, pull in self._pending_pulls.items() if pull not in done
        }
