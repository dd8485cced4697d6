"""AuditLog: one line in the log for each change that a browser asks for, and who asked.

    session 1f0c2a at 10.0.0.7 as user operator: POST /groups/billing/seek to=start: done

A session is a browser that has signed in with the console's token. The user is that of the
console's own credentials, for which the brokers check rights.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from rmq_spark.cli.console.guard import Session
from rmq_spark.cli.console.markup.html import path
from rmq_spark.cli.console.server import Request
from rmq_spark.cli.shell.connection import ClusterAccess
from rmq_spark.cli.shell.failures import Failure, explain_error
from rmq_spark.cli.shell.output import escape_unprintable
from rmq_spark.errors import RocketPollError

AUDIT_LOGGER: Final = "rmq_spark.cli.console.audit"

_SECRET_FIELDS: Final = frozenset({"csrf", "mark", "token"})
"""Fields of forms that prove who sent them."""
_VALUE_CHARACTERS_MAX: Final = 200
_OUTCOME_CHARACTERS_MAX: Final = 300
_FIELDS_MAX: Final = 20
_log = logging.getLogger(AUDIT_LOGGER)


class AuditEntry:
    """The outcome of one form, which its page may tell."""

    def __init__(self) -> None:
        self.outcome = "done"


class AuditLog:
    """The log of the changes that one console makes."""

    def __init__(self, access: ClusterAccess) -> None:
        self._user = str(access.settings.get("access-key") or "")

    @contextmanager
    def record(self, request: Request, session: Session | None) -> Iterator[AuditEntry]:
        """Log a form that is submitted within the context, with its outcome; nothing for pages."""
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
        self._write(request, session, entry.outcome)

    def _write(self, request: Request, session: Session | None, outcome: str) -> None:
        fields = [pair for pair in request.form if pair[0] not in _SECRET_FIELDS]
        said = [f"{name}={value}"[:_VALUE_CHARACTERS_MAX] for name, value in fields[:_FIELDS_MAX]]
        if len(fields) > _FIELDS_MAX:
            said.append(f"and {len(fields) - _FIELDS_MAX} more")
        who = "no session" if session is None else f"session {session_name(session)}"
        user = f"as user {self._user}" if self._user else "without credentials"
        words = [f"POST {path(*request.segments)}", *said]
        outcome = outcome[:_OUTCOME_CHARACTERS_MAX]
        line = f"{who} at {request.client} {user}: {' '.join(words)}: {outcome}"
        _log.info("%s", escape_unprintable(" ".join(line.split())))


def session_name(session: Session) -> str:
    """Return a short name of a session, from which its cookie cannot be guessed."""
    return hashlib.sha256(session.session_id.encode()).hexdigest()[:6]
