"""Timer checkpoint: how far timers are indexed and delivered, in RocketMQ's file config/timercheck.

    i64 read time            @0    all slots before it are delivered
    i64 end of the timer log @8
    i64 queue offset         @16   messages of the timer topic before it are in the timer log
    i64 the master's         @24   the same
    i64 state version, timestamp, counter   @32
    i64 clock was set        @56   here: 1 if timers were set by another time than the broker's
    i64 precision            @64   here: the milliseconds of a slot
    u32 mark, u32 CRC-32 of all before it   @72
        zeros, 4096 bytes in all

RocketMQ writes the first fields in place, and leaves ours unchanged: they count only if the CRC is
right.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

from ..store.files.disk import LocalDisk

_BYTES: Final = 4096
_FIELDS = struct.Struct(">9q")
_MARK: Final = b"rkpt"
_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """The state of all timers that the wheel and the timer log do not have."""

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
    """Replace the checkpoint; the new one is durable when this returns."""
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
    disk.write_whole(new_path, data.ljust(_BYTES, b"\0"))
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
    read, log_end, queue_offset, master, _, saved_ms, version, *ours = _FIELDS.unpack_from(data)
    content, proof = data[: _FIELDS.size], data[_FIELDS.size : _FIELDS.size + 8]
    if proof != _MARK + _CRC.pack(crc32(content)):
        ours = [0, 0]
    clock_was_set, precision_ms = ours
    return TimerCheckpoint(
        read,
        log_end,
        min(queue_offset, master),
        bool(clock_was_set),
        saved_ms,
        version,
        precision_ms,
    )
