"""TimerFiles: the files of waiting timers, in the formats of RocketMQ 5.

    timerwheel, timerlog/   the index: `TimerWheel`, `TimerLog`
    config/timercheck       how far the index goes: `TimerCheckpoint`
    config/timermetrics     the number of waiting messages by topic

A save makes the messages durable first, then the timer log, then the wheel, then the checkpoint. So
a checkpoint is never ahead of them, and a start finds newer timers in the timer log. The messages
of the timer topic suffice to rebuild all files.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from zlib import crc32

from rmq_spark.wire.bodies.configs import DataVersion, TimerMetric, TimerMetricsSerializeWrapper

from ..store.errors import DamagedTable, ForeignFile, MissingFile
from ..store.files.disk import LocalDisk
from ..store.files.file_pool import FilePool
from ..store.files.json_table import JsonTable
from ..store.results import LOG_START, PhysicalOffset
from .timer_log import ENTRY_BYTES, TimerEntry, TimerLog
from .timer_wheel import TimerSlot, TimerWheel

_CHECKPOINT_BYTES: Final = 4096
_FIELDS = struct.Struct(">9q")
_MARK: Final = b"rkpt"
_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """The state of the timers that is neither in the wheel nor in the timer log.

    It is the file config/timercheck:

        i64 read time            @0    all slots before it are delivered
        i64 end of the timer log @8
        i64 queue offset         @16   messages of the timer topic before it are in the timer log
        i64 master queue offset  @24   here the same
        i64 state version, timestamp, counter   @32
        i64 clock was set        @56   here: 1 if slots may differ from the times of day
        i64 precision            @64   here: the milliseconds of a slot
        u32 mark, u32 CRC-32 of all before it   @72
            zeros, 4096 bytes in all

    RocketMQ writes the first fields in place and leaves ours unchanged, so ours count only if the
    CRC is right.
    """

    read_ms: int = 0
    log_end: int = 0
    queue_offset: int = 0
    clock_was_set: bool = False
    """True if slots may differ from the times of day at which their messages are due."""
    saved_ms: int = 0
    version: int = 0
    precision_ms: int = 0
    """The milliseconds of a slot; 0 if unknown."""


def save_timer_checkpoint(disk: LocalDisk, path: Path, checkpoint: TimerCheckpoint) -> None:
    """Replace the checkpoint durably."""
    at = checkpoint.queue_offset
    content = _FIELDS.pack(
        checkpoint.read_ms,
        checkpoint.log_end,
        at,
        at,
        0,
        checkpoint.saved_ms,
        checkpoint.version,
        int(checkpoint.clock_was_set),
        checkpoint.precision_ms,
    )
    new_path = path.with_name(path.name + ".tmp")
    data = content + _MARK + _CRC.pack(crc32(content))
    disk.write_whole(new_path, data.ljust(_CHECKPOINT_BYTES, b"\0"))
    disk.rename(new_path, path)
    disk.flush_directory(path.parent)


def load_timer_checkpoint(disk: LocalDisk, path: Path) -> TimerCheckpoint | None:
    """Return the checkpoint, or None if there is none."""
    try:
        data = disk.read(path)
    except FileNotFoundError:
        return None
    if len(data) < _FIELDS.size:
        return None
    read, log_end, queue_offset, master, _, saved_ms, version, *own_fields = _FIELDS.unpack_from(
        data
    )
    content, proof = data[: _FIELDS.size], data[_FIELDS.size : _FIELDS.size + 8]
    if proof != _MARK + _CRC.pack(crc32(content)):
        own_fields = [0, 0]
    clock_was_set, precision_ms = own_fields
    return TimerCheckpoint(
        read,
        log_end,
        min(queue_offset, master),
        bool(clock_was_set),
        saved_ms,
        version,
        precision_ms,
    )


TIMER_WHEEL: Final = "timerwheel"
TIMER_LOG: Final = "timerlog"
TIMER_CHECK: Final = "timercheck"
TIMER_METRICS: Final = "timermetrics"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TimerSnapshot:
    """The state of all timers at one moment, and the slots that have changed."""

    checkpoint: TimerCheckpoint
    indexed_end: PhysicalOffset = LOG_START
    """The end of the last indexed message in the commit log."""
    has_index: bool = True
    """False if all messages have to be indexed again."""
    counts: Mapping[str, int] = field(default_factory=dict)
    changes: Mapping[int, TimerSlot] = field(default_factory=dict)


class TimerFiles:
    """The files of one store. The broker's thread changes wheel and log; another one saves them."""

    def __init__(
        self,
        disk: LocalDisk,
        root: Path,
        precision_ms: int,
        file_size: int,
        make_durable: Callable[[PhysicalOffset], object],
        first_offset: Callable[[], PhysicalOffset],
    ) -> None:
        """Store the parts without touching the disk.

        ``make_durable`` flushes delivered messages, and those before an offset. ``first_offset``
        returns where the commit log begins.
        """
        self._disk = disk
        self._make_durable = make_durable
        self._first_offset = first_offset
        pool = FilePool(disk)
        self.wheel = TimerWheel(pool, root / TIMER_WHEEL, precision_ms)
        self.log = TimerLog(pool, root / TIMER_LOG, file_size)
        self._check_path = root / "config" / TIMER_CHECK
        self._metrics = JsonTable(
            disk, root / "config" / TIMER_METRICS, TimerMetricsSerializeWrapper
        )
        self._lock = threading.Lock()
        self._saved = TimerCheckpoint()

    def open(self, is_recoverable: Callable[[TimerEntry], bool], now_ms: int) -> TimerSnapshot:
        """Open wheel and log, and return the last saved state.

        It includes newer entries of the timer log that ``is_recoverable`` accepts.
        """
        counts = self._load_counts()
        checkpoint = load_timer_checkpoint(self._disk, self._check_path)
        if checkpoint is None or not self._open(checkpoint, now_ms):
            self._discard()
            checkpoint = checkpoint or TimerCheckpoint()
            self._saved = replace(checkpoint, log_end=0, queue_offset=0)
            return TimerSnapshot(checkpoint, has_index=False)
        self._saved = checkpoint
        indexed_end = self._recover(checkpoint, is_recoverable)
        return TimerSnapshot(checkpoint, indexed_end, counts=counts)

    def _recover(
        self, checkpoint: TimerCheckpoint, is_recoverable: Callable[[TimerEntry], bool]
    ) -> PhysicalOffset:
        """Add timers newer than the checkpoint; return the end of the last indexed message."""
        indexed_end = LOG_START
        while True:
            position = self.log.end
            entry = self.log.recover_next()
            if entry is None:
                break
            # past the wheel's span, the slot may still have timers of an earlier time
            is_in_span = entry.slot_ms < checkpoint.read_ms + self.wheel.span_ms
            if not is_in_span or not is_recoverable(entry):
                self.log.end = position
                break
            indexed_end = max(indexed_end, PhysicalOffset(entry.physical_offset + entry.size))
            if entry.slot_ms >= checkpoint.read_ms:
                self._restore(entry)
        self.log.wipe_tail()
        return indexed_end

    def _load_counts(self) -> dict[str, int]:
        try:
            loaded = self._metrics.load(TimerMetricsSerializeWrapper())
        except DamagedTable as error:  # RocketMQ writes it in place; only metrics need it
            _log.warning("the numbers of waiting timers by topic are lost: %s", error)
            for path in (self._metrics.path, self._metrics.path.with_name(f"{TIMER_METRICS}.bak")):
                self._disk.delete(path)
            return {}
        return {topic: each.count for topic, each in loaded.timing_count.items()}

    def _open(self, checkpoint: TimerCheckpoint, now_ms: int) -> bool:
        try:
            self.log.load(checkpoint.log_end)
        except (ForeignFile, MissingFile) as error:
            _log.warning("timers are indexed again: %s", error)
            return False
        is_usable = checkpoint.precision_ms in (0, self.wheel.precision_ms)
        is_complete = self.log.end == checkpoint.log_end
        return is_usable and is_complete and self.wheel.load(checkpoint.read_ms, now_ms)

    def _discard(self) -> None:
        self.log.delete()
        self.wheel.delete()

    def _restore(self, entry: TimerEntry) -> None:
        """Add the last entry of the log to its slot."""
        position = self.log.end - ENTRY_BYTES
        slot = self.wheel.get(entry.slot_ms)
        if slot is None:
            self.wheel.put(TimerSlot(entry.slot_ms, position, position, 1))
        elif slot.last < position:
            self.wheel.put(slot._replace(last=position, timers=slot.timers + 1))

    def save(self, value: TimerSnapshot) -> None:
        """Make a state durable. Any thread may call this."""
        self._make_durable(value.indexed_end)
        self.log.flush()
        self.wheel.save(value.changes)
        with self._lock:
            self._saved = replace(
                value.checkpoint,
                version=self._saved.version + 1,
                clock_was_set=self._saved.clock_was_set,
            )
            save_timer_checkpoint(self._disk, self._check_path, self._saved)
        self._metrics.save(
            TimerMetricsSerializeWrapper(
                timing_count={
                    topic: TimerMetric(count, value.checkpoint.saved_ms)
                    for topic, count in value.counts.items()
                },
                data_version=DataVersion(
                    timestamp=value.checkpoint.saved_ms, counter=self._saved.version
                ),
            )
        )
        self.log.delete_before(self._first_offset())

    def save_clock_was_set(self) -> None:
        """Save that the clock was set, before any timer is set by the new time."""
        with self._lock:
            if not self._saved.clock_was_set:
                saved = replace(self._saved, clock_was_set=True)
                save_timer_checkpoint(self._disk, self._check_path, saved)
                self._saved = saved

    def save_read_ms(self, read_ms: int) -> None:
        """Save that slots are read again from an earlier time on, before they get timers.

        Otherwise `open` would take the new entries of these slots for delivered ones.
        """
        with self._lock:
            saved = replace(self._saved, read_ms=read_ms)
            save_timer_checkpoint(self._disk, self._check_path, saved)
            self._saved = saved

    def clear_clock_was_set(self) -> None:
        """Record with the next save that all slots match the times of day again."""
        with self._lock:
            self._saved = replace(self._saved, clock_was_set=False)

    def close(self) -> None:
        """Close all files."""
        self.log.close()
        self.wheel.close()
