"""RemotingClient: sends requests to an address, over the pool's one connection to it.

Requests are signed if the client has credentials, and use the best header codec that the peer
reads. That codec, and a rocketpoll broker's other extensions, are negotiated once on each
connection, before the first request to a broker. A RocketMQ broker does not know the request that
negotiates, and gets its own binary header from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rmq_spark.client.arguments import (
    check_kind,
    check_secret,
    explain_all_keywords,
    message_rejected,
)
from rmq_spark.client.errors import ConnectionClosed, ProtocolError, refusal
from rmq_spark.client.transport.connection import (
    CONNECT_TIMEOUT_MS,
    OnRequest,
    RemotingConnection,
    identity,
)
from rmq_spark.client.transport.connection_pool import (
    Agreement,
    ConnectionPool,
)
from rmq_spark.client.transport.pending_requests import PendingRequest, ResponseFuture
from rmq_spark.errors import WireError
from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.codes import RequestCode, ResponseCode, SerializeType
from rmq_spark.wire.extensions import Extension, ExtensionsHeader, LogLocation
from rmq_spark.wire.headers import exchange_of
from rmq_spark.wire.remoting.command import VERSION_5, RemotingCommand
from rmq_spark.wire.remoting.framing import Buffer
from rmq_spark.wire.remoting.header_msgpack import HAS_MSGPACK
from rmq_spark.wire.remoting.header_rocketmq import CODE_MAX

if TYPE_CHECKING:
    from rmq_spark.client.transport.tls.settings import TlsSettings

REQUEST_TIMEOUT_MS: Final = 3_000

_NOT_SIGNED_BEFORE_5: Final = ("_UNIQUE_KEY_QUERY",)
_NEGOTIATION_MARGIN_SECONDS: Final = 1.0


@explain_all_keywords
@dataclass(frozen=True, slots=True)
class Credentials:
    """The keys that a client signs its requests with, for brokers with access lists (ACL).

    Attributes:
        access_key: Name of the account.
        secret_key: Key of the signature; it is never sent.
        security_token: Token sent along with temporary keys.

    Raises:
        MessageRejected: A key cannot be encoded in UTF-8.
        TypeError: A key is not a str.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_secret("access_key", self.access_key, "billing")
        check_secret("secret_key", self.secret_key, "12345678")
        if self.security_token is not None:
            check_secret("security_token", self.security_token, "token")


class RemotingClient(ConnectionPool):
    """Sends requests over the connections of one client, which it makes as needed.

    Args:
        credentials: Keys that requests are signed with.
        tls: TLS settings of all connections.
        on_request: Called with each request that a broker makes of this client.
        on_ready: Called with the address of each broker once its connection is negotiated.
        on_closed: Called with the address of each connection that has ended.
        extensions: Extensions to negotiate with brokers.
        reads_itself: Whether the threads that wait for responses also read them.
        connect_timeout_ms: Milliseconds to wait for a connection.
        negotiation_timeout_ms: Milliseconds to wait for a broker's response about its extensions.
    """

    def __init__(
        self,
        *,
        credentials: Credentials | None = None,
        tls: TlsSettings | None = None,
        on_request: OnRequest | None = None,
        on_ready: Callable[[str], None] | None = None,
        on_closed: Callable[[str], None] | None = None,
        extensions: frozenset[Extension] = frozenset(Extension),
        reads_itself: bool = False,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        negotiation_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        self._credentials = credentials
        self._tls = None
        if tls is not None:
            from rmq_spark.client.transport.tls.client import TlsClient  # noqa: PLC0415  # brings OpenSSL
            from rmq_spark.client.transport.tls.settings import TlsSettings  # noqa: PLC0415  # needed for TLS only

            check_kind(
                "tls", tls, TlsSettings, "TlsSettings", "TlsSettings.of_files(ca_file='ca.pem')"
            )
            self._tls = TlsClient(tls)
        self._on_request = on_request
        self._extensions = extensions if HAS_MSGPACK else extensions - {Extension.MSGPACK_HEADER}
        self.reads_itself = reads_itself
        self._connect_timeout_ms = connect_timeout_ms
        self._negotiation_timeout_ms = negotiation_timeout_ms
        seconds_max = (
            connect_timeout_ms + negotiation_timeout_ms
        ) / 1000 + _NEGOTIATION_MARGIN_SECONDS
        super().__init__(on_ready, on_closed, wait_seconds_max=seconds_max)

    # ---- requests

    def request(
        self,
        address: str,
        command: RemotingCommand,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
        *,
        is_broker: bool = True,
    ) -> RemotingCommand:
        """Send a request, connecting first if necessary; return the response, with any code.

        The time to connect does not count. With a name server (``is_broker=False``) nothing is
        negotiated.
        """
        connection, command = self._prepare(address, command, is_broker=is_broker)
        return connection.request(command, timeout_ms)

    def request_async(
        self,
        address: str,
        command: RemotingCommand,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
        interpret: Callable[[RemotingCommand], Any] = identity,
        *,
        may_batch: bool = False,
        connection_only: RemotingConnection | None = None,
    ) -> ResponseFuture[Any]:
        """Send a request to a broker, connecting if necessary; return a future of its response.

        ``interpret`` converts the response to the result, or raises an error instead. With
        ``may_batch`` the request may wait to be written together with others. If
        ``connection_only`` is given, the request uses no other connection.
        """
        connection, command = self._prepare(address, command)
        if connection_only is not None and connection is not connection_only:
            raise ConnectionClosed(address, "another connection has replaced it")
        return connection.request_async(command, timeout_ms, interpret, may_batch=may_batch)

    def submit(self, address: str, pending: PendingRequest, command: RemotingCommand) -> None:
        """Send a request to a broker, gathered with others; ``pending`` gets the response."""
        connection, command = self._prepare(address, command)
        connection.submit(pending, command, may_batch=True)

    def send_one_way(
        self, address: str, command: RemotingCommand, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> None:
        """Send a request without a response to a broker."""
        connection, command = self._prepare(address, command)
        connection.send_one_way(command, timeout_ms)

    def connect(self, address: str, timeout_ms: int) -> None:
        """Connect to a broker and negotiate, if necessary, within a timeout in milliseconds.

        Raises:
            ConnectionFailed: No broker answers, or it takes longer; connecting then continues for
                other callers.
        """
        self.get_or_connect(address, seconds=timeout_ms / 1000)

    def agreement(self, address: str) -> Agreement:
        """Return the features agreed with a broker, connecting if necessary."""
        return self.get_or_connect(address).agreement or Agreement()

    def query_log_location(self, connection: RemotingConnection, nonce: str) -> LogLocation | None:
        """Ask a broker to write a proof with a nonce; return where its files are, or None."""
        header = self._query_extensions(connection, nonce)
        return None if header is None else header.log_location

    def known_agreement(self, address: str) -> Agreement:
        """Return the features agreed with a connected broker; none if it is not connected."""
        entry = self.get(address)
        return (entry.agreement if entry is not None else None) or Agreement()

    def peer_version(self, address: str) -> int:
        """Return the version in a peer's last response; 0 if it has sent nothing yet."""
        entry = self.get(address)
        return entry.connection.peer_version if entry is not None else 0

    def close(self, address: str, why: str = "this client closed it") -> None:
        """End the connection to an address, if there is one."""
        entry = self.get(address)
        if entry is not None:
            entry.connection.close(why)

    def idle_seconds(self, address: str) -> float:
        """Return the seconds since a peer last sent something; 0.0 if it is not connected."""
        entry = self.get(address)
        return entry.connection.idle_seconds if entry is not None else 0.0

    @property
    def unwritten_bytes(self) -> int:
        """Number of bytes of requests that are not written to sockets yet."""
        return sum(each.unwritten_bytes for each in self.connections())

    @property
    def thread_count(self) -> int:
        """Number of threads that connect, read and write."""
        own = sum(each.thread_count for each in self.connections())
        return own + self.connecting_count

    # ---- connecting, agreeing, signing

    def _connect(self, address: str) -> RemotingConnection:
        return RemotingConnection.connect(
            address,
            self._on_request,
            self._discard,
            reads_itself=self.reads_itself,
            timeout_ms=self._connect_timeout_ms,
            tls=self._tls,
        )

    def _prepare(
        self, address: str, command: RemotingCommand, *, is_broker: bool = True
    ) -> tuple[RemotingConnection, RemotingCommand]:
        connection, agreement = self.get_or_connect(address, is_broker=is_broker)
        if (
            is_broker
            and agreement is not None
            and agreement.serialize_type != command.serialize_type
            and command.code <= CODE_MAX
        ):
            command = command.with_serialize_type(agreement.serialize_type)
        return connection, self._sign(connection, command)

    def _negotiate(self, connection: RemotingConnection) -> Agreement:
        if not self._extensions:
            return Agreement()
        header = self._query_extensions(connection)
        if header is None:
            # A broker that refuses for another reason refuses the next request as well.
            return Agreement()
        agreed = header.extensions & self._extensions
        has_msgpack = Extension.MSGPACK_HEADER in agreed
        return Agreement(
            SerializeType.MSGPACK if has_msgpack else SerializeType.ROCKETMQ,
            agreed,
            header.born_host,
            header.store_host,
        )

    def _query_extensions(
        self, connection: RemotingConnection, nonce: str | None = None
    ) -> ExtensionsHeader | None:
        """Return a broker's response about its extensions; None if it refuses."""
        request_header = ExtensionsHeader.of(self._extensions)._replace(nonce=nonce)
        question = self._sign(connection, build_request(RequestCode.EXTENSIONS, request_header))
        response = connection.request(question, self._negotiation_timeout_ms)
        if response.code != ResponseCode.SUCCESS:
            return None
        header: ExtensionsHeader = response_header(
            connection.address, RequestCode.EXTENSIONS, response
        )
        return header

    def _sign(self, connection: RemotingConnection, command: RemotingCommand) -> RemotingCommand:
        credentials = self._credentials
        if credentials is None:
            return command
        from rmq_spark.wire.signature import signed_fields  # noqa: PLC0415  # brings OpenSSL

        is_before_5 = 0 < connection.peer_version < VERSION_5
        return command._replace(
            ext_fields=signed_fields(
                command.ext_fields,
                command.body,
                access_key=credentials.access_key,
                secret_key=credentials.secret_key,
                security_token=credentials.security_token,
                excluded=_NOT_SIGNED_BEFORE_5 if is_before_5 else (),
            )
        )


_Body = TypeVar("_Body")

SUCCESS: Final = frozenset({int(ResponseCode.SUCCESS)})

RequestFunction = Callable[[str, RemotingCommand, int], RemotingCommand]


def build_request(code: int, header: Any = None, body: object = b"") -> RemotingCommand:
    """Return a request; ``body`` is bytes, or an instance of a body class."""
    ext_fields: dict[str, str] = {}
    try:
        if header is not None:
            codec = exchange_of(code).request
            if codec is None:
                raise TypeError(f"request {code} has no header")
            ext_fields = codec.encode(header)
        data: Buffer = (
            body if isinstance(body, (bytes, bytearray, memoryview)) else encode_body(body)
        )
    except WireError as error:
        raise message_rejected(error) from error
    return RemotingCommand(code, ext_fields=ext_fields, body=data)


def check_response(
    address: str, request_code: int, response: RemotingCommand, accepted: Collection[int] = SUCCESS
) -> RemotingCommand:
    """Return the response if its code is accepted; raise the refusal otherwise."""
    if response.code not in accepted:
        raise refusal(response.code, response.remark, address, request_code)
    return response


def response_header(address: str, request_code: int, response: RemotingCommand) -> Any:
    """Return the typed header of a response."""
    codec = exchange_of(request_code).response
    if codec is None:
        raise TypeError(f"the answer to request {request_code} has no header")
    try:
        return codec.decode(response.ext_fields)
    except WireError as error:
        raise ProtocolError(address, str(error)) from error


def response_body(address: str, body_type: type[_Body], response: RemotingCommand) -> _Body:
    """Return the JSON body of a response, with all fields at their defaults if it has none."""
    try:
        return decode_body(body_type, response.body or b"{}")
    except WireError as error:
        raise ProtocolError(address, str(error)) from error


class TypedRequests:
    """Sends requests with typed headers and bodies, through a function that returns any response.

    Its methods raise an exception if the response is not a success.
    """

    def __init__(self, request: RequestFunction, timeout_ms: int) -> None:
        self.request = request
        self.timeout_ms = timeout_ms

    def call(
        self,
        address: str,
        code: int,
        header: Any = None,
        body: object = b"",
        *,
        accepted: Collection[int] = SUCCESS,
        timeout_ms: int | None = None,
    ) -> RemotingCommand:
        """Make a request and return the response."""
        command = build_request(code, header, body)
        response = self.request(
            address, command, self.timeout_ms if timeout_ms is None else timeout_ms
        )
        return check_response(address, code, response, accepted)

    def header(self, address: str, code: int, header: Any = None) -> Any:
        """Make a request and return the typed header of the response."""
        return response_header(address, code, self.call(address, code, header))

    def body(
        self,
        body_type: type[_Body],
        address: str,
        code: int,
        header: Any = None,
        timeout_ms: int | None = None,
    ) -> _Body:
        """Make a request and return the JSON body of the response."""
        response = self.call(address, code, header, timeout_ms=timeout_ms)
        return response_body(address, body_type, response)
