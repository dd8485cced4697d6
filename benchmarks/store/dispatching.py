"""Reput: from an existing log to new consume queues and a new index.

The peer follows the log from record to record and does nothing with them. That is the cost of the
one step that cannot be done for many records at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Case, Target
from benchmarks.store import samples
from benchmarks.store.workspace import Workspace, now_ms
from rocketpoll.broker.common.recent_losses import RecentLosses
from rocketpoll.broker.store.config import StoreConfig
from rocketpoll.broker.store.dispatch.dispatcher import Dispatcher
from rocketpoll.broker.store.dispatch.reput import RUN_BYTES_MAX, ReputMessageService
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.file_pool import FilePool
from rocketpoll.broker.store.index.index_service import IndexService
from rocketpoll.broker.store.log.commit_log import CommitLog
from rocketpoll.broker.store.queues.queue_table import QueueTable
from rocketpoll.broker.store.records.integrity import record_sizes
from rocketpoll.broker.store.records.recent_writes import empty_recent_writes
from rocketpoll.broker.store.results import LOG_START

_PER_SECOND_MIN = 2e6
_QUEUES = (1, 64)
_PEER = "sizes followed"


def cases(workspace: Workspace, messages: int) -> list[Case]:
    """Return the cases: one queue and many, without and with the index."""
    found = []
    for queues in _QUEUES:
        subject = f"reput, 100 B bodies, {queues} queue{'s' * (queues > 1)}"
        log = _log_of(workspace, messages, queues)
        follow = _Following(log)
        found.append(_case(subject, _PEER, follow.run, follow.prepare, messages))
        for with_index in (False, True):
            reput = _Reput(workspace, log, with_index=with_index)
            variant = "queues and index" if with_index else "queues"
            found.append(_case(subject, variant, reput.run, reput.prepare, messages))
    return found


def _case(
    subject: str,
    variant: str,
    run: Callable[[], object],
    prepare: Callable[[], object],
    messages: int,
) -> Case:
    is_peer = variant == _PEER
    return Case(
        subject,
        variant,
        run,
        messages,
        peer=None if is_peer else _PEER,
        target=None if is_peer else Target("per_second", _PER_SECOND_MIN),
        bytes_per_unit=samples.record_bytes(),
        prepare=prepare,
    )


def _log_of(workspace: Workspace, messages: int, queues: int) -> Callable[[], CommitLog]:
    def make(root: Path) -> CommitLog:
        writer = samples.LogWriter(root, queues)
        writer.write(messages)
        return writer.log

    return lambda: workspace.kept(f"log-{queues}", make)


class _Following:
    """The peer's work: reading the sizes of all records."""

    def __init__(self, log: Callable[[], CommitLog]) -> None:
        self._log = log

    def prepare(self) -> None:
        self._log()

    def run(self) -> None:
        log = self._log()
        position = LOG_START
        while position < log.flushed_offset:
            left = log.flushed_offset - position
            position += sum(record_sizes(log.read(position, min(left, RUN_BYTES_MAX))))


class _Reput:
    """The dispatch of a whole log to new queues and a new index."""

    def __init__(
        self, workspace: Workspace, log: Callable[[], CommitLog], *, with_index: bool
    ) -> None:
        self._workspace = workspace
        self._log = log
        self._with_index = with_index
        self._service: ReputMessageService | None = None

    def prepare(self) -> None:
        log, root = self._log(), self._workspace.fresh()
        config = StoreConfig(store_path_root_dir=root)
        queues = QueueTable(
            FilePool(LocalDisk()), root / "queues", config.mapped_file_size_consume_queue
        )
        index = (
            IndexService(FilePool(LocalDisk()), root / "index", now_ms)
            if self._with_index
            else None
        )
        if index is not None:
            index.load()
        self._workspace.closing(_Closing(queues, index))
        dispatcher = Dispatcher(config.message_delay_level_ms)
        self._service = ReputMessageService(
            log,
            queues,
            index,
            dispatcher,
            lambda: log.flushed_offset,
            empty_recent_writes(),
            RecentLosses(now_ms),
        )

    def run(self) -> None:
        if self._service is None:
            raise RuntimeError("not prepared")
        self._service.run()
        self._service.catch_up_index()


class _Closing:
    """The queues and the index that a service has filled, to be closed."""

    def __init__(self, queues: QueueTable, index: IndexService | None) -> None:
        self._queues = queues
        self._index = index

    def shutdown(self) -> None:
        self._queues.close()
        if self._index is not None:
            self._index.close()
