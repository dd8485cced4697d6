"""Connections: one to each address, made when it is needed and again after it has ended.

Requests pass here on their way: signed, where the client has credentials, and in the best header that the
peer reads. Which that is, and what else a rocketpoll broker offers, is asked once on each connection, before
the first request to a broker; a RocketMQ broker does not know the question, and is spoken to in its own
binary header from then on. It knows neither routes nor what requests mean.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rmq_spark.client.calls import command_of, header_of
from rmq_spark.client.connection import CONNECT_TIMEOUT_MS, Connection, OnRequest, as_it_is
from rmq_spark.client.errors import ClientShutDown, ConnectionFailed
from rmq_spark.client.waiters import Answer, Waiter
from rmq_spark.wire.codes import RequestCode, ResponseCode, SerializeType
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.extensions import Extension, ExtensionsHeader
from rmq_spark.wire.header_msgpack import HAS_MSGPACK

if TYPE_CHECKING:
    from rmq_spark.client.tls_settings import TlsSettings

REQUEST_TIMEOUT_MS: Final = 3_000

_VERSION_5: Final = 413
_NOT_SIGNED_BEFORE_5: Final = ("_UNIQUE_KEY_QUERY",)
_PATIENCE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who the client says it is, to brokers with access lists."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)


class Agreement(NamedTuple):
    """What a broker and this client may use towards each other.

    The hosts are those that records must have which the client encodes itself.
    """

    serialize_type: SerializeType = SerializeType.ROCKETMQ
    extensions: frozenset[Extension] = frozenset()
    born_host: str | None = None
    store_host: str | None = None


class _Line(NamedTuple):
    """A connection, and what was agreed on it: asked by the first who needs it, the others wait for that."""

    connection: Connection
    agreeing: threading.Lock
    agreed: list[Agreement]


class Connections:
    """See the module. All methods may be called from any thread."""

    def __init__(
        self,
        *,
        credentials: Credentials | None = None,
        tls: TlsSettings | None = None,
        on_request: OnRequest | None = None,
        on_closed: Callable[[str], None] | None = None,
        extensions: frozenset[Extension] = frozenset(Extension),
        reads_itself: bool = False,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
    ) -> None:
        """``on_closed`` is told the address; ``extensions`` are those that brokers are asked for.

        Raises:
            TlsRejected: These settings cannot work.
        """
        self._credentials = credentials
        self._tls = None
        if tls is not None:
            from rmq_spark.client.tls_client import TlsClient  # noqa: PLC0415  # brings OpenSSL

            self._tls = TlsClient(tls)
        self._on_request = on_request
        self._on_closed = on_closed
        self._extensions = extensions if HAS_MSGPACK else extensions - {Extension.MSGPACK_HEADER}
        self.reads_itself = reads_itself
        self._connect_timeout_ms = connect_timeout_ms
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}
        self._dialled: dict[str, Future[_Line]] = {}
        self._is_shut_down = False

    # ---- asking

    def request(
        self,
        address: str,
        command: RemotingCommand,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
        *,
        is_broker: bool = True,
    ) -> RemotingCommand:
        """Ask, and wait for the answer, whatever its code is; connecting and agreeing come on top.

        ``is_broker=False`` asks a name server: there is nothing to agree on.
        """
        connection, command = self._prepared(address, command, is_broker=is_broker)
        return connection.request(command, timeout_ms)

    def request_async(
        self,
        address: str,
        command: RemotingCommand,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
        interpret: Callable[[RemotingCommand], Any] = as_it_is,
        *,
        may_gather: bool = False,
    ) -> Answer[Any]:
        """Ask a broker; see `Connection.request_async`. It connects, if need be, before it comes back."""
        connection, command = self._prepared(address, command)
        return connection.request_async(command, timeout_ms, interpret, may_gather=may_gather)

    def ask(self, address: str, waiter: Waiter, command: RemotingCommand) -> None:
        """Ask a broker, together with what others ask soon; the waiter is told by a thread that reads."""
        connection, command = self._prepared(address, command)
        connection.ask(waiter, command, may_gather=True)

    def send_one_way(
        self, address: str, command: RemotingCommand, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> None:
        """Tell a broker something that is not answered."""
        connection, command = self._prepared(address, command)
        connection.send_one_way(command, timeout_ms)

    def agreement(self, address: str) -> Agreement:
        """What a broker and this client may use towards each other."""
        return self._agreement(self._line(address))

    def peer_version(self, address: str) -> int:
        """The version that a peer has last called its own; 0 before it has said anything."""
        line = self._lines.get(address)
        return line.connection.peer_version if line is not None else 0

    def local_address(self, address: str) -> str:
        """This machine's own address on the way to a peer."""
        return self._line(address).connection.local_address

    def close(self, address: str, why: str = "it was closed here") -> None:
        """End the connection to one address, if there is one."""
        line = self._lines.get(address)
        if line is not None:
            line.connection.close(why)

    def is_ready(self, address: str) -> bool:
        """Whether a broker can be asked at once: connected, and agreed with."""
        line = self._lines.get(address)
        return line is not None and bool(line.agreed) and not line.connection.is_closed

    def agreed_addresses(self) -> tuple[str, ...]:
        """The brokers that are connected now."""
        with self._lock:
            lines = list(self._lines.items())
        return tuple(address for address, line in lines if line.agreed and not line.connection.is_closed)

    def shutdown(self) -> None:
        """End them all; what is asked afterwards is refused."""
        with self._lock:
            self._is_shut_down = True
            lines = list(self._lines.values())
        for line in lines:
            line.connection.close("the client was shut down")

    # ---- connecting

    def _line(self, address: str) -> _Line:
        line = self._lines.get(address)
        if line is not None:
            line.connection.notice_end()
            if not line.connection.is_closed:
                return line
        with self._lock:
            if self._is_shut_down:
                raise ClientShutDown
            line = self._lines.get(address)
            if line is not None and not line.connection.is_closed:
                return line
            dialled = self._dialled.get(address)
            is_mine = dialled is None
            if dialled is None:
                dialled = self._dialled[address] = Future()
        if is_mine:
            self._dial(address, dialled)
        try:
            return dialled.result(self._connect_timeout_ms / 1000 + _PATIENCE_SECONDS)
        except FutureTimeout as error:
            why = f"somebody else's try to connect has taken over {self._connect_timeout_ms} ms"
            raise ConnectionFailed(address, why) from error

    def _dial(self, address: str, dialled: Future[_Line]) -> None:
        """Connect; others who want the same connection meanwhile get the same result, also a failure.

        What is meant for this thread, as Ctrl-C, they do not get, but that it has failed.
        """
        try:
            connection = Connection.connect(
                address,
                self._on_request,
                self._forget,
                reads_itself=self.reads_itself,
                timeout_ms=self._connect_timeout_ms,
                tls=self._tls,
            )
        except BaseException as error:  # the others must hear of it, whatever it is
            with self._lock:
                del self._dialled[address]
            if isinstance(error, ConnectionFailed):
                dialled.set_exception(error)
                return
            why = f"who was connecting was stopped by {type(error).__name__}"
            dialled.set_exception(ConnectionFailed(address, why))
            raise
        line = _Line(connection, threading.Lock(), [])
        with self._lock:
            del self._dialled[address]
            is_late = self._is_shut_down
            self._lines[address] = line
        if is_late:
            connection.close("the client was shut down")
        dialled.set_result(line)

    def _forget(self, connection: Connection) -> None:
        with self._lock:
            line = self._lines.get(connection.address)
            if line is not None and line.connection is connection:
                del self._lines[connection.address]
        if self._on_closed is not None:
            self._on_closed(connection.address)

    # ---- agreeing, signing

    def _prepared(
        self, address: str, command: RemotingCommand, *, is_broker: bool = True
    ) -> tuple[Connection, RemotingCommand]:
        line = self._line(address)
        if is_broker:
            agreement = self._agreement(line)
            if agreement.serialize_type != command.serialize_type:
                command = command.with_serialize_type(agreement.serialize_type)
        return line.connection, self._signed(line.connection, command)

    def _agreement(self, line: _Line) -> Agreement:
        if line.agreed:
            return line.agreed[0]
        with line.agreeing:
            if not line.agreed:
                line.agreed.append(self._agree(line.connection))
            return line.agreed[0]

    def _agree(self, connection: Connection) -> Agreement:
        if not self._extensions:
            return Agreement()
        question = command_of(RequestCode.EXTENSIONS, ExtensionsHeader.of(self._extensions))
        answer = connection.request(self._signed(connection, question), REQUEST_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            # A broker that refuses for another reason says so again, to what is asked next.
            return Agreement()
        header: ExtensionsHeader = header_of(connection.address, RequestCode.EXTENSIONS, answer)
        agreed = header.extensions & self._extensions
        has_msgpack = Extension.MSGPACK_HEADER in agreed
        return Agreement(
            SerializeType.MSGPACK if has_msgpack else SerializeType.ROCKETMQ,
            agreed,
            header.born_host,
            header.store_host,
        )

    def _signed(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        credentials = self._credentials
        if credentials is None:
            return command
        from rmq_spark.wire.signature import signed_fields  # noqa: PLC0415  # brings OpenSSL: when first needed

        is_before_5 = 0 < connection.peer_version < _VERSION_5
        return command._replace(
            ext_fields=signed_fields(
                command.ext_fields,
                command.body,
                access_key=credentials.access_key,
                secret_key=credentials.secret_key,
                security_token=credentials.security_token,
                without=_NOT_SIGNED_BEFORE_5 if is_before_5 else (),
            )
        )
