"""ReplyAfterSave: sends a response only once the change that it reports is on the disk.

The broker's one thread must not wait for the disk, so another thread saves, through the executor
that is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.command import RemotingCommand

from ..common.channel import Channel, ResponseSteps
from ..state.tables.table import Change, Name, NamedTable, Value
from ..store.steps import JobExecutor
from .request import RequestRejected, reply, success_response

_Config = TypeVar("_Config")

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

    @contextmanager
    def saving(
        self, connection: Channel, request: RemotingCommand, table: NamedTable[Any, Name, Value]
    ) -> Iterator[Change[Name, Value]]:
        """Enter a context for a change of a table; then save it, and reply with success."""
        with table.changes.begin() as change:
            yield change
        self._commit_change(connection, request, table, success_response(request), change)

    def put_all(
        self,
        connection: Channel,
        request: RemotingCommand,
        table: NamedTable[Any, Name, Value],
        configs: Iterable[_Config],
        put: Callable[[_Config, Change[Name, Value]], None],
    ) -> ResponseSteps:
        """Put configurations in steps, up to the first that is refused; save, and reply."""
        settled = success_response(request)
        with table.changes.begin() as change:
            for number, config in enumerate(configs):
                yield None
                try:
                    put(config, change)
                except RequestRejected as error:
                    settled = request.respond(
                        error.code, f"{error.remark}; the {number} before it were accepted"
                    )
                    break
        self._commit_change(connection, request, table, settled, change)
        return None

    def _commit_change(
        self,
        connection: Channel,
        request: RemotingCommand,
        table: NamedTable[Any, Any, Any],
        success: RemotingCommand,
        change: Change[Any, Any],
    ) -> None:
        self.commit_changes(
            connection, request, table.save_changes, success, change, overwrite=table.save
        )

    def commit_changes(
        self,
        connection: Channel,
        request: RemotingCommand,
        save: Callable[[], None],
        success: RemotingCommand,
        *changes: Change[Any, Any],
        overwrite: Callable[[], None] | None = None,
    ) -> None:
        """Save changes, then reply; if that fails, undo them, and reply with the reason.

        ``overwrite`` saves what was restored; by default ``save`` does.
        """
        request = request.without_content()

        def saved() -> None:
            for change in changes:
                change.commit()
            reply(connection, request, success)

        def undo() -> None:
            for change in changes:
                change.rollback()

        self.run(connection, request, save, saved, undo, overwrite=overwrite or save)

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
