"""Guard: who may read the console, and who may change something with it.

    any request   names this machine as its host: a page of another site that has its name lead here
                  (DNS rebinding) gets nothing
    reads         are open on a loopback address; elsewhere they need a session
    writes        need that writes are on, a session, POST, the session's CSRF token, and an origin
                  that is this site

A session begins with the token that the program prints when it starts, and lives in memory. This
module must not know pages.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from rmq_spark.cli.console.server import Request

SESSION_SECONDS: Final = 12 * 3_600
SESSIONS_MAX: Final = 64
_SUBMITTED_MARKS_MAX: Final = 10_000
_COOKIE: Final = "rocketpoll-console"
_SAME_SITE: Final = ("same-origin", "none")


class PageError(Exception):
    """A request that is not answered; says why, and what to do."""

    def __init__(self, status: HTTPStatus, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.status = status
        self.problem = problem
        self.remedy = remedy


class Session(NamedTuple):
    """A browser that has shown the token, until a moment of the monotonic clock (in seconds)."""

    session_id: str
    csrf: str
    expires_at: float


class Guard:
    """Decides about requests, and keeps the sessions."""

    def __init__(
        self,
        *,
        token: str | None,
        has_public_reads: bool,
        is_writable: bool,
        host_names: Collection[str] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without sessions.

        Args:
            token: Secret with which a session begins; None if nobody can begin one.
            has_public_reads: Whether all who reach the port may read.
            is_writable: Whether sessions may change something.
            host_names: Names of hosts by which the console is reached, besides addresses.
            now: The monotonic clock, in seconds.
        """
        self.has_public_reads = has_public_reads
        self.is_writable = is_writable
        self._token = token
        self._host_names = {"localhost", *(each.lower() for each in host_names)}
        self._now = now
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._submitted_marks: deque[str] = deque(maxlen=_SUBMITTED_MARKS_MAX)

    def check_host(self, request: Request) -> None:
        """Let pass what names a host of this machine.

        Raises:
            Refused: The request names another host.
        """
        given = request.headers.get("host", "")
        name = _host_of(given)
        if name is None or not (name in self._host_names or _is_address(name)):
            raise PageError(
                HTTPStatus.FORBIDDEN,
                f"This console does not answer for the host {given[:100] or '(none)'}.",
                "If you reach it by a name, start it with --allow-host NAME.",
            )

    def session_of(self, request: Request) -> Session | None:
        """Return the session that a request belongs to, if it has not ended."""
        try:
            found = SimpleCookie(request.headers.get("cookie", "")).get(_cookie_name(request))
        except CookieError:
            return None
        if found is None:
            return None
        with self._lock:
            session = self._sessions.get(found.value)
        return session if session is not None and session.expires_at > self._now() else None

    def sign_in(self, request: Request, token: str) -> tuple[str, str]:
        """Begin a session for who knows the token, and return the header that tells its browser.

        Raises:
            Refused: The token is another, or the form came from another site.
        """
        self._check_origin(request)
        if self._token is None or not hmac.compare_digest(token.encode(), self._token.encode()):
            raise PageError(
                HTTPStatus.FORBIDDEN,
                "That is not the token.",
                "The console prints it when it starts; each start has another.",
            )
        session = Session(
            secrets.token_urlsafe(32), secrets.token_urlsafe(32), self._now() + SESSION_SECONDS
        )
        with self._lock:
            while len(self._sessions) >= SESSIONS_MAX:
                del self._sessions[next(iter(self._sessions))]
            self._sessions[session.session_id] = session
        return _cookie(request, session.session_id, SESSION_SECONDS)

    def sign_out(self, request: Request, session: Session) -> tuple[str, str]:
        """End a session, and return the header that has its browser forget it."""
        with self._lock:
            self._sessions.pop(session.session_id, None)
        return _cookie(request, "", 0)

    def check_form(self, request: Request, session: Session | None) -> Session:
        """Let pass a form that a page of this session has sent, and return the session.

        Raises:
            Refused: There is no session, or another site has made the form.
        """
        self._check_origin(request)
        if session is None:
            raise PageError(
                HTTPStatus.FORBIDDEN, "You are not signed in.", "Sign in with the token first."
            )
        if not hmac.compare_digest(request.field("csrf").encode(), session.csrf.encode()):
            raise PageError(
                HTTPStatus.FORBIDDEN,
                "This form is not of your session.",
                "Go back, load the page again, and send it from there.",
            )
        return session

    def check_not_resubmitted(self, request: Request) -> None:
        """Let a form pass once: pages give each of them a mark of its own.

        Raises:
            Refused: The form was sent before, or has no mark.
        """
        mark = request.field("mark")
        with self._lock:
            if mark and mark not in self._submitted_marks:
                self._submitted_marks.append(mark)
                return
        raise PageError(
            HTTPStatus.CONFLICT,
            "This form was sent before.",
            "It was carried out then, and not again. Go back, and load the page again.",
        )

    def check_writable(self) -> None:
        """Let changes pass where the console was started for them.

        Raises:
            Refused: The console only reads.
        """
        if not self.is_writable:
            raise PageError(
                HTTPStatus.FORBIDDEN,
                "This console only reads.",
                "Start it with --writes to change something.",
            )

    def _check_origin(self, request: Request) -> None:
        origin = request.headers.get("origin")
        site = request.headers.get("sec-fetch-site", "none")
        host = request.headers.get("host", "").lower()
        is_other = origin is not None and urlsplit(origin.lower()).netloc != host
        if is_other or site not in _SAME_SITE:
            raise PageError(
                HTTPStatus.FORBIDDEN,
                "A page of another site has sent this form.",
                "Nothing was changed. Use the console's own pages.",
            )


def form_fields(session: Session) -> list[tuple[str, str]]:
    """Return the fields by which a form of a page proves itself: the session's, and its own."""
    return [("csrf", session.csrf), ("mark", secrets.token_hex(8))]


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on is reached from this machine alone."""
    if host.lower() == "localhost":
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def _host_of(header: str) -> str | None:
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _cookie_name(request: Request) -> str:
    """Return the name of the session's cookie: browsers send cookies to all ports of a host."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{_COOKIE}-{port}" if port.isascii() and port.isdigit() else _COOKIE


def _cookie(request: Request, value: str, seconds: int) -> tuple[str, str]:
    return (
        "Set-Cookie",
        f"{_cookie_name(request)}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}",
    )
