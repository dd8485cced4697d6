"""Guard: decides who may read the console, and who may change something with it.

    any request   must name this machine as its host, against DNS rebinding: another site's name may
                  resolve to this address. Pages of other sites may link to a page of the console,
                  but not load anything from it
    reads         are open on a loopback address; elsewhere they need a session
    writes        must be enabled, and need a session, POST, the session's CSRF token, and an origin
                  that is this site

A session starts with the token that the program prints at its start, and is kept in memory.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import click

from rmq_spark.cli.console.markup.html import path
from rmq_spark.cli.console.server import Request
from rmq_spark.cli.shell.connection import ClusterAccess
from rmq_spark.cli.shell.failures import Failure, explain_error
from rmq_spark.cli.shell.output import escape_unprintable
from rmq_spark.errors import RocketPollError
from rmq_spark.wire.message.hosts import names_this_machine

SESSION_SECONDS: Final = 12 * 3_600
SESSIONS_MAX: Final = 64
_SUBMITTED_MARKS_MAX: Final = 10_000
_COOKIE: Final = "rocketpoll-console"
_SAME_SITE: Final = ("same-origin", "none")


class PageError(Failure):
    """A request that is refused, with the status of the response."""

    def __init__(self, status: HTTPStatus, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.status = status


def status_of(error: click.ClickException, request: Request) -> HTTPStatus:
    """Return the status for an error of a page, or one that the command line would print."""
    if isinstance(error, PageError):
        return error.status
    if isinstance(error, click.UsageError):
        return HTTPStatus.BAD_REQUEST
    return HTTPStatus.CONFLICT if request.method == "POST" else HTTPStatus.NOT_FOUND


def problem_sentence(problem: str, request: Request) -> str:
    """Return a problem with a capital letter, unless it begins with a name, whose case matters."""
    first = problem.partition(" ")[0]
    is_name = first in request.segments or first in dict(request.query).values()
    return problem if is_name else problem[:1].upper() + problem[1:]


class Session(NamedTuple):
    """A browser that has presented the token; it expires by the monotonic clock (seconds)."""

    session_id: str
    csrf: str
    expires_at: float


class Guard:
    """Authorizes requests, and keeps the sessions."""

    def __init__(
        self,
        *,
        token: str | None,
        has_public_reads: bool,
        is_writable: bool,
        host_names: Collection[str] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without sessions.

        Args:
            token: Secret that starts a session; None if no session can be started.
            has_public_reads: Whether anyone who can reach the port may read.
            is_writable: Whether sessions may change something.
            host_names: Names of hosts by which the console is reached, besides addresses.
            now: The monotonic clock, in seconds.
        """
        self.has_public_reads = has_public_reads
        self.is_writable = is_writable
        self._token = token
        self._host_names = host_names
        self._now = now
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._submitted_marks: deque[str] = deque(maxlen=_SUBMITTED_MARKS_MAX)

    def check_host(self, request: Request) -> None:
        """Refuse requests that do not name this machine as their host."""
        given = request.headers.get("host", "")
        if not given or not names_this_machine(given, self._host_names):
            raise PageError(
                HTTPStatus.FORBIDDEN,
                f"This console does not serve the host {given[:100] or '(none)'}.",
                "To use a host name, start the console with --allow-host NAME.",
            )

    def check_site(self, request: Request) -> None:
        """Refuse a request from a page of another site, unless the user follows a link.

        Such a page cannot read the response, but its images could start expensive searches, with
        the keys of the console's user. Requests without these headers, as programs and old browsers
        send them, are accepted.
        """
        headers = request.headers
        is_own = headers.get("sec-fetch-site", "none") in _SAME_SITE
        fetch_headers = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
        if not is_own and fetch_headers != ("navigate", "document"):
            raise PageError(
                HTTPStatus.FORBIDDEN,
                "A page of another site asked for this.",
                "Open the console itself, or follow a link to it.",
            )

    def session_of(self, request: Request) -> Session | None:
        """Return the session of a request, unless it has expired."""
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
        """Start a session for the right token, and return the header that sets its cookie."""
        self._check_origin(request)
        if self._token is None or not hmac.compare_digest(token.encode(), self._token.encode()):
            raise PageError(
                HTTPStatus.FORBIDDEN,
                "The token is wrong.",
                "Copy the token that the console printed at its last start: each start has a new "
                "one.",
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
        """End a session, and return the header that deletes its cookie."""
        with self._lock:
            self._sessions.pop(session.session_id, None)
        return _cookie(request, "", 0)

    def check_form(self, request: Request, session: Session | None) -> Session:
        """Return the session; refuse a form that does not come from one of its pages."""
        self._check_origin(request)
        if session is None:
            raise PageError(
                HTTPStatus.FORBIDDEN, "You are not signed in.", "Sign in with the token."
            )
        if not hmac.compare_digest(request.field("csrf").encode(), session.csrf.encode()):
            raise PageError(
                HTTPStatus.FORBIDDEN,
                "Your session has changed since this page was loaded.",
                "Go back, reload the page, and submit the form again.",
            )
        return session

    def check_not_resubmitted(self, request: Request) -> None:
        """Refuse a form that was submitted before, by the mark that pages put into it."""
        mark = request.field("mark")
        with self._lock:
            if mark and mark not in self._submitted_marks:
                self._submitted_marks.append(mark)
                return
        raise PageError(
            HTTPStatus.CONFLICT,
            "This form has been submitted already.",
            "It was not carried out a second time. Go back, and reload the page.",
        )

    def check_writable(self) -> None:
        """Refuse changes unless they are enabled."""
        if not self.is_writable:
            raise PageError(
                HTTPStatus.FORBIDDEN,
                "This console is read-only.",
                "To make changes, start it with --writes.",
            )

    def _check_origin(self, request: Request) -> None:
        origin = request.headers.get("origin")
        site = request.headers.get("sec-fetch-site", "none")
        host = request.headers.get("host", "").lower()
        is_other = origin is not None and urlsplit(origin.lower()).netloc != host
        if is_other or site not in _SAME_SITE:
            raise PageError(
                HTTPStatus.FORBIDDEN,
                "This form was submitted by another site.",
                "Nothing was changed. Submit it from the console's own page.",
            )


def form_fields(session: Session) -> list[tuple[str, str]]:
    """Return the fields that authenticate a form: the session's CSRF token, and the form's mark."""
    return [("csrf", session.csrf), ("mark", secrets.token_hex(8))]


def is_loopback(host: str) -> bool:
    """Return whether a listen address can be reached only from this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _cookie_name(request: Request) -> str:
    """Return the cookie's name with the port: browsers send cookies to all ports of a host."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{_COOKIE}-{port}" if port.isascii() and port.isdigit() else _COOKIE


def _cookie(request: Request, value: str, seconds: int) -> tuple[str, str]:
    return (
        "Set-Cookie",
        f"{_cookie_name(request)}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}",
    )


# ---- AuditLog: one line in the log for each change that a browser requests, with its session. The
# user is the one of the console's credentials, whose rights the brokers check.
#
#     session 1f0c2a at 10.0.0.7 as user operator: POST /groups/billing/seek to=start: done

AUDIT_LOGGER: Final = "rmq_spark.cli.console.audit"

_SECRET_FIELDS: Final = frozenset({"csrf", "mark", "token"})
"""Fields of forms that prove who sent them."""
_BODY_FIELD: Final = "body"
"""The field with the body of a message, which a log must not show."""
_VALUE_CHARACTERS_MAX: Final = 200
_OUTCOME_CHARACTERS_MAX: Final = 300
_FIELDS_MAX: Final = 20
_log = logging.getLogger(AUDIT_LOGGER)


class AuditEntry:
    """The outcome of one form, which its page may set; a form with outcome None is not logged."""

    def __init__(self) -> None:
        self.outcome: str | None = "done"


class AuditLog:
    """The log of the changes that one console makes."""

    def __init__(self, access: ClusterAccess) -> None:
        self._user = str(access.settings.get("access-key") or "")

    @contextmanager
    def record(self, request: Request, session: Session | None) -> Iterator[AuditEntry]:
        """Log a form handled within the context, with its outcome; ignore other requests."""
        entry = AuditEntry()
        if request.method != "POST":
            yield entry
            return
        try:
            yield entry
        except RocketPollError as error:
            self._write(request, session, f"failed: {explain_error(error).problem}")
            raise
        except click.ClickException as error:
            problem = error.problem if isinstance(error, Failure) else error.format_message()
            self._write(request, session, f"refused: {problem}")
            raise
        except BaseException as error:
            self._write(request, session, f"failed: {type(error).__name__}")
            raise
        if entry.outcome is not None:
            self._write(request, session, entry.outcome)

    def _write(self, request: Request, session: Session | None, outcome: str) -> None:
        fields = [pair for pair in request.form if pair[0] not in _SECRET_FIELDS]
        texts = [_field_text(name, value) for name, value in fields[:_FIELDS_MAX]]
        if len(fields) > _FIELDS_MAX:
            texts.append(f"and {len(fields) - _FIELDS_MAX} more")
        who = "no session" if session is None else f"session {session_name(session)}"
        user = f"as user {self._user}" if self._user else "without credentials"
        words = [f"POST {path(*request.segments)}", *texts]
        outcome = outcome[:_OUTCOME_CHARACTERS_MAX]
        line = f"{who} at {request.client} {user}: {' '.join(words)}: {outcome}"
        _log.info("%s", escape_unprintable(" ".join(line.split())))


def _field_text(name: str, value: str) -> str:
    if name == _BODY_FIELD:
        return f"{name}=({len(value)} characters)"
    return f"{name}={value}"[:_VALUE_CHARACTERS_MAX]


def session_name(session: Session) -> str:
    """Return a short name of a session, from which its cookie cannot be guessed."""
    return hashlib.sha256(session.session_id.encode()).hexdigest()[:6]
