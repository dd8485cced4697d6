"""AfterSaving: answers that promise that something is on the disk, given when it is.

The broker's one thread must not wait for disks, so saving happens beside it; how, it is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.command import RemotingCommand
from rocketpoll.broker.connection import Connection
from rocketpoll.broker.processor.request import reply
from rocketpoll.broker.state.changes import Change

RunAside: TypeAlias = Callable[[Callable[[], None], Callable[["BaseException | None"], None]], None]
"""Does the first in another thread; then, in the broker's own, the second gets what the first has raised."""

_FAILURE: Final = "the change could not be saved"


class AfterSaving:
    """Processors return what these return: None, for the answer comes by the connection."""

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
            connection, request, save, lambda: reply(connection, request, success), lambda: None, failure
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
        """Save, then go on; if that fails, take back what can be, and answer ``failure`` and why.

        A save that fails may leave on the disk what it was to save, and so may another one at that time.
        ``again`` is what writes that over when it is taken back, before the answer.
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
