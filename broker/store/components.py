"""StoreComponents: log, consume queues, index and reput of one store, connected but not open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..common.recent_losses import RecentLosses
from .config import FlushDiskType, StoreConfig
from .dispatch.dispatcher import Dispatcher
from .dispatch.reput import ReputMessageService
from .files.disk import LocalDisk
from .files.file_pool import FilePool
from .index.index_service import IndexService
from .log.commit_log import FILE_CHECK_INTERVAL_MS, CommitLog
from .queues.queue_table import QueueTable, RecoveredEnds
from .records.recent_writes import empty_recent_writes
from .results import PhysicalOffset
from .staging.commit_table import BatchTable
from .staging.staging_area import STAGING, StagingArea

COMMIT_LOG: Final = "commitlog"
CONSUME_QUEUE: Final = "consumequeue"
INDEX: Final = "index"
CONFIG: Final = "config"
WRITTEN_DIRECTORIES: Final = (COMMIT_LOG, CONSUME_QUEUE, CONFIG)
"""The subdirectories to which every store writes."""


class StoreComponents:
    """The parts of a store."""

    def __init__(self, config: StoreConfig, disk: LocalDisk, now_ms: Callable[[], int]) -> None:
        self.config = config
        self.disk = disk
        root = config.store_path_root_dir
        self.pool = pool = FilePool(disk, config.open_files_max)
        self.losses = RecentLosses(now_ms)
        self.is_sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        """True if a message is confirmed once it is flushed, rather than once it is written."""
        self.log = CommitLog(
            pool,
            root / COMMIT_LOG,
            config.mapped_file_size_commit_log,
            now_ms,
            file_check_interval_ms=None if self.is_sync else FILE_CHECK_INTERVAL_MS,
        )
        self.queues = QueueTable(pool, root / CONSUME_QUEUE, config.mapped_file_size_consume_queue)
        self.index: IndexService | None = None
        if config.message_index_enable:
            self.index = IndexService(
                pool,
                root / INDEX,
                now_ms,
                hash_slot_num=config.max_hash_slot_num,
                index_num=config.max_index_num,
                hops_max=config.index_hops_max,
            )
        self.dispatcher = Dispatcher(config.message_delay_level_ms)
        self.recent_writes = empty_recent_writes()
        """Records that the appenders pass to reput."""
        self.reput = reput = ReputMessageService(
            self.log,
            self.queues,
            self.index,
            self.dispatcher,
            self.confirm_offset,
            self.recent_writes,
            self.losses,
        )
        self.recovered_ends = RecoveredEnds(lambda: reput.reput_from_offset)
        self.batch_table = BatchTable(disk, root / CONFIG, now_ms, self.losses)
        self.staging_area = StagingArea(
            disk, root / STAGING, config.staged_bytes_max, lambda: now_ms() / 1000, self.losses
        )

    def confirm_offset(self) -> PhysicalOffset:
        """Return the confirm offset: messages before it survive a crash.

        Consumers see messages up to there, or up to the start of an open commit.
        """
        return self.log.flushed_offset if self.is_sync else self.log.written_offset

    @property
    def root(self) -> Path:
        """The directory of the store."""
        return self.config.store_path_root_dir

    def close(self) -> None:
        """Close all files of the store; dispatch stops first."""
        self.reput.stop()
        self.log.close()
        self.queues.close()
        self.batch_table.close()
        if self.index is not None:
            self.index.close()
