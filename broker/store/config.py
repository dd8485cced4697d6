"""StoreConfig: the store's settings and their defaults, with RocketMQ's names in snake case."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rmq_spark.wire.remoting.framing import FRAME_BYTES_MAX, HEADER_BYTES_MAX

from ..common.setting import (
    COUNT,
    DELAY_LEVELS,
    DIRECTORY,
    FLAG,
    HOURS,
    JAVA_INT_MAX,
    OPTIONAL_SIZE,
    PERCENT,
    choice,
    number,
    required_setting,
    setting,
)
from .files.file_pool import OPEN_FILES_MAX
from .index.index_file import HASH_SLOT_NUM_MAX, INDEX_HOPS_MAX, INDEX_NUM_MAX
from .queues.consume_queue import ENTRY_BYTES

_MIB = 1 << 20
_TIMER_SLOTS_MAX = 7 * 24 * 3_600 - 60
_DELAYS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


class FlushDiskType(Enum):
    """The moment at which a message counts as stored."""

    SYNC_FLUSH = "SYNC_FLUSH"  # when it is on the disk
    ASYNC_FLUSH = "ASYNC_FLUSH"  # when it is written; on the disk half a second later


class BrokerRole(Enum):
    """The role of the store: whether it accepts messages from producers, and reports arrivals."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SLAVE = "SLAVE"


@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """All settings of a `MessageStore`. File sizes must not change for an existing store."""

    broker_role: BrokerRole = setting(
        "brokerRole",
        choice(BrokerRole, "; SYNC_MASTER needs a RocketMQ cluster"),
        "ASYNC_MASTER, or SLAVE: read-only",
        default=BrokerRole.ASYNC_MASTER,
    )
    max_message_size: int = setting(
        "maxMessageSize",
        number(1, FRAME_BYTES_MAX - HEADER_BYTES_MAX),
        "maximum size of one message, in bytes",
        default=4 * _MIB,
    )
    message_delay_level_ms: tuple[int, ...] = setting(
        "messageDelayLevel",
        DELAY_LEVELS,
        "delays of the levels 1, 2, 3 ...",
        default=DELAY_LEVELS.parse(_DELAYS),
    )
    timer_wheel_enable: bool = setting(
        "timerWheelEnable",
        FLAG,
        "whether messages may be sent for delivery at any time (TIMER_DELIVER_MS and others)",
        default=True,
    )
    timer_max_delay_seconds: int = setting(
        "timerMaxDelaySec",
        COUNT,
        "the longest time that a message may wait for its delivery time, in seconds",
        default=3 * 24 * 3_600,
    )
    timer_precision_ms: int = setting(
        "timerPrecisionMs",
        number(100, 1_000),
        "length of a slot of the timer wheel, as in RocketMQ: 100, 200, 500 or 1000; ms",
        default=1_000,
    )
    timer_roll_window_slots: int = setting(
        "timerRollWindowSlot",
        number(2, _TIMER_SLOTS_MAX),
        "a message that is due in more slots is stored again, before its file expires",
        default=2 * 24 * 3_600,
    )
    mapped_file_size_timer_log: int = setting(
        "mappedFileSizeTimerLog",
        number(4_096, JAVA_INT_MAX),
        "size of a file of the timer log, in bytes; after a change, the timer log is rebuilt",
        default=100 * _MIB,
    )
    store_path_root_dir: Path = required_setting(
        "storePathRootDir", DIRECTORY, "directory of the store"
    )
    open_files_max: int = setting(
        "maxOpenFiles",
        COUNT,
        "maximum number of open files of the store; fewer where the system allows fewer",
        default=OPEN_FILES_MAX,
    )
    mapped_file_size_commit_log: int = setting(
        "mappedFileSizeCommitLog",
        number(4_096, JAVA_INT_MAX),
        "size of a commit log file, in bytes; never change it for an existing store",
        default=1024 * _MIB,
    )
    mapped_file_size_consume_queue: int = setting(
        "mappedFileSizeConsumeQueue",
        number(ENTRY_BYTES, JAVA_INT_MAX),
        "size of a consume queue file, in bytes; never change it for an existing store",
        default=300_000 * ENTRY_BYTES,
    )
    max_hash_slot_num: int = setting(
        "maxHashSlotNum",
        number(1, HASH_SLOT_NUM_MAX),
        "hash slots of an index file; never change it for an existing store",
        default=5_000_000,
    )
    max_index_num: int = setting(
        "maxIndexNum",
        number(2, INDEX_NUM_MAX),
        "entries of an index file; never change it for an existing store",
        default=20_000_000,
    )
    message_index_enable: bool = setting(
        "messageIndexEnable", FLAG, "whether messages can be found by key", default=True
    )
    index_hops_max: int = setting(
        "maxIndexHops",
        COUNT,
        "maximum number of index entries that one query looks at",
        default=INDEX_HOPS_MAX,
    )
    flush_disk_type: FlushDiskType = setting(
        "flushDiskType",
        choice(FlushDiskType),
        "SYNC_FLUSH: an acknowledged message is on the disk; ASYNC_FLUSH: it will be soon",
        default=FlushDiskType.SYNC_FLUSH,
        rocketmq="ASYNC_FLUSH",
    )
    flush_interval_commit_log_ms: int = setting(
        "flushIntervalCommitLog",
        COUNT,
        "interval between flushes with ASYNC_FLUSH; ms",
        default=500,
    )
    check_whole_log_bytes: int = setting(
        "checkWholeLogBytes",
        OPTIONAL_SIZE,
        "a commit log up to this size, in bytes, is checked as a whole at every start",
        default=256 * _MIB,
    )
    staged_bytes_max: int = setting(
        "maxStagedBytes",
        OPTIONAL_SIZE,
        "maximum size of all staged batches together, in bytes; one batch may use all of it",
        default=1024 * _MIB,
    )
    file_reserved_time_hours: int = setting(
        "fileReservedTime",
        COUNT,
        "hours for which messages are kept",
        default=72,
        is_reloadable=True,
    )
    delete_when_hours: tuple[int, ...] = setting(
        "deleteWhen",
        HOURS,
        "hours of the day in which expired messages are deleted",
        default=(4,),
        is_reloadable=True,
    )
    disk_max_used_space_ratio: float = setting(
        "diskMaxUsedSpaceRatio",
        PERCENT,
        "percent of the disk used above which expired messages are deleted at any hour",
        default=0.75,
        is_reloadable=True,
    )
    disk_space_clean_forcibly_ratio: float = setting(
        "diskSpaceCleanForciblyRatio",
        PERCENT,
        "percent of the disk used above which the oldest messages are deleted, whatever their age",
        default=0.85,
        is_reloadable=True,
    )
    clean_file_forcibly_enable: bool = setting(
        "cleanFileForciblyEnable",
        FLAG,
        "true: a full disk deletes messages younger than fileReservedTime; false: sends are "
        "refused",
        default=True,
        is_reloadable=True,
    )
    disk_space_warning_level_ratio: float = setting(
        "diskSpaceWarningLevelRatio",
        PERCENT,
        "percent of the disk used above which sends are refused",
        default=0.90,
        is_reloadable=True,
    )
