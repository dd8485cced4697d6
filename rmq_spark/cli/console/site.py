"""The site: which page answers which path, and what stands there when something is wrong.

    host ──> assets ──> signing in and out ──> may this be read? ──> page ──> frame

An error of the cluster is one panel that says what and what to do, never a traceback. This module
must not know what stands in a page.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from http import HTTPStatus
from importlib import resources
from typing import TYPE_CHECKING, Final, TypeAlias

import click

from rmq_spark import __version__
from rmq_spark.cli.console.charts_page import charts
from rmq_spark.cli.console.checkpoints_page import checkpoint, checkpoints
from rmq_spark.cli.console.dead_letters_page import dead_letters, letters, resend, resend_plan
from rmq_spark.cli.console.find_page import find
from rmq_spark.cli.console.frame import Page, Surroundings, document, sign_in_page
from rmq_spark.cli.console.groups_page import group, groups
from rmq_spark.cli.console.guard import Guard, Refused, Session
from rmq_spark.cli.console.history import History
from rmq_spark.cli.console.html import el, is_ours, join, path
from rmq_spark.cli.console.http_port import TEXT_TYPE, Request, Response, redirect
from rmq_spark.cli.console.message_page import body_of, message
from rmq_spark.cli.console.overview_page import overview
from rmq_spark.cli.console.parts import sign_in_path, trouble
from rmq_spark.cli.console.seek_page import seek, seek_plan
from rmq_spark.cli.console.sizes import TopicSizes
from rmq_spark.cli.console.topic_page import topic
from rmq_spark.cli.console.topics_page import topics
from rmq_spark.cli.console.visit import Visit
from rmq_spark.cli.shell.connection import Access, explained
from rmq_spark.cli.shell.failures import line_of
from rmq_spark.client.errors import MessageRejected, NoPermission, TopicNotUsable
from rmq_spark.errors import RocketPollError

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin

Answer: TypeAlias = "Page | Response"
_READS: Final[Mapping[tuple[str, ...], Callable[[Visit], Answer]]] = {
    (): overview,
    ("topics",): topics,
    ("topics", "*"): topic,
    ("topics", "*", "*", "*", "*"): message,
    ("topics", "*", "*", "*", "*", "body"): body_of,
    ("groups",): groups,
    ("groups", "*"): group,
    ("groups", "*", "seek"): seek_plan,
    ("dead-letters",): dead_letters,
    ("dead-letters", "*"): letters,
    ("dead-letters", "*", "resend"): resend_plan,
    ("checkpoints",): checkpoints,
    ("checkpoints", "*"): checkpoint,
    ("charts",): charts,
    ("find",): find,
}
_WRITES: Final[Mapping[tuple[str, ...], Callable[[Visit], Answer]]] = {
    ("groups", "*", "seek"): seek,
    ("dead-letters", "*", "resend"): resend,
}
_ASSETS: Final = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "console.svg": "image/svg+xml",
}
_FOR_EVER: Final = ("Cache-Control", "public, max-age=31536000, immutable")


class Site:
    """Answers requests with pages."""

    def __init__(
        self,
        admin: Admin,
        guard: Guard,
        history: History,
        checkpoints: tuple[str, ...],
        access: Access,
    ) -> None:
        self._admin = admin
        self._guard = guard
        self._history = history
        self._sizes = TopicSizes(admin)
        self._checkpoints = checkpoints
        self._access = access

    def stop(self) -> None:
        """End what pages have begun in the background."""
        self._sizes.stop()

    def answer(self, request: Request) -> Response:
        """Return the response to a request."""
        session = None
        try:
            self._guard.check_host(request)
        except Refused as refusal:  # whose page reads this is not known: it tells nothing else
            return Response(
                refusal.status, f"{refusal.what} {refusal.remedy}\n".encode(), TEXT_TYPE
            )
        try:
            if request.segments[:1] == ("static",):
                return _asset(request)
            session = self._guard.session_of(request)
            with explained(self._admin):
                answer = self._answered(request, session)
        except Refused as refusal:
            title = "Not found" if refusal.status is HTTPStatus.NOT_FOUND else "Not done"
            answer = self._panel(refusal.status, title, refusal.what, refusal.remedy)
        except (NoPermission, TopicNotUsable) as error:
            what = "The cluster does not permit this"
            answer = self._panel(HTTPStatus.FORBIDDEN, "No permission", what, line_of(error))
        except MessageRejected as error:
            answer = self._panel(
                HTTPStatus.BAD_REQUEST, "Not done", "That means nothing here", str(error)
            )
        except RocketPollError as error:
            answer = self._panel(
                HTTPStatus.BAD_GATEWAY,
                "No answer",
                "The cluster does not answer as it should",
                line_of(error),
                is_tried_again=request.method == "GET",
            )
        except click.ClickException as error:
            what, _, says = error.message.partition(": ")
            status, title = _outcome(request, error)
            answer = self._panel(status, title, what[:1].upper() + what[1:], says)
        if isinstance(answer, Response):
            return answer
        return Response(answer.status, document(answer, self._around(request, session)))

    def _answered(self, request: Request, session: Session | None) -> Answer:
        if request.segments in (("sign-in",), ("sign-out",)):
            return self._signed(request, session)
        if session is None and not self._guard.reads_are_open:
            return redirect(sign_in_path(_here(request)))
        visit = Visit(
            request, self._admin, self._history, self._sizes, self._checkpoints,
            self._access, self._guard.writes, session,
        )  # fmt: skip
        if request.method == "POST":
            page = _route(_WRITES, request)
            self._guard.check_writes()
            self._guard.check_form(request, session)
            self._guard.check_first(request)
            return page(visit)
        return _route(_READS, request)(visit)

    def _signed(self, request: Request, session: Session | None) -> Answer:
        if request.method != "POST":
            return sign_in_page(_own_path(request.parameter("next")))
        if request.segments == ("sign-in",):
            begun = self._guard.sign_in(request, request.field("token"))
            return redirect(_own_path(request.field("next")), begun)
        ended = self._guard.check_form(request, session)
        return redirect("/", self._guard.sign_out(request, ended))

    def _panel(
        self, status: HTTPStatus, title: str, what: str, says: str, *, is_tried_again: bool = False
    ) -> Page:
        """Return a page that says what is wrong; the script tries it again if it may go over."""
        remedies = map(self._access.completed, says.split("; "))
        return Page(
            title,
            join(
                trouble(self._access.completed(what), *remedies),
                el("p", el("a.button", "Overview", href="/"), " ",
                   el("a.button", "Try again", href="?"), data_again=is_tried_again),
            ),
            "",
            status=status,
        )  # fmt: skip

    def _around(self, request: Request, session: Session | None) -> Surroundings:
        is_known = session is not None or self._guard.reads_are_open
        return Surroundings(
            self._access.name_servers if is_known else "",
            self._guard.writes,
            session,
            _here(request),
            (_asset_path("console.css"), _asset_path("console.js")),
            __version__,
        )


def _route(
    table: Mapping[tuple[str, ...], Callable[[Visit], Answer]], request: Request
) -> Callable[[Visit], Answer]:
    for pattern, page in table.items():
        if len(pattern) == len(request.segments) and all(
            wanted in ("*", given) for wanted, given in zip(pattern, request.segments, strict=True)
        ):
            return page
    raise Refused(
        HTTPStatus.NOT_FOUND, "There is no such page.", "The navigation shows what there is."
    )


def _here(request: Request) -> str:
    """Return the path to come back to from signing in."""
    is_page = request.method == "GET" and request.segments != ("sign-in",)
    return path(*request.segments, **dict(request.query)) if is_page else "/"


def _own_path(text: str) -> str:
    """Return the path to go on to after signing in: the one that is asked for, if it is ours."""
    return text if text.startswith("/") and is_ours(text) else "/"


def _outcome(request: Request, error: click.ClickException) -> tuple[HTTPStatus, str]:
    """Return the status and the title of what the command line would have said."""
    if isinstance(error, click.UsageError):
        return HTTPStatus.BAD_REQUEST, "Not done"
    if request.method == "POST":
        return HTTPStatus.CONFLICT, "Not done"
    return HTTPStatus.NOT_FOUND, "Not found"


@lru_cache
def _content(name: str) -> bytes:
    return (resources.files(__package__) / "static" / name).read_bytes()


def _asset_path(name: str) -> str:
    """Return the path of an asset with a mark of its content: browsers may keep it for ever."""
    return f"/static/{name}?{hashlib.sha256(_content(name)).hexdigest()[:12]}"


def _asset(request: Request) -> Response:
    name = request.segments[-1]
    if len(request.segments) != 2 or name not in _ASSETS:
        raise Refused(HTTPStatus.NOT_FOUND, "There is no such file.", "Load the page again.")
    return Response(HTTPStatus.OK, _content(name), _ASSETS[name], (_FOR_EVER,))
