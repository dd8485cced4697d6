"""Console server: listens on the port, and passes requests and responses as values.

    GET and HEAD for pages, POST with a small form for changes; other methods and large requests
    are refused

Each response has strict headers: a browser runs only this site's script and loads only its style,
shows no page in a frame of another site, and caches no page.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote

from rmq_spark.cli.console.markup.html import is_local
from rmq_spark.http_server import BoundedHttpServer, QuietHandler

HTML_TYPE: Final = "text/html; charset=utf-8"
TEXT_TYPE: Final = "text/plain; charset=utf-8"
_FORM_TYPE: Final = "application/x-www-form-urlencoded"
_FORM_BYTES_MAX: Final = 1024 * 1024
"""Room for a body of 256 KiB; a form may encode each byte in three characters."""
_DISCARDED_BYTES_MAX: Final = 16 * _FORM_BYTES_MAX
_DISCARDED_PIECE_BYTES: Final = 64 * 1024
_FIELDS_MAX: Final = 500
_CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": _CONTENT_POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # without a policy, browsers omit the origin of a form
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """A request: the segments of its path, its parameters, and the fields of its form."""

    method: str
    segments: tuple[str, ...]
    query: tuple[tuple[str, str], ...] = ()
    form: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    client: str = ""

    def parameter(self, name: str) -> str:
        """Return a parameter of the query without surrounding spaces; empty if there is none."""
        return dict(self.query).get(name, "").strip(" ")

    def field(self, name: str) -> str:
        """Return a field of the form without surrounding spaces; empty if there is none."""
        return dict(self.form).get(name, "").strip(" ")


class Response(NamedTuple):
    """A response; ``extra_headers`` are headers besides those that each response has."""

    status: HTTPStatus
    body: bytes
    content_type: str = HTML_TYPE
    extra_headers: tuple[tuple[str, str], ...] = ()


RequestHandler = Callable[[Request], Response]


def redirect(location: str, *headers: tuple[str, str]) -> Response:
    """Return the response that redirects to another path of this site, by GET."""
    if not is_local(location):
        raise ValueError(f"not a path of this site: {location!r}")
    return Response(HTTPStatus.SEE_OTHER, b"", extra_headers=(("Location", location), *headers))


class ConsoleServer(BoundedHttpServer):
    """An HTTP server that passes all requests to one function."""

    def __init__(self, host: str, port: int, handle: RequestHandler) -> None:
        self.handle = handle
        super().__init__(host, port, _ConsoleHandler)


class _MalformedRequest(Exception):
    """A malformed request; carries the status and a line of text."""


class _ConsoleHandler(QuietHandler):
    server: ConsoleServer
    server_version = "rocketpoll"
    sys_version = ""

    def do_GET(self) -> None:  # noqa: N802  # http.server's name
        self._handle("GET")

    def do_HEAD(self) -> None:  # noqa: N802  # http.server's name
        self._handle("GET")

    def do_POST(self) -> None:  # noqa: N802  # http.server's name
        self._handle("POST")

    def _handle(self, method: str) -> None:
        try:
            response = self.server.handle(self._parse_request(method))
        except TimeoutError:  # the form has not arrived in time: nobody waits for a response
            raise
        except _MalformedRequest as refusal:
            status, text = refusal.args
            response = Response(status, f"{text}\n".encode(), TEXT_TYPE)
        except Exception:  # noqa: BLE001  # a bug must not end the server
            _log.exception("%s %r", method, self.path)
            text = "the console failed to answer this request. See its log\n"
            response = Response(HTTPStatus.INTERNAL_SERVER_ERROR, text.encode(), TEXT_TYPE)
        self._send(response)

    def _parse_request(self, method: str) -> Request:
        path, _, query = self.path.partition("?")
        return Request(
            method,
            tuple(unquote(each) for each in path.split("/") if each),
            _parse_pairs(query),
            self._read_form() if method == "POST" else (),
            {name.lower(): value for name, value in self.headers.items()},
            str(self.client_address[0]),
        )

    def _read_form(self) -> tuple[tuple[str, str], ...]:
        if self.headers.get_content_type() != _FORM_TYPE:
            raise _MalformedRequest(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"not a form. Send {_FORM_TYPE}"
            )
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise _MalformedRequest(HTTPStatus.LENGTH_REQUIRED, "no length. Send Content-Length")
        if len(length) > 9 or int(length) > _FORM_BYTES_MAX:
            self._discard(min(int(length), _DISCARDED_BYTES_MAX))
            raise _MalformedRequest(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the form is too large. Send at most {_FORM_BYTES_MAX} bytes. For a large body "
                "use rocketpoll produce TOPIC FILE --whole",
            )
        form = self.rfile.read(int(length)).decode("latin-1")
        self.mark_complete()
        return _parse_pairs(form)

    def _discard(self, count: int) -> None:
        """Read unused bytes, because a client that is cut off while it sends sees no response."""
        while count > 0 and (piece := self.rfile.read(min(count, _DISCARDED_PIECE_BYTES))):
            count -= len(piece)

    def _send(self, response: Response) -> None:
        headers = {**_HEADERS, **dict(response.extra_headers)}
        self.send_body(response.status, response.content_type, response.body, *headers.items())

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002  # http.server's signature
        status = HTTPStatus(code)
        self.command = getattr(self, "command", None) or ""
        self._send(Response(status, f"{message or status.phrase}\n".encode(), TEXT_TYPE))


def _parse_pairs(text: str) -> tuple[tuple[str, str], ...]:
    try:
        return tuple(parse_qsl(text, keep_blank_values=True, max_num_fields=_FIELDS_MAX))
    except ValueError as error:
        raise _MalformedRequest(
            HTTPStatus.BAD_REQUEST, f"too many fields. Send at most {_FIELDS_MAX}"
        ) from error
