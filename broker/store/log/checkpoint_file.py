"""Checkpoint: the offset up to which log, consume queues and index were all on the disk.

    i64 physicMsgTimestamp      @0    store time of the last flushed message
    i64 logicsMsgTimestamp      @8    of the last one whose consume-queue entry was flushed
    i64 indexMsgTimestamp       @16   of the last one in the index
    i64 masterFlushedOffset     @24
    i64 confirmPhyOffset        @32   here: all before it is safe in log, queues and index
    i64 logicsPhysicalOffset    @40
    i64 sealedFrom              @48   ours: from there on every record ends with a checksum
    i64 manifestSerial          @56   ours: number of the last saved manifest
        zeros
    u32 mark, u32 CRC-32 of all before it   @4088

RocketMQ writes the first fields in place and does not change the mark. So the checkpoint is trusted
only if the CRC is right, too: then this broker wrote last.

The file has 4096 bytes, as in RocketMQ. It is written to another name and renamed, so that it is
never torn.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass
from pathlib import Path

from rmq_spark.wire.isa_l import crc32

from ..errors import has_lost_content
from ..files.disk import LocalDisk
from ..results import LOG_START, PhysicalOffset

_log = logging.getLogger(__name__)
CHECKPOINT = "checkpoint"
CHECKPOINT_BYTES = 4096
_FIELDS = struct.Struct(">8q")
_MARK = b"rkp2"
_CRC = struct.Struct(">I")
_BEFORE_MARK = CHECKPOINT_BYTES - len(_MARK) - _CRC.size


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The part of the log that was known to be on the disk."""

    safe_offset: PhysicalOffset
    store_timestamp: int
    sealed_from: PhysicalOffset = LOG_START
    manifest_serial: int = 0
    """The serial number of the last saved manifest; that manifest has a higher one if a crash came
    between the two saves."""


def save_checkpoint(disk: LocalDisk, path: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint; the new one is durable when this returns."""
    time, offset = checkpoint.store_timestamp, checkpoint.safe_offset
    fields = _FIELDS.pack(
        time, time, time, offset, offset, offset, checkpoint.sealed_from, checkpoint.manifest_serial
    )
    new_path = path.with_name(path.name + ".tmp")
    content = fields.ljust(_BEFORE_MARK, b"\0")
    disk.write_whole(new_path, content + _MARK + _CRC.pack(crc32(content)))
    disk.rename(new_path, path)
    disk.flush_directory(path.parent)


def load_checkpoint(disk: LocalDisk, path: Path) -> Checkpoint | None:
    """Return the checkpoint, or None if there is none or another program wrote last.

    A checkpoint that the disk does not return counts as none.
    """
    if disk.size_of(path) != CHECKPOINT_BYTES:
        return None
    try:
        data = disk.read(path)
    except OSError as error:
        if not has_lost_content(error):
            raise
        _log.warning("%s cannot be read (%s): the start ignores it", path, error.strerror)
        return None
    content = data[:_BEFORE_MARK]
    if data[_BEFORE_MARK:] != _MARK + _CRC.pack(crc32(content)):
        return None
    time, _, _, _, offset, _, sealed_from, manifest_serial = _FIELDS.unpack_from(data)
    return Checkpoint(offset, time, sealed_from, manifest_serial)
