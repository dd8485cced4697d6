"""RequestDispatcher: from a request's code to its handler, and from whatever that raises to an answer.

The only place where an exception becomes a response. It knows no processor, only their handlers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from broker.connection import Connection
from broker.processor.request import Handler, Handlers, RequestRejected
from broker.store.errors import StoreError
from rmq_spark.errors import WireError
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.flags import CommandFlag

_log = logging.getLogger(__name__)
_ONE_WAY = CommandFlag.ONE_WAY.value


class RequestDispatcher:
    """All handlers of a broker."""

    def __init__(self, families: Iterable[Handlers]) -> None:
        """Each processor's; no code may have two."""
        self._handlers: dict[int, Handler] = {}
        for family in families:
            for code, handler in family.items():
                if code in self._handlers:
                    raise ValueError(f"request code {code} has two handlers")
                self._handlers[int(code)] = handler

    @property
    def codes(self) -> frozenset[int]:
        """The requests that are understood."""
        return frozenset(self._handlers)

    def __call__(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """The answer; None if it comes later, or if none is wanted."""
        handler = self._handlers.get(request.code, _not_supported)
        return self.guarded(handler, connection, request)

    def guarded(
        self, handler: Handler, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | None:
        """What a handler answers, or what its exception is to the client."""
        try:
            answer = handler(connection, request)
        except RequestRejected as rejection:
            answer = request.respond(rejection.code, rejection.remark)
        except WireError as error:
            answer = request.respond(ResponseCode.SYSTEM_ERROR, str(error))
        except StoreError as error:
            answer = request.respond(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
        except Exception:  # noqa: BLE001  # one request must not end the broker, nor leave its client waiting
            _log.exception("request %d of %s failed", request.code, connection.remote_host)
            answer = request.respond(ResponseCode.SYSTEM_ERROR, "internal error; the broker's log has it")
        return None if request.flag & _ONE_WAY else answer


def _not_supported(_: Connection, request: RemotingCommand) -> RemotingCommand:
    remark = f" request type {request.code} not supported"
    return request.respond(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
