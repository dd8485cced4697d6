"""AfterSaving: answers that promise that something is on the disk, given when it is.

The broker's one thread must not wait for disks, so saving happens beside it; how, it is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from broker.connection import Connection
from broker.processor.request import reply
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.command import RemotingCommand

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
        if_failed: Callable[[], None] = lambda: None,
        failure: str = _FAILURE,
    ) -> None:
        """Save, then answer; if that fails, take back what can be, and answer ``failure`` and why."""
        self.go_on(connection, request, save, lambda: reply(connection, request, success), if_failed, failure)

    def go_on(
        self,
        connection: Connection,
        request: RemotingCommand,
        save: Callable[[], None],
        then: Callable[[], None],
        if_failed: Callable[[], None] = lambda: None,
        failure: str = _FAILURE,
    ) -> None:
        """Save, then go on; if that fails, take back what can be, and answer ``failure`` and why."""

        def done(error: BaseException | None) -> None:
            if error is None:
                then()
                return
            if_failed()
            remark = f"{failure}: {error}"
            reply(connection, request, request.respond(ResponseCode.SYSTEM_ERROR, remark))

        self._run_aside(save, done)
