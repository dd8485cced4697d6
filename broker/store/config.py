"""The store's settings: every default in one place, with RocketMQ's names in snake case."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rocketpoll.broker.store.consume_queue import ENTRY_BYTES
from rocketpoll.broker.store.file_pool import OPEN_FILES_MAX
from rocketpoll.broker.store.index_file import INDEX_HOPS_MAX

_MIB = 1 << 20
_DELAY_SECONDS = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


class FlushDiskType(Enum):
    """The moment at which a message counts as stored."""

    SYNC_FLUSH = "SYNC_FLUSH"  # when it is on the disk
    ASYNC_FLUSH = "ASYNC_FLUSH"  # when it is written; on the disk half a second later


class BrokerRole(Enum):
    """The role of the store: whether it takes messages from producers, and tells of arrivals."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SLAVE = "SLAVE"


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """All settings of a `MessageStore`. File sizes must stay those of an existing store."""

    store_path_root_dir: Path
    mapped_file_size_commit_log: int = 1024 * _MIB
    mapped_file_size_consume_queue: int = 300_000 * ENTRY_BYTES
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    message_index_enable: bool = True
    index_hops_max: int = INDEX_HOPS_MAX
    flush_disk_type: FlushDiskType = FlushDiskType.SYNC_FLUSH
    flush_interval_commit_log_ms: int = 500
    check_whole_log_bytes: int = 256 * _MIB
    """The size in bytes up to which a log is checked from its start whenever it is opened.

    A larger one is checked from its checkpoint.
    """
    open_files_max: int = OPEN_FILES_MAX
    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    max_message_size: int = 4 * _MIB
    file_reserved_time_hours: int = 72
    delete_when_hours: tuple[int, ...] = (4,)
    disk_max_used_space_ratio: float = 0.75
    disk_space_clean_forcibly_ratio: float = 0.85
    disk_space_warning_level_ratio: float = 0.90
    message_delay_level_ms: tuple[int, ...] = tuple(1000 * seconds for seconds in _DELAY_SECONDS)
