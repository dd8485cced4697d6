"""EmbeddedBroker: a broker for a test, a notebook or a program, ready when it returns and gone with it.

    with EmbeddedBroker() as broker:
        broker.create_topic("orders")
        broker.send("orders", "one", "two")
        assert [message.body for message in broker.messages("orders")] == [b"one", b"two"]

It runs in a thread. Its directory is temporary, and removed at the end, or a given one that stays. The
process that starts it owns it: a fork of that process can use its address and its helpers, and cannot stop it
or remove its directory.

It is one of the two files of the broker that know the client; it does not know Spark.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn

from broker.broker_thread import BrokerThread
from broker.settings import config_of
from rmq_spark.client.admin import Admin
from rmq_spark.client.broker_api import BrokerApi
from rmq_spark.client.bulk_pull import BulkPull
from rmq_spark.client.connections import Connections
from rmq_spark.client.errors import RouteNotFound
from rmq_spark.client.instance import ClientInstance
from rmq_spark.client.message import Message, MessageExt, decode_messages
from rmq_spark.client.producer import Producer
from rmq_spark.client.results import PullResult, SendResult
from rmq_spark.errors import RocketPollError
from rmq_spark.wire.bodies.stats import TopicOffset
from rmq_spark.wire.flags import PullSysFlag
from rmq_spark.wire.headers.pull import PullMessageRequestHeader
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)

QUEUES: Final = 4
"""Of a topic that `EmbeddedBroker.create_topic` makes."""

WAIT_SECONDS: Final = 10.0
_READER_GROUP: Final = "TOOLS_CONSUMER"
"""RocketMQ's own name for who looks without consuming: every broker has it."""

_HELD: Final = int(PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND)
_LOOK_AGAIN_SECONDS: Final = 0.01
_OF_ARGUMENTS: Final = {"listenPort": "port", "storePathRootDir": "directory"}
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # not bound: how to reach who did


class EmbeddedBrokerError(RocketPollError):
    """It does not run, cannot be started, or is not this process' own."""


class NotInTime(RocketPollError):
    """What was waited for has not come; it says what was there instead."""


class EmbeddedBroker:
    """See the module. One life: it is started once and stopped once; between, it may be restarted."""

    def __init__(self, directory: str | Path | None = None, *, port: int = 0, **settings: object) -> None:
        """Check the settings; nothing runs yet.

        ``settings`` carry the names of conf/broker.conf: ``EmbeddedBroker(defaultTopicQueueNums=2)``. In a
        temporary directory flushDiskType is ASYNC_FLUSH, unless it is given.

        Raises:
            ConfigError: A setting is unknown, or its value means nothing.
        """
        self._given_directory = None if directory is None else Path(directory).expanduser().absolute()
        self._texts = _texts_of(settings)
        self._port = port
        if self._given_directory is None:
            self._texts.setdefault("flushDiskType", "ASYNC_FLUSH")
        self._bind_address = config_of({**self._texts, "listenPort": str(port)}).bind_address
        self._directory = self._given_directory
        self._runner: BrokerThread | None = None
        self._state = "does not run yet: start it, or use it in a with statement"
        self._owner = os.getpid()
        self._changing = threading.RLock()
        self._client: _Client | None = None

    # ---- its life

    def start(self) -> EmbeddedBroker:
        """Come back when it serves.

        Raises:
            EmbeddedBrokerError: It cannot run: the port or the directory is in use. It may be tried again.
        """
        self._check_owner("start")
        with self._changing:
            if self._runner is not None:
                raise EmbeddedBrokerError(f"the broker runs already, on {self.address}")
            if self._port < 0:
                raise EmbeddedBrokerError("the broker has been stopped: make another one")
            if self._directory is None:
                self._directory = Path(tempfile.mkdtemp(prefix="rocketpoll-"))
            try:
                self._launch()
            except BaseException:
                self._remove_directory()
                raise
            atexit.register(self.stop)
        return self

    def stop(self) -> None:
        """End it in order, and remove its directory, if that is temporary.

        A second call does nothing, and so does one in a forked process: the broker is not its own.
        """
        if os.getpid() != self._owner:
            return
        with self._changing:
            if self._runner is None:
                return
            self._disconnect()
            try:
                self._runner.stop()
            finally:
                self._state = "has been stopped"
                self._runner, self._port = None, -1
                self._remove_directory()
                atexit.unregister(self.stop)

    def restart(self) -> None:
        """Stop it and start it again, with the same port and directory; clients lose their connections."""
        self._check_owner("restart")
        with self._changing:
            runner = self._running()
            runner.stop()
            self._launch()

    def pause(self) -> None:
        """Let it answer nobody until `resume`; its connections stay."""
        self._check_owner("pause")
        self._running().pause()

    def resume(self) -> None:
        """Let it go on."""
        self._check_owner("resume")
        self._running().resume()

    def __enter__(self) -> EmbeddedBroker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except Exception:
            if error is None:
                raise
            _log.exception("stopping the broker failed, after another failure")

    def __reduce__(self) -> NoReturn:
        raise TypeError("an EmbeddedBroker stays in its process: hand its address on instead")

    # ---- where it is

    @property
    def address(self) -> str:
        """Where clients find it, as ``127.0.0.1:port``: name server and broker in one."""
        self._running()
        host = _EVERYWHERE.get(self._bind_address, self._bind_address)
        return f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}"

    @property
    def port(self) -> int:
        """Where it listens."""
        self._running()
        return self._port

    @property
    def directory(self) -> Path:
        """Where it keeps everything."""
        self._running()
        if self._directory is None:
            raise AssertionError("a broker that runs has a directory")
        return self._directory

    # ---- topics and messages

    def create_topic(self, name: str, queues: int = QUEUES) -> None:
        """Create a topic, or change how many queues it has."""
        self._connected().admin.create_topic(name, queues)

    def producer(self, group: str | None = None) -> Producer:
        """A producer that has been started; it is shut down with the broker, if not before."""
        return self._connected().producer(group)

    def send(
        self, topic: str, *bodies: bytes | str, tags: str | None = None, keys: str | None = None
    ) -> list[SendResult]:
        """Send messages one after the other, from queue to queue, each when the last is stored."""
        messages = [
            Message(topic, body.encode() if isinstance(body, str) else body, tags, keys) for body in bodies
        ]
        sender = self._connected().sender
        return [sender.send(message) for message in messages]

    def messages(self, topic: str) -> list[MessageExt]:
        """All messages that a topic holds, in the order in which they were stored.

        Raises:
            RouteNotFound: There is no such topic.
        """
        found: list[MessageExt] = []
        with _Reader(self.address) as reader:
            for queue, span in self._offsets(topic).items():
                pull = BulkPull(
                    reader.api, self.address, _READER_GROUP, queue, span.min_offset, span.max_offset
                )
                for chunk in pull:
                    found += decode_messages(chunk.records, queue.broker_name)
        return sorted(found, key=lambda message: message.commit_log_offset)

    def wait_until_arrived(self, topic: str, count: int, timeout: float = WAIT_SECONDS) -> None:
        """Come back when so many messages have ever arrived in a topic, also if it is made only meanwhile.

        Raises:
            NotInTime: There are fewer after ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        with _Reader(self.address) as reader:
            while True:
                ends = self._ends(topic)
                remaining = deadline - time.monotonic()
                if ends is not None and sum(ends.values()) >= count:
                    return
                if remaining <= 0:
                    raise NotInTime(
                        f"{count} messages in topic {topic} were waited for, {timeout} s long: "
                        f"{self._described(topic, ends)}"
                    )
                if ends is None:  # nobody tells of new topics
                    time.sleep(min(_LOOK_AGAIN_SECONDS, remaining))
                else:
                    reader.wait_for_more(ends, remaining)

    def wait_until_consumed(self, group: str, topic: str, timeout: float = WAIT_SECONDS) -> None:
        """Come back when a group has committed that it has consumed all that a topic holds.

        Consumers commit now and then, every five seconds by default. Nobody tells of commits: the group's
        offsets are asked for every few milliseconds.

        Raises:
            NotInTime: There are messages left after ``timeout`` seconds.
            RouteNotFound: There is no such topic.
        """
        deadline = time.monotonic() + timeout
        admin = self._connected().admin
        while True:
            behind = [lag for lag in admin.lag(group, topic) if lag.messages]
            if not behind:
                return
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise NotInTime(
                    f"group {group} was to consume all of topic {topic} within {timeout} s: it has committed "
                    + ", ".join(
                        f"{lag.consumer_offset or 0} of {lag.broker_offset} in queue {lag.queue.queue_id}"
                        for lag in behind
                    )
                    + f"; {len(admin.members(group))} of its consumers are online"
                )
            time.sleep(min(_LOOK_AGAIN_SECONDS, remaining))

    # ---- within

    def _launch(self) -> None:
        texts = {**self._texts, "listenPort": str(self._port), "storePathRootDir": str(self._directory)}
        runner = BrokerThread(config_of(texts))
        try:
            self._port = runner.start()
        except (RocketPollError, OSError) as error:
            self._runner = None
            raise EmbeddedBrokerError(f"the broker cannot start: {error}") from error
        self._runner = runner
        _running.add(self)

    def _remove_directory(self) -> None:
        if self._given_directory is None and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _running(self) -> BrokerThread:
        if self._runner is None:
            raise EmbeddedBrokerError(f"the broker {self._state}")
        return self._runner

    def _check_owner(self, what: str) -> None:
        if os.getpid() != self._owner:
            raise EmbeddedBrokerError(
                f"process {os.getpid()} cannot {what} the broker of process {self._owner}, of which it is a "
                "fork: make another one here"
            )

    def _connected(self) -> _Client:
        """The client of this process; after a fork, the parent's is left alone."""
        address = self.address
        if self._client is None or self._client.process != os.getpid():
            self._client = _Client(address)
        return self._client

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _offsets(self, topic: str) -> Mapping[MessageQueue, TopicOffset]:
        return self._connected().admin.topic_offsets(topic)

    def _ends(self, topic: str) -> dict[MessageQueue, int] | None:
        try:
            return {queue: span.max_offset for queue, span in self._offsets(topic).items()}
        except RouteNotFound:
            return None

    def _described(self, topic: str, ends: Mapping[MessageQueue, int] | None) -> str:
        if ends is None:
            topics = ", ".join(sorted(self._connected().admin.topics())) or "none"
            return f"there is no topic {topic}, only {topics}"
        queues = ", ".join(f"{end} in queue {queue.queue_id}" for queue, end in sorted(ends.items()))
        return f"{sum(ends.values())} have arrived, {queues}"


class _Client:
    """What the helpers of one process talk to the broker with."""

    def __init__(self, address: str) -> None:
        self.process = os.getpid()
        self.instance = ClientInstance(address)
        self.instance.start()
        self.admin = Admin(instance=self.instance)
        self._producers: list[Producer] = []
        self._sender: Producer | None = None

    @property
    def sender(self) -> Producer:
        """One producer for all that is sent by the broker itself."""
        if self._sender is None:
            self._sender = self.producer(None)
        return self._sender

    def producer(self, group: str | None) -> Producer:
        """One more."""
        producer = Producer(group or f"embedded-{len(self._producers)}", instance=self.instance)
        producer.start()
        self._producers.append(producer)
        return producer

    def close(self) -> None:
        """Shut all down."""
        for producer in self._producers:
            producer.shutdown()
        self.instance.shutdown()


class _Reader:
    """A connection of its own: with it, the broker forgets the pulls that nobody waits for any more."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connections = Connections()
        self.api = BrokerApi(self._connections)
        self._held: dict[MessageQueue, Future[PullResult]] = {}

    def __enter__(self) -> _Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._connections.shutdown()

    def wait_for_more(self, ends: Mapping[MessageQueue, int], seconds: float) -> None:
        """Come back when one of the queues has gone on, or after so many seconds."""
        for queue, end in ends.items():
            if queue not in self._held:
                suspend_ms = max(int(seconds * 1000), 1)
                header = PullMessageRequestHeader(
                    _READER_GROUP, queue.topic, queue.queue_id, end, 1, _HELD, 0, suspend_ms, 0, "*", "TAG"
                )
                self._held[queue] = self.api.pull_async(self._address, header)
        done, _ = wait(self._held.values(), seconds, FIRST_COMPLETED)
        self._held = {queue: pull for queue, pull in self._held.items() if pull not in done}


def _texts_of(settings: Mapping[str, object]) -> dict[str, str]:
    """Settings as a file would say them."""
    for name, argument in _OF_ARGUMENTS.items():
        if name in settings:
            raise EmbeddedBrokerError(f"{name}: it is given as {argument}, EmbeddedBroker({argument}=...)")
    return {name: _text_of(value) for name, value in settings.items()}


def _text_of(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value.value if isinstance(value, Enum) else value)


_running: Final[weakref.WeakSet[EmbeddedBroker]] = weakref.WeakSet()


def _let_go_of_all() -> None:
    """In a forked child."""
    for broker in _running:
        if broker._runner is not None:
            broker._runner.let_go()


os.register_at_fork(after_in_child=_let_go_of_all)
