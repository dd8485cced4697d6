"""ReplyAfterSave: sends a response only once the change that it reports is on the disk.

Another thread saves, because the broker's one thread must not wait for the disk. Changes of a table
that arrive while it is being saved share the next save: many clients that create topics at the same
time wait for a few flushes, not for one each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.remoting.command import RemotingCommand

from ..common.channel import Channel, ResponseSteps
from ..state.tables.table import Change, Name, NamedTable, Value
from ..store.steps import JobExecutor
from .request import RequestRejected, reply, success_response

_Config = TypeVar("_Config")

_FAILURE: Final = "the change could not be saved"


def _do_nothing() -> None:
    """Do nothing: the default of calls after a save."""


class Saving(NamedTuple):
    """A save, and the calls that follow it on the broker's thread.

    A failed save may leave the new state on the disk, and so may a concurrent one. So ``overwrite``
    saves the restored state before the refusal is sent.
    """

    save: Callable[[], None]
    on_saved: Callable[[], None]
    on_failure: Callable[[], None] = _do_nothing
    """Undoes the change in memory."""
    overwrite: Callable[[], None] = _do_nothing
    failure: str = _FAILURE
    """The beginning of the refusal if the save fails; the cause follows."""
    on_end: Callable[[], None] = _do_nothing


class _UnsavedChange(NamedTuple):
    connection: Channel
    request: RemotingCommand
    success: RemotingCommand
    changes: tuple[Change[Any, Any], ...]


class ReplyAfterSave:
    """Sends responses after a save; all methods return None."""

    def __init__(self, run_in_thread: JobExecutor) -> None:
        self._run_in_thread = run_in_thread
        self._next_groups: dict[NamedTable[Any, Any, Any], list[_UnsavedChange]] = {}
        """For each table that is being saved, the changes that its next save includes."""

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
        saving = Saving(save, lambda: reply(connection, request, success), failure=failure)
        self.run(connection, request, saving)

    @contextmanager
    def saving(
        self, connection: Channel, request: RemotingCommand, table: NamedTable[Any, Name, Value]
    ) -> Iterator[Change[Name, Value]]:
        """Return a context for a change of a table; at its end, save, and reply with success."""
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
        response = success_response(request)
        with table.changes.begin() as change:
            for number, config in enumerate(configs):
                yield None
                try:
                    put(config, change)
                except RequestRejected as error:
                    response = request.respond(
                        error.code, f"{error.remark}; the {number} before it were accepted"
                    )
                    break
        self._commit_change(connection, request, table, response, change)
        return None

    def _commit_change(
        self,
        connection: Channel,
        request: RemotingCommand,
        table: NamedTable[Any, Any, Any],
        success: RemotingCommand,
        change: Change[Any, Any],
    ) -> None:
        unsaved = _UnsavedChange(connection, request.without_content(), success, (change,))
        next_group = self._next_groups.get(table)
        if next_group is None:
            self._save_group(table, [unsaved])
        else:
            next_group.append(unsaved)

    def _save_group(
        self, table: NamedTable[Any, Any, Any], group: Sequence[_UnsavedChange]
    ) -> None:
        self._next_groups[table] = []

        def save_next() -> None:
            next_group = self._next_groups.pop(table)
            if next_group:
                self._save_group(table, next_group)

        self._save(table.save_changes, group, table.save, save_next)

    def commit_changes(
        self,
        connection: Channel,
        request: RemotingCommand,
        save: Callable[[], None],
        success: RemotingCommand,
        *changes: Change[Any, Any],
    ) -> None:
        """Save, then commit the changes and reply; if that fails, undo them and refuse."""
        unsaved = _UnsavedChange(connection, request.without_content(), success, changes)
        self._save(save, [unsaved], save)

    def _save(
        self,
        save: Callable[[], None],
        group: Sequence[_UnsavedChange],
        overwrite: Callable[[], None],
        on_end: Callable[[], None] = _do_nothing,
    ) -> None:
        """Save, then commit all changes and reply, or undo all; then call ``on_end``."""

        def saved() -> None:
            for each in group:
                for change in each.changes:
                    change.commit()
                reply(each.connection, each.request, each.success)

        def undo() -> None:
            for each in group:
                for change in each.changes:
                    change.rollback()

        waiting = [(each.connection, each.request) for each in group]
        self._run(waiting, Saving(save, saved, undo, overwrite, on_end=on_end))

    def run(self, connection: Channel, request: RemotingCommand, saving: Saving) -> None:
        """Save, then call ``on_saved``; if the save fails, undo the change, and reply why."""
        self._run([(connection, request.without_content())], saving)

    def _run(self, waiting: Sequence[tuple[Channel, RemotingCommand]], saving: Saving) -> None:
        def refuse(error: BaseException) -> None:
            for connection, request in waiting:
                refusal = request.respond(ResponseCode.SYSTEM_ERROR, f"{saving.failure}: {error}")
                reply(connection, request, refusal)

        def done(error: BaseException | None) -> None:
            try:
                if error is None:
                    saving.on_saved()
                else:
                    saving.on_failure()
                    self._run_in_thread(saving.overwrite, lambda _: refuse(error))
            finally:
                saving.on_end()

        self._run_in_thread(saving.save, done)
