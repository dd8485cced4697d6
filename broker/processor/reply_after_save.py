"""ReplyAfterSave: sends a response only once the change that it reports is on the disk.

The broker's one thread must not wait for the disk, so another thread saves, through the executor
that is passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.command import RemotingCommand

from ..common.channel import Channel
from ..state.tables.table import Change
from ..store.steps import JobExecutor
from .request import reply

_FAILURE: Final = "the change could not be saved"


class ReplyAfterSave:
    """Responses that wait for a save; all methods return None and reply later."""

    def __init__(self, run_in_thread: JobExecutor) -> None:
        self._run_in_thread = run_in_thread

    def reply(
        self,
        connection: Channel,
        request: RemotingCommand,
        save: Callable[[], None],
        success: RemotingCommand,
        failure: str = _FAILURE,
    ) -> None:
        """Save, then send the success response; if the save fails, ``failure`` with the cause."""
        request = request.without_content()
        self.run(
            connection,
            request,
            save,
            lambda: reply(connection, request, success),
            lambda: None,
            failure,
        )

    def commit_change(
        self,
        connection: Channel,
        request: RemotingCommand,
        save: Callable[[], None],
        success: RemotingCommand,
        change: Change[Any, Any],
    ) -> None:
        """Save a change, then reply; if that fails, undo the change, and reply with the reason."""
        request = request.without_content()

        def saved() -> None:
            change.commit()
            reply(connection, request, success)

        self.run(connection, request, save, saved, change.rollback, overwrite=save)

    def run(
        self,
        connection: Channel,
        request: RemotingCommand,
        save: Callable[[], None],
        callback: Callable[[], None],
        on_failure: Callable[[], None],
        failure: str = _FAILURE,
        overwrite: Callable[[], None] = lambda: None,
    ) -> None:
        """Save, then continue; if that fails, undo what can be undone, and reply with ``failure``.

        A failed save may leave the new state on the disk, and so may another one at that time.
        ``overwrite`` overwrites it with the restored state before the response.
        """
        request = request.without_content()

        def done(error: BaseException | None) -> None:
            if error is None:
                callback()
                return
            on_failure()
            refusal = request.respond(ResponseCode.SYSTEM_ERROR, f"{failure}: {error}")
            self._run_in_thread(overwrite, lambda _: reply(connection, request, refusal))

        self._run_in_thread(save, done)
