"""RequestDispatcher: maps a request's code to its handler, and any exception to a response.

Only here does an exception become a response, or suspend a send until its topic is saved.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, TypeAlias

from rmq_spark.errors import WireError
from rmq_spark.wire.codes import CommandFlag, RequestCode, ResponseCode
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.remoting.framing import Buffer

from ..auth.access_control import AccessControl
from ..common.channel import Channel, ResponseSteps
from ..common.log_limit import LogLimit, printable
from ..common.recent_losses import LossKind, RecentLosses
from ..common.request_content import NotAuthenticated
from ..state.tables.table import TooMany
from ..store.errors import Degradations, StoreError, describe_error, is_transient
from .request import (
    Handler,
    HandlerResult,
    Handlers,
    RequestRejected,
    TopicNotSaved,
    not_supported,
    system_error,
)

SuspendSend: TypeAlias = Callable[[Channel, RemotingCommand, str], "RemotingCommand | None"]

_log = logging.getLogger(__name__)
UNKNOWN_REQUEST: Final = -1
"""The code under which requests without a handler are counted, because clients may invent codes."""
_EXPECTED_CODES: Final = frozenset(
    [
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.QUERY_NOT_FOUND,
    ]
)
"""Response codes that are not refusals: the request was processed, and may have found nothing."""
_ONE_WAY = CommandFlag.ONE_WAY.value
_MESSAGE_BODY_CODES: Final = frozenset(
    [
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.APPEND_CHUNK,
        RequestCode.STAGE_CHUNK,
    ]
)
"""Requests whose bodies are messages, which have their own limits; all other bodies are JSON."""

_CHECKED_AT_ONCE_BYTES_MAX: Final = 16_384
"""Larger JSON bodies are checked in steps, because they may name many resources."""

_CLIENT_ID: Final = re.compile(rb'"client_?id"\s*:\s*"([^"\\]{1,200})"', re.IGNORECASE)
_CLIENT_ID_WITHIN_BYTES: Final = 65_536
_REMARK_CHARACTERS_MAX: Final = 130
_LINE_CHARACTERS_MAX: Final = 154
"""The maximum length of a refusal and its remark on one line; the log's prefix makes it 200."""

_RECOVERY_SECONDS: Final = 10.0
"""A code is no longer degraded after this time without a degraded request.

During a shortage of disk space or descriptors, some requests succeed and others fail.
"""


class RequestDispatcher:
    """The table of all handlers of a broker; call it with a request."""

    def __init__(
        self,
        families: Iterable[Handlers],
        json_body_bytes_max: int,
        suspend_send: SuspendSend,
        clock: Callable[[], float] = time.monotonic,
        client_id_of: Callable[[Channel], str | None] = lambda _: None,
        access: AccessControl | None = None,
        losses: RecentLosses | None = None,
    ) -> None:
        """Build the table from each processor's handlers; a code may have only one.

        JSON bodies larger than ``json_body_bytes_max`` are refused, because parsing them would
        delay all other clients. ``suspend_send`` is called with a request whose topic is not saved,
        and may return a refusal. ``client_id_of`` returns a connection's client id for the log.
        ``access`` checks each request before its handler; without it nothing is checked.
        ``losses`` records refusals at a limit.
        """
        self._losses = losses
        self._access = access or AccessControl()
        self._json_body_bytes_max = json_body_bytes_max
        self._suspend_send = suspend_send
        self._clock = clock
        self._client_id_of = client_id_of
        self._degradations = Degradations[int]()
        """Failing disks and shortages that refuse requests for now, by request code."""
        self._degraded_at: dict[int, float] = {}
        self._background_codes: set[int] = set()
        self._refusal_log = LogLimit()
        self.refused: Counter[tuple[int, int]] = Counter()
        """The number of refused requests, by request code and response code."""
        self._handlers: dict[int, Handler] = {}
        for family in families:
            for code, handler in family.items():
                if code in self._handlers:
                    raise ValueError(f"request code {code} has two handlers")
                self._handlers[int(code)] = handler

    @property
    def codes(self) -> frozenset[int]:
        """The codes that have a handler."""
        return frozenset(self._handlers)

    def __call__(self, connection: Channel, request: RemotingCommand) -> HandlerResult:
        """Dispatch a request to its handler, and return the handler's answer or a refusal."""
        handler = self._handlers.get(request.code, _not_supported)
        if (
            len(request.body) > self._json_body_bytes_max
            and request.code not in _MESSAGE_BODY_CODES
        ):
            handler = self._refuse_body
        return self.run_checked(handler, connection, request)

    def run_checked(
        self, handler: Handler, connection: Channel, request: RemotingCommand
    ) -> HandlerResult:
        """Run a handler if the client may send the request; return as `__call__` does."""
        if self._access.is_enabled:
            handler = partial(self._check_and_handle, handler)
        return self.run_handler(handler, connection, request)

    def dispatch_as(
        self, code: int, connection: Channel, request: RemotingCommand
    ) -> HandlerResult:
        """Run the handler of another code; the client needs the rights for the request's code."""
        handler, other = self._handlers[code], request._replace(code=code)

        def handle(connection: Channel, _: RemotingCommand) -> HandlerResult:
            self._access.check(connection, request)
            return handler(connection, other)

        return self.run_handler(handle, connection, other)

    def _check_and_handle(
        self, handler: Handler, connection: Channel, request: RemotingCommand
    ) -> HandlerResult:
        if handler in (_not_supported, self._refuse_body):  # these handlers only refuse
            self._access.authenticate(connection, request)
        elif (
            len(request.body) > _CHECKED_AT_ONCE_BYTES_MAX
            and request.code not in _MESSAGE_BODY_CODES
        ):
            return self._check_in_steps(handler, connection, request)
        else:
            self._access.check(connection, request)
        return handler(connection, request)

    def _check_in_steps(
        self, handler: Handler, connection: Channel, request: RemotingCommand
    ) -> ResponseSteps:
        yield from self._access.check_in_steps(connection, request)
        result = handler(connection, request)
        if result is None or isinstance(result, RemotingCommand):
            return result
        return (yield from result)

    def run_handler(
        self, handler: Handler, connection: Channel, request: RemotingCommand
    ) -> HandlerResult:
        """Run a handler and turn its exceptions into responses; return as `__call__` does."""
        try:
            result = handler(connection, request)
        except Exception as error:  # noqa: BLE001  # one request must not end the broker
            result = self.error_response(connection, request, error)
        else:
            if not (result is None or isinstance(result, RemotingCommand)):
                return self._wrap_steps(connection, request, result)
            self._record(connection, request, result)
        return None if request.flag & _ONE_WAY else result

    def _record(
        self, connection: Channel, request: RemotingCommand, response: RemotingCommand | None
    ) -> None:
        """Record a handler's answer; None means success, unless the response comes later."""
        if response is not None or request.code not in self._background_codes:
            self._record_success(request.code)
        if response is not None and response.code:
            self._record_refusal(connection, request, response)

    def _record_refusal(
        self,
        connection: Channel,
        request: RemotingCommand,
        response: RemotingCommand,
        error: Exception | None = None,
    ) -> None:
        if response.code not in _EXPECTED_CODES:
            known = request.code if request.code in self._handlers else UNKNOWN_REQUEST
            self.refused[known, response.code] += 1
            limit = error.__cause__ if isinstance(error, RequestRejected) else error
            if self._losses is not None and isinstance(limit, TooMany):
                self._losses.record(LossKind.LIMIT_REACHED, str(limit))
            if not isinstance(error, NotAuthenticated):
                is_unreadable = isinstance(error, WireError) or known == RequestCode.HEART_BEAT
                level = logging.WARNING if is_unreadable else logging.INFO
                self._log_refusal(level, connection, request, response)

    def _log_refusal(
        self, level: int, connection: Channel, request: RemotingCommand, response: RemotingCommand
    ) -> None:
        """Log a refusal, once a minute for each address, request code and response code.

        A refused client often reports nothing to its user: its consumers just receive nothing.
        """
        host = str(connection.remote_host)
        kind = host.rpartition(":")[0], request.code, response.code
        suppressed = self._refusal_log.admit(kind, self._clock())
        if suppressed is None:
            return
        client_id = self._client_id_of(connection) or _find_client_id(request.body)
        refusal = (
            f"{_name_of(RequestCode, request.code)} of {host}, client id {client_id}, refused with "
            f"{_name_of(ResponseCode, response.code)}"
        )
        more = f" ({suppressed} more of this kind since the last line)" if suppressed else ""
        remark = printable((response.remark or "")[:_REMARK_CHARACTERS_MAX])
        if len(refusal) + len(remark) + len(more) <= _LINE_CHARACTERS_MAX:
            _log.log(level, "%s", f"{refusal}: {remark}{more}")
        else:
            _log.log(level, "%s", f"{refusal}{more}")
            _log.log(level, "%s", f"{host}: {remark}")

    def _wrap_steps(
        self, connection: Channel, request: RemotingCommand, steps: ResponseSteps
    ) -> ResponseSteps:
        try:
            response = yield from steps
        except Exception as error:  # noqa: BLE001  # one request must not end the broker
            response = self.error_response(connection, request, error)
        else:
            self._record(connection, request, response)
        return None if request.flag & _ONE_WAY else response

    def _record_success(self, code: int) -> None:
        """Record that a request succeeded; others with its code may still be degraded."""
        degraded_at = self._degraded_at.get(code)
        if degraded_at is not None and self._clock() - degraded_at >= _RECOVERY_SECONDS:
            del self._degraded_at[code]
            self._degradations.end(code)

    def _refuse_body(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        raise system_error(
            f"the body of request {request.code} has {len(request.body)} bytes, over "
            f"{self._json_body_bytes_max} (maxJsonBodyBytes)"
        )

    def wrap_errors(
        self, connection: Channel, request: RemotingCommand, steps: ResponseSteps
    ) -> ResponseSteps:
        """Wrap response steps so that an exception becomes a refusal.

        Use it for steps that answer after their handler has returned None, which then is not
        recorded as a success.
        """
        self._background_codes.add(request.code)
        return self._wrap_steps(connection, request, steps)

    def error_response(
        self, connection: Channel, request: RemotingCommand, error: Exception
    ) -> RemotingCommand | None:
        """Return the response for an exception; None if the request waits for its topic."""
        if isinstance(error, TopicNotSaved):
            response = self._suspend_send(connection, request, error.topic)
        else:
            response = self._response_for(connection, request, error)
        if response is not None:
            self._record_refusal(connection, request, response, error)
        return response

    def _response_for(
        self, connection: Channel, request: RemotingCommand, error: Exception
    ) -> RemotingCommand:
        if isinstance(error, RequestRejected):
            return request.respond(error.code, error.remark)
        if isinstance(error, (WireError, TooMany)):
            return request.respond(ResponseCode.SYSTEM_ERROR, str(error))
        if isinstance(error, StoreError):
            return request.respond(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
        # `describe_error` leaves out the file name in the system's message
        if isinstance(error, OSError) or is_transient(error):
            self._degraded_at[request.code] = self._clock()
            self._degradations.begin(request.code, f"requests {request.code} are refused", error)
            return request.respond(ResponseCode.SYSTEM_BUSY, describe_error(error))
        _log.error("request %d of %s failed", request.code, connection.remote_host, exc_info=error)
        return request.respond(ResponseCode.SYSTEM_ERROR, "internal error; the broker's log has it")


def _name_of(codes: type[RequestCode | ResponseCode], number: int) -> str:
    return codes(number).name if number in codes._value2member_map_ else f"request {number}"


def _find_client_id(body: Buffer) -> str:
    """Return the client id in a body that may be unreadable, or a placeholder."""
    found = _CLIENT_ID.search(bytes(body[:_CLIENT_ID_WITHIN_BYTES]))
    return printable(found[1].decode(errors="replace")) if found else "unknown"


def _not_supported(_: Channel, request: RemotingCommand) -> RemotingCommand:
    raise not_supported(request)
