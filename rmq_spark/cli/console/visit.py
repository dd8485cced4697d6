"""Visit: one request with all that a page needs to answer it, and the parsing of its parameters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from rmq_spark.cli.console.guard import Guard, PageError, Session, form_fields
from rmq_spark.cli.console.history import History
from rmq_spark.cli.console.markup import components as ui
from rmq_spark.cli.console.markup.html import Html, el, join, path
from rmq_spark.cli.console.server import Request
from rmq_spark.cli.console.survey import Surveys
from rmq_spark.cli.groups.group_state import queue_text
from rmq_spark.cli.shell.parameter_types import parse_time_ms
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmq_spark.cli.shell.connection import ClusterAccess
    from rmq_spark.client.admin.admin import Admin
    from rmq_spark.client.message import MessageExt

_PAGE_NUMBER_MAX: Final = 1_000_000
_DIGITS_MAX: Final = 18
_CREDENTIALS_HINT: Final = (
    "The command omits the console's credentials. Set ROCKETPOLL_ACCESS_KEY, "
    "ROCKETPOLL_SECRET_KEY and ROCKETPOLL_TLS_KEY_PASSWORD, or use a profile."
)


@dataclass(frozen=True)
class Visit:
    """One request, and all that a page may need to answer it.

    Attributes:
        request: The request.
        admin: The administration client of the cluster.
        history: Figures of the last minutes.
        surveys: Values of all topics and groups, read in the background.
        checkpoints: Directories of queries' checkpoints that may be read.
        access: The options with which the console was started, for the commands that it shows.
        guard: Who may read, and whether something may be changed.
        session: The session of the browser, if it has one.
    """

    request: Request
    admin: Admin
    history: History
    surveys: Surveys
    checkpoints: tuple[str, ...]
    access: ClusterAccess
    guard: Guard
    session: Session | None

    @property
    def is_writable(self) -> bool:
        """True if the console may change something."""
        return self.guard.is_writable

    @property
    def may_read(self) -> bool:
        """True if the browser may see the cluster."""
        return self.session is not None or self.guard.has_public_reads

    @property
    def return_path(self) -> str:
        """The path of the page, to return to after signing in."""
        request = self.request
        is_page = request.method == "GET" and request.segments != ("sign-in",)
        return path(*request.segments, **dict(request.query)) if is_page else "/"

    def command(
        self, verb: str, *arguments: str, options: Sequence[str] = (), stdin: str = ""
    ) -> Html:
        """Return a command for the cluster of this console, with a button that copies it.

        ``verb`` has the words that name the command; ``stdin`` goes before it, such as
        ``echo 'hello' |``.
        """
        line = stdin + self.access.command(verb, *arguments, options=options)
        return ui.command_box(line, _CREDENTIALS_HINT if self.access.needs_credentials else None)

    def sentence(self, text: str) -> Html:
        """Return a sentence; its commands get this cluster's options and a button to copy them."""
        return join(
            ui.inline_command(part) if is_command else part
            for part, is_command in self.access.split_commands(text)
        )

    def enabling_hint(self, button: str, return_path: str | None = None) -> Html:
        """Return how to enable changes: a hint at --writes, or the button that signs in.

        Signing in leads to ``return_path``, by default to this page.
        """
        if not self.is_writable:
            hint = "This console is read-only. Start it with --writes, or use the command below."
            return el("p.hint", hint)
        sign_in = ui.sign_in_path(return_path or self.return_path)
        return el("p", el("a.button.primary", button, href=sign_in))

    def confirmation(
        self,
        button: str,
        fields: Sequence[tuple[str, str]],
        action: str,
        return_path: str,
        cancel_path: str,
        *controls: Html,
    ) -> Html:
        """Return the form that applies a plan, or how to enable changes if they are not allowed."""
        if self.session is None or not self.is_writable:
            return self.enabling_hint("Sign in to apply", return_path)
        return el(
            "form.actions",
            ui.hidden_fields([*fields, *form_fields(self.session)]),
            controls,
            el("button.primary", button, type="submit"),
            el("a.button", "Cancel", href=cancel_path),
            action=action,
            method="post",
        )

    def message(self) -> MessageExt:
        """Return the message whose position the path names: topic, broker, queue and offset."""
        _, topic, broker, queue, queue_offset, *_ = self.request.segments
        location = location_from_path(topic, broker, queue, queue_offset)
        found = self.admin.message_at(*location)
        if found is None:
            raise PageError(
                HTTPStatus.NOT_FOUND,
                f"There is no message in {topic} {queue_text(location[0])} at {queue_offset}.",
                "It has been deleted, or not stored yet. See the topic's queues for the offsets "
                "that they hold.",
            )
        return found

    def page_number(self) -> int:
        """Return the requested page number, starting at 1."""
        text = self.request.parameter("page")
        is_number = text.isascii() and text.isdigit() and len(text) < 8
        return min(max(int(text), 1), _PAGE_NUMBER_MAX) if is_number else 1


def parse_time_field(text: str) -> int:
    """Return the time in a field, in ms since the epoch; it may start with @."""
    try:
        return parse_time_ms(text.removeprefix("@"), time.time())
    except ValueError as error:
        raise PageError(HTTPStatus.BAD_REQUEST, "That is not a time.", str(error)) from error


def location_text(queue: MessageQueue, queue_offset: int) -> str:
    """Return a position in a topic as a parameter: ``broker:queue:offset``."""
    return f"{queue.broker_name}:{queue.queue_id}:{queue_offset}"


def parse_location(topic: str, text: str) -> tuple[MessageQueue, int]:
    """Parse a position in a topic from a parameter."""
    broker, _, rest = text.partition(":")
    queue, _, queue_offset = rest.partition(":")
    return location_from_path(topic, broker, queue, queue_offset)


def location_from_path(
    topic: str, broker: str, queue: str, queue_offset: str
) -> tuple[MessageQueue, int]:
    """Return the position in a topic that the segments of a path name."""
    for text in (queue, queue_offset):
        if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
            raise PageError(
                HTTPStatus.NOT_FOUND,
                f"{broker}:{queue}:{queue_offset} is not a position.",
                "Write a broker, the number of a queue and an offset: broker-a:0:42.",
            )
    if int(queue) > 1 << 30:
        raise PageError(
            HTTPStatus.NOT_FOUND, f"There is no queue {queue}.", "Choose one of the topic's queues."
        )
    return MessageQueue(topic, broker, int(queue)), int(queue_offset)


def topic_path(topic: str, *segments: str, **query: object) -> str:
    """Return the path of a topic's page, or of one below it."""
    return path("topics", topic, *segments, **query)


def recall_path(handle: str) -> str:
    """Return the path of the page that recalls a message."""
    return path("recall", handle=handle)


def group_path(group: str, *segments: str, **query: object) -> str:
    """Return the path of a group's page, or of one below it."""
    return path("groups", group, *segments, **query)


def message_path(queue: MessageQueue, queue_offset: int, *segments: str) -> str:
    """Return the path of a message's page, or of one below it."""
    return path("topics", queue.topic, queue.broker_name, queue.queue_id, queue_offset, *segments)
