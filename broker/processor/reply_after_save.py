"""AfterSaving: answers that promise that something is on the disk, and are given only then.

The broker's one thread must not wait for disks, so saving happens beside it; the means to do so is
passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.command import RemotingCommand

from ..common.connection import Connection
from ..state.tables.changes import Change
from ..store.steps import RunAside
from .request import reply

_FAILURE: Final = "the change could not be saved"


class AfterSaving:
    """Answers that wait for a save; all methods return None, as answers go by the connection."""

    def __init__(self, run_aside: RunAside) -> None:
        self._run_aside = run_aside

    def answer(
        self,
        connection: Connection,
        request: RemotingCommand,
        save: Callable[[], None],
        success: RemotingCommand,
        failure: str = _FAILURE,
    ) -> None:
        """Save, then answer; if that fails, answer ``failure`` and why."""
        request = request.bare()
        self.go_on(
            connection,
            request,
            save,
            lambda: reply(connection, request, success),
            lambda: None,
            failure,
        )

    def settle(
        self,
        connection: Connection,
        request: RemotingCommand,
        save: Callable[[], None],
        success: RemotingCommand,
        change: Change[Any, Any],
    ) -> None:
        """Save a change, then answer; if that fails, take the change back, and answer why."""
        request = request.bare()

        def saved() -> None:
            change.saved()
            reply(connection, request, success)

        self.go_on(connection, request, save, saved, change.refused, again=save)

    def go_on(
        self,
        connection: Connection,
        request: RemotingCommand,
        save: Callable[[], None],
        then: Callable[[], None],
        if_failed: Callable[[], None],
        failure: str = _FAILURE,
        again: Callable[[], None] = lambda: None,
    ) -> None:
        """Save, then go on; if that fails, undo what can be undone, and answer ``failure`` and why.

        A failed save may leave the new state on the disk, and so may another one at that time.
        ``again`` overwrites it with the restored state before the answer.
        """
        request = request.bare()

        def done(error: BaseException | None) -> None:
            if error is None:
                then()
                return
            if_failed()
            refusal = request.respond(ResponseCode.SYSTEM_ERROR, f"{failure}: {error}")
            self._run_aside(again, lambda _: reply(connection, request, refusal))

        self._run_aside(save, done)
