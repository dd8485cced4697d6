"""Site: routes each path to its page, and turns errors into pages.

    host ──> assets ──> signing in and out ──> may this be read? ──> page ──> frame

An error of the cluster becomes one panel with the problem and the remedy, never a traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeAlias

import click

from rmq_spark.cli.console.forms.message_forms import (
    copy,
    copy_plan,
    edit_form,
    produce,
    produce_form,
    produce_preview,
)
from rmq_spark.cli.console.forms.topic_forms import (
    alter,
    alter_plan,
    create,
    create_form,
    delete,
    deletion,
)
from rmq_spark.cli.console.guard import (
    AuditLog,
    Guard,
    PageError,
    problem_sentence,
    status_of,
)
from rmq_spark.cli.console.history import History
from rmq_spark.cli.console.layout import (
    SECTIONS,
    Page,
    asset_content,
    render_document,
    sign_in_page,
)
from rmq_spark.cli.console.markup import components as ui
from rmq_spark.cli.console.markup.html import el, is_local, join, path
from rmq_spark.cli.console.pages.access_page import users_and_lists
from rmq_spark.cli.console.pages.checkpoints_page import checkpoint, checkpoints
from rmq_spark.cli.console.pages.dead_letters_page import dead_letters, letters, resend, resend_plan
from rmq_spark.cli.console.pages.groups_page import group, groups, seek, seek_plan
from rmq_spark.cli.console.pages.message_page import download_body, message
from rmq_spark.cli.console.pages.overview_page import charts, overview
from rmq_spark.cli.console.pages.timers_page import recall, recall_plan
from rmq_spark.cli.console.pages.topic_page import topic
from rmq_spark.cli.console.pages.topics_page import search, topics
from rmq_spark.cli.console.server import TEXT_TYPE, Request, Response, redirect
from rmq_spark.cli.console.survey import Surveys
from rmq_spark.cli.console.visit import Visit
from rmq_spark.cli.shell.connection import ClusterAccess, explain_missing_topics
from rmq_spark.cli.shell.failures import Failure, explain_error
from rmq_spark.client.errors import MessageRejected, NoPermission, TopicNotUsable
from rmq_spark.errors import RocketPollError

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin

PageOrResponse: TypeAlias = "Page | Response"
_GET_ROUTES: Final[Mapping[tuple[str, ...], Callable[[Visit], PageOrResponse]]] = {
    (): overview,
    ("topics",): topics,
    ("topics", "*"): topic,
    ("topics", "*", "alter"): alter_plan,
    ("topics", "*", "delete"): deletion,
    ("topics", "*", "*", "*", "*"): message,
    ("topics", "*", "*", "*", "*", "body"): download_body,
    ("topics", "*", "*", "*", "*", "copy"): copy_plan,
    ("topics", "*", "*", "*", "*", "edit"): edit_form,
    ("create-topic",): create_form,
    ("produce",): produce_form,
    ("recall",): recall_plan,
    ("groups",): groups,
    ("groups", "*"): group,
    ("groups", "*", "seek"): seek_plan,
    ("dead-letters",): dead_letters,
    ("dead-letters", "*"): letters,
    ("dead-letters", "*", "resend"): resend_plan,
    ("checkpoints",): checkpoints,
    ("checkpoints", "*"): checkpoint,
    ("access",): users_and_lists,
    ("charts",): charts,
    ("find",): search,
}
POST_ROUTES: Final[Mapping[tuple[str, ...], Callable[[Visit], PageOrResponse]]] = {
    ("create-topic",): create,
    ("topics", "*", "alter"): alter,
    ("topics", "*", "delete"): delete,
    ("topics", "*", "*", "*", "*", "copy"): copy,
    ("produce",): produce,
    ("recall",): recall,
    ("produce", "preview"): produce_preview,
    ("groups", "*", "seek"): seek,
    ("dead-letters", "*", "resend"): resend,
}
PREVIEWS: Final = frozenset({("produce", "preview")})
"""Forms that change nothing, which may be submitted again."""
_ASSETS: Final = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "console.svg": "image/svg+xml",
}
_CACHE_FOREVER: Final = ("Cache-Control", "public, max-age=31536000, immutable")


class Site:
    """Answers requests with pages."""

    def __init__(
        self,
        admin: Admin,
        guard: Guard,
        history: History,
        checkpoints: tuple[str, ...],
        access: ClusterAccess,
    ) -> None:
        self._admin = admin
        self._guard = guard
        self._history = history
        self._surveys = Surveys.of(admin)
        self._checkpoints = checkpoints
        self._access = access
        self._audit = AuditLog(access)

    def stop(self) -> None:
        """Stop what pages have started in the background."""
        self._surveys.stop()

    def respond(self, request: Request) -> Response:
        """Return the response to a request."""
        visit = Visit(
            request, self._admin, self._history, self._surveys, self._checkpoints, self._access,
            self._guard, self._guard.session_of(request),
        )  # fmt: skip
        try:
            self._guard.check_host(request)
            self._guard.check_site(request)
        except PageError as refusal:  # the client may be another site's page: reveal nothing else
            return Response(
                refusal.status, f"{refusal.problem} {refusal.remedy}\n".encode(), TEXT_TYPE
            )
        try:
            if request.segments[:1] == ("static",):
                return _asset_response(request)
            with (
                explain_missing_topics(self._admin),
                self._audit.record(request, visit.session) as entry,
            ):
                response = self._dispatch(request, visit)
                if isinstance(response, Page) and response.outcome != "":
                    entry.outcome = response.outcome
        except (NoPermission, TopicNotUsable) as error:
            explained = explain_error(error)
            response = self._error_page(
                visit,
                HTTPStatus.FORBIDDEN,
                "No permission",
                "The cluster does not permit this",
                explained.problem,
                explained.remedy,
            )
        except MessageRejected as error:
            response = self._error_page(
                visit, HTTPStatus.BAD_REQUEST, "Not done", "The request is not valid", str(error)
            )
        except RocketPollError as error:
            explained = explain_error(error)
            response = self._error_page(
                visit,
                HTTPStatus.BAD_GATEWAY,
                "No answer",
                "The cluster does not answer",
                explained.problem,
                explained.remedy,
                is_retried=request.method == "GET",
            )
        except click.ClickException as error:
            refused = error if isinstance(error, Failure) else Failure(error.message)
            status = status_of(error, request)
            title = "Not found" if status is HTTPStatus.NOT_FOUND else "Not done"
            problem = problem_sentence(refused.problem, request)
            response = self._error_page(visit, status, title, problem, refused.remedy)
        if isinstance(response, Response):
            return response
        return Response(response.status, render_document(response, visit))

    def _dispatch(self, request: Request, visit: Visit) -> PageOrResponse:
        if request.segments in (("sign-in",), ("sign-out",)):
            if request.method != "POST":
                return sign_in_page(_local_path(request.parameter("next")))
            if request.segments == ("sign-in",):
                session = self._guard.sign_in(request, request.field("token"))
                return redirect(_local_path(request.field("next")), session)
            ended = self._guard.check_form(request, visit.session)
            return redirect("/", self._guard.sign_out(request, ended))
        if not visit.may_read:
            return redirect(ui.sign_in_path(visit.return_path))
        if request.method == "POST":
            page = _route(POST_ROUTES, request)
            self._guard.check_writable()
            self._guard.check_form(request, visit.session)
            if request.segments not in PREVIEWS:
                self._guard.check_not_resubmitted(request)
            return page(visit)
        return _route(_GET_ROUTES, request)(visit)

    @staticmethod
    def _error_page(
        visit: Visit,
        status: HTTPStatus,
        title: str,
        problem: str,
        *text: str,
        is_retried: bool = False,
    ) -> Page:
        """Return a page that reports an error; the script retries it if the error is transient."""
        section, trail = _breadcrumbs_of(visit.request)
        parent = trail[-1] if trail else ("Overview", "/")
        return Page(
            title,
            join(
                ui.alert(*map(visit.sentence, filter(None, (problem, *text)))),
                el("p", el("a.button", f"Back to {parent[0]}", href=parent[1]), " ",
                   el("a.button", "Try again", href="?") if is_retried else None,
                   data_again=is_retried),
            ),
            section,
            trail,
            status=status,
        )  # fmt: skip


def _route(
    table: Mapping[tuple[str, ...], Callable[[Visit], PageOrResponse]], request: Request
) -> Callable[[Visit], PageOrResponse]:
    for pattern, page in table.items():
        if len(pattern) == len(request.segments) and all(
            wanted in ("*", given) for wanted, given in zip(pattern, request.segments, strict=True)
        ):
            return page
    raise PageError(
        HTTPStatus.NOT_FOUND, "There is no such page.", "Choose one from the navigation."
    )


def _local_path(text: str) -> str:
    """Return the path to show after signing in: the requested one, if it is on this site."""
    return text if text.startswith("/") and is_local(text) else "/"


def _breadcrumbs_of(request: Request) -> tuple[str, list[tuple[str, str]]]:
    """Return the section of a path, and the title and path of the pages above it."""
    name, *below = request.segments or ("",)
    titles = {each: (title, href) for each, title, href, _ in SECTIONS}
    if name not in titles:
        return "", []
    trail = [titles[name]] if below else []
    if len(below) > 1:
        trail.append((below[0], path(name, below[0])))
    return name, trail


def _asset_response(request: Request) -> Response:
    name = request.segments[-1]
    if len(request.segments) != 2 or name not in _ASSETS:
        raise PageError(HTTPStatus.NOT_FOUND, "There is no such file.", "Reload the page.")
    return Response(HTTPStatus.OK, asset_content(name), _ASSETS[name], (_CACHE_FOREVER,))
