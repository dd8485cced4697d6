"""ClientInstance: the connections and threads that the producers and consumers of a process share.

    connections, name servers, routes, requests   one of each
    routes       refreshed every 30 s
    heartbeats   every 30 s and after each change: to all brokers of all known topics if there are
                 consumers, else to the masters
    requests of brokers, passed to the members that they are for

It runs from the first user's `start` to the last user's `stop`. `shutdown` stops it at once for all
users, within two seconds; calls that wait for a response raise an error. In a forked process it
becomes a new client with a different id, not yet started.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Protocol

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.api.name_servers import NameServers, check_ports
from rmq_spark.client.arguments import (
    CLIENT_ID_BYTES_MAX,
    check_client_id,
    check_flag,
    check_group,
    check_kind,
    check_period_ms,
    check_range,
    explain_keywords,
    explain_missing_topic,
)
from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.concurrency.lifecycle import SafeStop
from rmq_spark.client.concurrency.scheduler import RepeatedTask, ThreadScheduler
from rmq_spark.client.concurrency.threads import start_thread
from rmq_spark.client.errors import (
    ClientError,
    ClientShutDown,
    MessageRejected,
    NoNameServer,
    RouteNotFound,
    TopicNotUsable,
)
from rmq_spark.client.instance.heartbeats import HeartbeatSender
from rmq_spark.client.instance.request_futures import RequestFutureHolder
from rmq_spark.client.instance.routes import Routes
from rmq_spark.client.message import MessageExt, to_message
from rmq_spark.client.namespace import Namespace
from rmq_spark.client.transport.address_overrides import AddressOverrides
from rmq_spark.client.transport.connection import (
    CONNECT_TIMEOUT_MS,
    RemotingConnection,
    parse_address,
)
from rmq_spark.client.transport.remoting_client import (
    REQUEST_TIMEOUT_MS,
    Credentials,
    RemotingClient,
)
from rmq_spark.errors import BodyError
from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.bodies.clients import ConsumerData, HeartbeatData, ProducerData
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.compression import PLAIN_BYTES_LIMIT_MAX, PLAIN_BYTES_MAX
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers import exchange_of
from rmq_spark.wire.headers.members import (
    CheckTransactionStateRequestHeader,
    ReplyMessageRequestHeader,
)
from rmq_spark.wire.message.properties import PRODUCER_GROUP
from rmq_spark.wire.message.record import decode_record
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from rmq_spark.wire.remoting.command import RemotingCommand

if TYPE_CHECKING:
    from rmq_spark.client.transport.tls.settings import TlsSettings
    from rmq_spark.wire.bodies.operators import (
        ConsumeMessageDirectlyResult,
        ConsumerRunningInfo,
        GetConsumerStatusBody,
    )


_log = logging.getLogger(__name__)

CONCURRENT_REQUESTS_MAX: Final = 16
WAITING_CHECKS_MAX: Final = 2_000
"""Most waiting checks: a broker sends those of all open transactions at once."""
WAITING_CHECKS_BYTES_MAX: Final = 32 << 20


def _new_slots() -> Mapping[int | None, threading.Semaphore]:
    """Return separate slots for resets, for checks, and for all other requests (None)."""
    codes = RequestCode.RESET_CONSUMER_CLIENT_OFFSET, RequestCode.CHECK_TRANSACTION_STATE, None
    return {code: threading.Semaphore(CONCURRENT_REQUESTS_MAX) for code in codes}


class _WaitingChecks:
    """Checks of transactions that wait for a slot, up to a limit. All methods are thread-safe.

    A check of a message replaces an earlier one that waits, so that it is not answered twice.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: dict[
            tuple[str, str | int], tuple[RemotingConnection, RemotingCommand, Any]
        ] = {}
        self._bytes = 0
        self._dropped = 0

    def acquire_or_wait(
        self,
        slots: threading.Semaphore,
        connection: RemotingConnection,
        request: RemotingCommand,
        header: Any,
    ) -> bool:
        """Acquire a slot and return True; if none is free, keep the check for later, or drop it."""
        with self._mutex:
            if slots.acquire(blocking=False):
                return True
            key = connection.address, header.transaction_id or header.tran_state_table_offset
            earlier = self._waiting.get(key)
            bytes_left = self._bytes - (0 if earlier is None else len(earlier[1].body))
            has_room = earlier is not None or len(self._waiting) < WAITING_CHECKS_MAX
            if has_room and bytes_left + len(request.body) <= WAITING_CHECKS_BYTES_MAX:
                self._waiting[key] = connection, request, header
                self._bytes = bytes_left + len(request.body)
                return False
            self._dropped += 1
            is_first = self._dropped == 1
        if is_first:
            _log.warning(
                "%s: checks of transactions are dropped, and the broker will ask again: %d already "
                "wait for check_listener. Make it faster",
                connection.address,
                len(self._waiting),
            )
        return False

    def release_or_next(
        self, slots: threading.Semaphore
    ) -> tuple[RemotingConnection, RemotingCommand, Any] | None:
        """Return the next check for the caller's slot; if none waits, release the slot."""
        with self._mutex:
            if self._waiting:
                found = self._waiting.pop(next(iter(self._waiting)))
                self._bytes -= len(found[1].body)
                return found
            slots.release()
            dropped, self._dropped = self._dropped, 0
        if dropped:
            _log.warning("checks of transactions are accepted again; %d were dropped", dropped)
        return None


# The methods that an instance calls on its members. Threads that read from a connection call only
# `request_rebalance` and `on_connection_closed`, which must return at once.


class RegisteredConsumer(Protocol):
    """A consumer that is registered with a client instance."""

    def consumer_data(self) -> ConsumerData:
        """Return the description of the consumer that heartbeats carry."""

    def request_rebalance(self) -> None:
        """Rebalance soon, because the members of the group have changed (request code 40)."""

    def on_connection_closed(self, address: str) -> None:
        """Note that a broker may have forgotten this consumer, and the locks that it granted."""

    def stop_threads(self) -> None:
        """Stop all threads, because the instance has stopped and no broker can be asked."""

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Resume at offsets that an operator has set (request code 220)."""

    def consume_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """Return the offset that the consumer has reached in each queue of a topic (code 221)."""

    def running_info(self) -> ConsumerRunningInfo:
        """Return the consumer's report on itself (request code 307)."""

    def consume_directly(
        self, message: MessageExt, broker_name: str
    ) -> ConsumeMessageDirectlyResult:
        """Consume a message that an operator has chosen, now (request code 309)."""


class RegisteredProducer(Protocol):
    """A producer that is registered with a client instance."""

    def check_transaction_state(
        self, address: str, message: MessageExt, header: CheckTransactionStateRequestHeader
    ) -> None:
        """Make the broker at ``address`` commit a half message, or roll it back (code 39)."""


class UnknownMember(ClientError):
    """A broker's request is for a member that is not in this client."""

    def __str__(self) -> str:
        return f"there is no {self.args[0]} in this client"


class ClientRequestProcessor(ForkAware):
    """Passes brokers' requests to the members of one client."""

    def __init__(
        self,
        client_id: Callable[[], str],
        consumers: Mapping[str, RegisteredConsumer],
        producers: Mapping[str, RegisteredProducer | None],
        max_body_bytes: int = PLAIN_BYTES_MAX,
        requests: RequestFutureHolder | None = None,
    ) -> None:
        """Make a processor; both mappings are by group, and may change at any time."""
        self._requests = requests or RequestFutureHolder()
        self._client_id = client_id
        self._consumers = consumers
        self._producers = producers
        self._max_body_bytes = max_body_bytes
        self._slots = _new_slots()
        self._checks = _WaitingChecks()
        self._handlers: Mapping[int, Callable[[str, RemotingCommand, Any], object]] = {
            RequestCode.CHECK_TRANSACTION_STATE: self._check_transaction_state,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offsets,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._consume_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }
        ForkAware.__init__(self)

    def __call__(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Process a request of a broker; return the response, or None if it is sent later."""
        codec = exchange_of(request.code).request
        if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and codec is not None:
            consumer = self._consumers.get(codec.decode(request.ext_fields).consumer_group)
            if consumer is not None:
                consumer.request_rebalance()
            return request.respond(ResponseCode.SUCCESS)
        if request.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT and codec is not None:
            return self._resolve_request(codec.decode(request.ext_fields), request)
        handler = self._handlers.get(request.code)
        if handler is None or codec is None:
            remark = f" request type {request.code} not supported"
            return request.respond(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        header = codec.decode(request.ext_fields)
        free = self._slots.get(request.code) or self._slots[None]
        if request.code == RequestCode.CHECK_TRANSACTION_STATE:
            if not self._checks.acquire_or_wait(free, connection, request, header):
                return None
        elif not free.acquire(blocking=False):
            remark = f"the client is busy with {CONCURRENT_REQUESTS_MAX} other requests"
            return self._busy_reply(connection, request, remark)
        thread = threading.Thread(
            target=self._serve,
            args=(connection, request, handler, header, free),
            name=f"rocketpoll request {request.code}",
            daemon=True,
        )
        try:
            start_thread(thread)
        except RuntimeError as error:  # at a limit of threads
            free.release()
            remark = f"the client cannot start a thread for it: {error}"
            return self._busy_reply(connection, request, remark)
        return None

    def _resolve_request(
        self, header: ReplyMessageRequestHeader, pushed: RemotingCommand
    ) -> RemotingCommand:
        """Pass a reply to the request that waits for it, without a thread: there may be many."""
        try:
            self._requests.resolve(
                header, pushed, time.time_ns() // 1_000_000, self._max_body_bytes
            )
        except BodyError as error:
            return pushed.respond(ResponseCode.SYSTEM_ERROR, str(error))
        return pushed.respond(ResponseCode.SUCCESS)

    def _busy_reply(
        self, connection: RemotingConnection, request: RemotingCommand, remark: str
    ) -> RemotingCommand:
        if request.is_one_way:  # the broker gets no response
            _log.warning("%s: request %d was dropped: %s", connection.address, request.code, remark)
        return request.respond(ResponseCode.SYSTEM_BUSY, remark)

    def _after_fork(self) -> None:
        """Free all slots: the requests being processed or waiting belong to the parent."""
        self._slots, self._checks = _new_slots(), _WaitingChecks()

    def _serve(
        self,
        connection: RemotingConnection,
        request: RemotingCommand,
        handler: Callable[[str, RemotingCommand, Any], object],
        header: Any,
        slots: threading.Semaphore,
    ) -> None:
        """Handle a request in a slot, and then the checks that wait for this slot."""
        if request.code != RequestCode.CHECK_TRANSACTION_STATE:
            self._handle(connection, request, handler, header, slots.release)
            return
        checks = self._checks
        following: tuple[RemotingConnection, RemotingCommand, Any] | None
        following = connection, request, header
        while following is not None:
            self._handle(following[0], following[1], handler, following[2])
            following = checks.release_or_next(slots)

    def _handle(
        self,
        connection: RemotingConnection,
        request: RemotingCommand,
        handler: Callable[[str, RemotingCommand, Any], object],
        header: Any,
        release: Callable[[], object] = lambda: None,
    ) -> None:
        try:
            body = handler(connection.address, request, header)
            data = b"" if body is None else encode_body(body)
            response = request.respond(ResponseCode.SUCCESS, body=data)
        except UnknownMember as error:
            _log.info("%s: request %d: %s", connection.address, request.code, error)
            response = request.respond(ResponseCode.SYSTEM_ERROR, str(error))
        except BaseException as error:  # noqa: BLE001  # any error is answered, a listener's sys.exit too
            _log.exception("%s: request %d failed", connection.address, request.code)
            response = request.respond(
                ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"
            )
        finally:
            release()
        if not request.is_one_way:
            try:
                connection.send(response)
            except ClientError as error:
                _log.info("%s: request %d: %s", connection.address, request.code, error)

    # ---- one method for each request: the body of the answer, or None

    def _check_transaction_state(self, address: str, request: RemotingCommand, header: Any) -> None:
        message = self._decode_message(request, header)
        group = message.properties.get(PRODUCER_GROUP, "")
        producer = self._producers.get(group)
        if producer is None:
            raise UnknownMember(f"transactional producer of group {group!r}")
        producer.check_transaction_state(address, message, header)

    def _reset_offsets(self, _: str, request: RemotingCommand, header: Any) -> None:
        from rmq_spark.wire.bodies.operators import ResetOffsetBody  # noqa: PLC0415  # rarely needed

        offsets = decode_body(ResetOffsetBody, request.body).offset_table
        self._get_consumer(header.group).reset_offsets(header.topic, offsets)

    def _consume_status(self, _: str, __: RemotingCommand, header: Any) -> GetConsumerStatusBody:
        from rmq_spark.wire.bodies.operators import GetConsumerStatusBody  # noqa: PLC0415  # rarely needed

        status = self._get_consumer(header.group).consume_status(header.topic)
        return GetConsumerStatusBody(message_queue_table=status)

    def _running_info(self, _: str, __: RemotingCommand, header: Any) -> object:
        self._check_client_id(header.client_id)
        return self._get_consumer(header.consumer_group).running_info()

    def _consume_directly(self, _: str, request: RemotingCommand, header: Any) -> object:
        self._check_client_id(header.client_id)
        message = self._decode_message(request, header)
        return self._get_consumer(header.consumer_group).consume_directly(
            message, header.broker_name or ""
        )

    def _decode_message(self, request: RemotingCommand, header: Any) -> MessageExt:
        stored = decode_record(request.body)
        broker_name = header.broker_name or ""
        return to_message(stored, broker_name, max_body_bytes=self._max_body_bytes)

    def _check_client_id(self, client_id: str | None) -> None:
        if client_id not in (None, self._client_id()):
            raise UnknownMember(f"client {client_id!r}")

    def _get_consumer(self, group: str) -> RegisteredConsumer:
        consumer = self._consumers.get(group)
        if consumer is None:
            raise UnknownMember(f"consumer of group {group!r}")
        return consumer


ROUTE_INTERVAL_MS: Final = 30_000
HEARTBEAT_INTERVAL_MS: Final = 30_000
NAME_SERVER_VARIABLE: Final = "NAMESRV_ADDR"

HEARTBEAT_PAUSE_MS: Final = 1_000
"""Least milliseconds between two rounds of heartbeats, or of route refreshes."""

SHUTDOWN_MS: Final = 2_000
"""Most milliseconds that `shutdown` takes, even while requests are pending."""

THREAD_JOIN_MS_MAX: Final = 500
"""Most milliseconds of `SHUTDOWN_MS` that waiting for idle threads may take."""

_LOOPBACK_ADDRESS: Final = "127.0.0.1"


class ClientInstance(ForkAware):
    """Connections, routes and heartbeats that producers and consumers share.

    A producer or consumer without an instance makes one of its own; pass one to have several share
    its connections and threads, or to set what only the instance knows: credentials, TLS, timeouts.
    It starts with its first user and ends with its last; a ``with`` statement counts as a user. All
    methods may be called from any thread.

    Example:
        with ClientInstance("localhost:9876", credentials=Credentials("key", "secret")) as instance:
            producer = Producer("shop", instance=instance)
            consumer = Consumer("billing", instance=instance)

    Args:
        namesrv: Addresses of the name servers, as ``"host:port;host:port"`` or an iterable of
            ``"host:port"``. Defaults to the environment variable NAMESRV_ADDR.
        credentials: Keys that requests are signed with, for brokers with access lists.
        tls: TLS settings, for name servers and brokers alike, on their usual ports.
        client_id: Name of this client; it must differ from those of all other clients, in this
            process and others. At most 255 bytes, without ``/``, because in BROADCASTING it names a
            directory. A forked process adds its process id. By default, the id consists of address,
            process id and time, and all such clients of a machine share one directory.
        extensions: Extensions of rocketpoll's brokers that are used where a broker offers them.
        reads_itself: Whether the threads that wait for responses also read them, instead of a
            thread for each connection. `Producer.send_async` is not available then.
        broker_addresses: Addresses at which brokers are reached, by broker name or by the address
            that name servers give: for brokers in containers or behind a NAT.
        request_timeout_ms: Milliseconds to wait for the response to a request.
        connect_timeout_ms: Milliseconds to wait for a connection.
        route_interval_ms: Milliseconds between refreshes of the routes.
        heartbeat_interval_ms: Milliseconds between heartbeats.
        max_body_bytes: Most bytes that a compressed body may inflate to when it is read, up to
            1 GiB; 16 MiB by default, the most that rocketpoll's producers send. Raise it for
            messages of Java producers that send more: a larger body counts as a message that cannot
            be read, which consumers make a dead letter of.
        namespace: Namespace of the topics and groups of all its users: a topic ``orders`` is
            ``eu%orders`` for brokers, as in RocketMQ's clients.

    Raises:
        MessageRejected: A number is out of range, ``client_id`` is invalid, or an address has a
            scheme, as ``http://``.
        TlsRejected: The TLS settings cannot work.
        TypeError: An argument has the wrong type.
    """

    @explain_keywords
    def __init__(
        self,
        namesrv: str | Iterable[str] | None = None,
        *,
        credentials: Credentials | None = None,
        tls: TlsSettings | None = None,
        client_id: str | None = None,
        extensions: frozenset[Extension] = frozenset(Extension),
        reads_itself: bool = False,
        broker_addresses: Mapping[str, str] | None = None,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        route_interval_ms: int = ROUTE_INTERVAL_MS,
        heartbeat_interval_ms: int = HEARTBEAT_INTERVAL_MS,
        max_body_bytes: int = PLAIN_BYTES_MAX,
        namespace: str | None = None,
    ) -> None:
        self.namespace = Namespace(namespace)
        example = "Credentials('key', 'secret')"
        check_kind("credentials", credentials, (Credentials, NoneType), "Credentials", example)
        if client_id is not None:
            client_id = check_client_id(client_id)
        check_flag("reads_itself", reads_itself)
        for name, number in (
            ("request_timeout_ms", request_timeout_ms),
            ("connect_timeout_ms", connect_timeout_ms),
            ("route_interval_ms", route_interval_ms),
            ("heartbeat_interval_ms", heartbeat_interval_ms),
        ):
            check_period_ms(name, number)
        check_range("max_body_bytes", max_body_bytes, 1, PLAIN_BYTES_LIMIT_MAX)
        needed, example = "a set of Extension", "frozenset(Extension)"
        check_kind("extensions", extensions, frozenset, needed, example)
        for each in extensions:
            check_kind("one of extensions", each, Extension, needed, example)
        self._consumers: dict[str, RegisteredConsumer] = {}
        self._producers: dict[str, RegisteredProducer | None] = {}
        addresses = namesrv if namesrv is not None else os.environ.get(NAME_SERVER_VARIABLE)
        self.name_servers = NameServers(
            addresses,
            self._request_name_server,
            request_timeout_ms,
            AddressOverrides(broker_addresses),
        )
        check_ports(self.name_servers.addresses)
        self.local_address = local_address(self.name_servers.addresses)
        self._given_client_id = client_id
        self.client_id = self._new_client_id()
        self.requests = RequestFutureHolder()
        self.connections = RemotingClient(
            credentials=credentials,
            tls=tls,
            on_request=ClientRequestProcessor(
                lambda: self.client_id,
                self._consumers,
                self._producers,
                max_body_bytes,
                self.requests,
            ),
            on_ready=self._on_broker_ready,
            on_closed=self._on_connection_closed,
            extensions=extensions,
            reads_itself=reads_itself,
            connect_timeout_ms=connect_timeout_ms,
            negotiation_timeout_ms=request_timeout_ms,
        )
        self.api = BrokerApi(self.connections, request_timeout_ms, max_body_bytes)
        self.routes = Routes(self.name_servers.route)
        self._heartbeat_sender = HeartbeatSender(self.api, self._heartbeat_data)
        self._lock = threading.RLock()
        self._user_count = 0
        self._is_shut_down = False
        self._route_interval_ms = route_interval_ms
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._scheduler: ThreadScheduler | None = None
        self._route_task: RepeatedTask | None = None
        self._heartbeat_task: RepeatedTask | None = None
        self._safe_stop = SafeStop("rocketpoll client ends", self._stop_now, SHUTDOWN_MS / 1000)
        ForkAware.__init__(self)

    @property
    def persistent_id(self) -> str:
        """Name that this client keeps when its program is restarted.

        All clients of a machine that were not given an id have the same name, as Java's in
        BROADCASTING.
        """
        return self._given_client_id or f"{self.local_address}@DEFAULT"

    def _new_client_id(self) -> str:
        return self._given_client_id or f"{self.local_address}@{os.getpid()}#{time.time_ns()}"

    def _child_client_id(self) -> str:
        """Return a new id for a forked process: brokers treat equal ids as one client."""
        if self._given_client_id is None:
            return self._new_client_id()
        process = f"@{os.getpid()}"
        given = self._given_client_id.encode()[: CLIENT_ID_BYTES_MAX - len(process)]
        return given.decode(errors="ignore") + process

    # ---- users

    @property
    def is_shut_down(self) -> bool:
        """True if the instance has ended, for all of its users."""
        return self._is_shut_down

    @property
    def thread_count(self) -> int:
        """Number of threads that are alive: for routes, heartbeats and connections."""
        own = 0 if self._scheduler is None else self._scheduler.thread_count
        own += self.requests.thread_count
        return own + self._heartbeat_sender.thread_count + self.connections.thread_count

    def start(self) -> None:
        """Add a user; the first one starts the instance. Each `start` needs its `stop`.

        Raises:
            ClientShutDown: The instance has ended, and cannot be started again.
            NoNameServer: It was given no address, and NAMESRV_ADDR is not set.
        """
        if not self.name_servers.addresses:
            raise NoNameServer
        with self._lock:
            if self._is_shut_down:
                raise ClientShutDown(
                    "the instance has stopped, with its last user or by close(). Make a new "
                    "one, or keep it in a with statement while its users come and go"
                )
            if self._scheduler is None:
                self._start_tasks()
            self._user_count += 1

    def _start_tasks(self) -> None:
        scheduler = ThreadScheduler("rocketpoll routes and heartbeats", 2)
        try:
            scheduler.start_all()
        except BaseException:
            scheduler.stop(0)
            raise
        self._route_task, self._heartbeat_task = (
            RepeatedTask(scheduler, action, period_ms, pause_ms=HEARTBEAT_PAUSE_MS)
            for action, period_ms in (
                (self.routes.refresh_all, self._route_interval_ms),
                (self.heartbeat, self._heartbeat_interval_ms),
            )
        )
        self._route_task.start(self._route_interval_ms)
        self._heartbeat_task.start(self._heartbeat_interval_ms)
        self._scheduler = scheduler

    def stop(self) -> None:
        """Remove a user; the last one ends the instance."""
        with self._lock:
            self._user_count -= 1
            is_last = self._user_count <= 0
        if is_last:
            self.shutdown()

    def close(self) -> None:
        """Leave all groups and close all connections, for all users, within two seconds."""
        self._is_shut_down = True
        self._safe_stop.run()

    def shutdown(self) -> None:
        """Close all connections, for all users: RocketMQ's name of `close`."""
        self.close()

    def _stop_now(self) -> None:
        with self._lock:  # waits for a running `start`: its threads have to end as well
            scheduler = self._scheduler
        if scheduler is not None:
            scheduler.stop(0)
        self.requests.shut_down()
        producers, consumers = list(self._producers), dict(self._consumers)
        self._producers.clear()
        self._consumers.clear()
        self._unregister_groups(producers, consumers)
        for consumer in consumers.values():
            consumer.stop_threads()
        self._heartbeat_sender.stop()
        deadline = time.monotonic() + THREAD_JOIN_MS_MAX / 1000
        self.connections.shutdown(THREAD_JOIN_MS_MAX)
        self._heartbeat_sender.stop(max(0, int((deadline - time.monotonic()) * 1000)))
        if scheduler is not None:
            scheduler.stop(max(0, int((deadline - time.monotonic()) * 1000)))

    def _after_fork(self) -> None:
        """Become another client in the child process; the members remain the parent's."""
        self._lock = threading.RLock()
        # Users that started it, or entered its with statement, use it in the child as well.
        members = len(self._producers) + len(self._consumers)
        self._user_count = max(self._user_count - members, 0)
        self._scheduler = self._route_task = self._heartbeat_task = None
        self._producers.clear()
        self._consumers.clear()
        self.client_id = self._child_client_id()
        self._safe_stop = SafeStop("rocketpoll client ends", self._stop_now, SHUTDOWN_MS / 1000)

    def __enter__(self) -> ClientInstance:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- groups

    def register_consumer(self, group: str, consumer: RegisteredConsumer) -> None:
        """Include a consumer in all heartbeats from now on, and pass requests of brokers to it.

        Raises:
            MessageRejected: The name is not valid, or another consumer of this client has the
                group.
        """
        with self._lock:
            if check_group(group) in self._consumers:
                raise MessageRejected(
                    "consumer group",
                    "a group that no other consumer of this client has",
                    group,
                    "Make another client for another member of the group",
                )
            self._consumers[group] = consumer
        self._heartbeat_sender.on_groups_changed()
        self.heartbeat_soon()

    def unregister_consumer(self, group: str) -> None:
        """Leave a consumer group; the brokers make its other members rebalance."""
        if self._consumers.pop(group, None) is not None:
            self._unregister_groups([], [group])

    def register_producer(self, group: str, producer: RegisteredProducer | None = None) -> None:
        """Include a producer group in all heartbeats from now on.

        Args:
            group: Name of the producer group.
            producer: Answers the requests that brokers make of the group.

        Raises:
            MessageRejected: The name is not valid, or another producer of this client has the
                group.
        """
        with self._lock:
            if check_group(group) in self._producers:
                raise MessageRejected(
                    "producer group",
                    "a group that no other producer of this client has",
                    group,
                    "Share the producer, or make another client",
                )
            self._producers[group] = producer
        self._heartbeat_sender.on_groups_changed()
        self.heartbeat_soon()

    def unregister_producer(self, group: str) -> None:
        """Leave a producer group."""
        with self._lock:
            was_there = group in self._producers
            self._producers.pop(group, None)
        if was_there:
            self._unregister_groups([group], [])

    def refresh_routes_soon(self) -> None:
        """Fetch all known routes again, in another thread."""
        if self._route_task is not None:
            self._route_task.wake()

    # ---- heartbeats

    def heartbeat_soon(self) -> None:
        """Send a heartbeat at once, in another thread."""
        if self._heartbeat_task is not None:
            self._heartbeat_task.wake()

    def heartbeat(self) -> None:
        """Send a heartbeat with this client's groups to all brokers now.

        Return when they have answered, or after a second; slow brokers answer in the background.
        """
        data = self._heartbeat_data()
        if data.consumer_data_set or data.producer_data_set:
            self._heartbeat_sender.send(
                self.routes.addresses(masters_only=not data.consumer_data_set)
            )

    def ensure_registered(self, addresses: Iterable[str], timeout_ms: int) -> None:
        """Send a heartbeat to brokers that do not know this client's groups as they are now.

        Return when they have answered, at most after a second.

        Args:
            addresses: Addresses of the brokers.
            timeout_ms: Most milliseconds to wait, if less than a second.
        """
        self._heartbeat_sender.send_if_outdated(addresses, timeout_ms)

    @property
    def broker_versions(self) -> Mapping[str, int]:
        """The version in each broker's response to the last heartbeat, by address."""
        return self._heartbeat_sender.versions

    def _heartbeat_data(self) -> HeartbeatData:
        with self._lock:
            producers, consumers = list(self._producers), list(self._consumers.values())
        return HeartbeatData(
            client_id=self.client_id,
            producer_data_set=tuple(ProducerData(group_name=group) for group in producers),
            consumer_data_set=tuple(consumer.consumer_data() for consumer in consumers),
        )

    # ---- internal

    def _request_name_server(
        self, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        return self.connections.request(address, command, timeout_ms, is_broker=False)

    def _on_broker_ready(self, address: str) -> None:
        if not self._is_shut_down and (self._consumers or self._producers):
            self._heartbeat_sender.resend(address)

    def _on_connection_closed(self, address: str) -> None:
        """Send a heartbeat soon: a broker forgets a client whose connection ends."""
        self._heartbeat_sender.on_connection_closed(address)
        for consumer in list(self._consumers.values()):
            consumer.on_connection_closed(address)
        if not self._is_shut_down and (self._consumers or self._producers):
            self.heartbeat_soon()

    def _unregister_groups(self, producers: Iterable[str], consumers: Iterable[str]) -> None:
        self._heartbeat_sender.unregister(self.connections.ready_addresses(), producers, consumers)


def local_address(peers: Iterable[str]) -> str:
    """Return this machine's address on the way to the first reachable peer; nothing is sent."""
    for peer in peers:
        try:
            host, port = parse_address(peer)
            kind, *_, name = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(kind, socket.SOCK_DGRAM) as probe:
                probe.connect(name)
                return str(probe.getsockname()[0]).partition("%")[0]
        except (OSError, ClientError):  # noqa: PERF203  # another peer may be reachable
            continue
    return _LOOPBACK_ADDRESS


def require_topics(instance: ClientInstance, topics: Iterable[str]) -> None:
    """Fetch the routes of topics that are not known; an error suggests a similar topic."""
    with suggest_similar_topics(instance.name_servers):
        instance.routes.require(topics)


@contextmanager
def suggest_similar_topics(name_servers: NameServers) -> Iterator[None]:
    """Enter a context that adds the nearest topic name to RouteNotFound errors."""
    try:
        yield
    except TopicNotUsable:
        raise
    except RouteNotFound as error:
        if error.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):  # most groups have no such topic
            raise
        try:
            topics = name_servers.admin.topics()
        except ClientError:  # the first error is more useful
            topics = frozenset()
        hint = explain_missing_topic(error.topic, (t for t in topics if not is_system_topic(t)))
        if hint is None:
            raise
        raise RouteNotFound(error.topic, f"{error.why} ({hint})") from error
