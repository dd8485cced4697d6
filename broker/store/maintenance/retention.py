"""Retention: decides which files at the front of the commit log may be deleted.

A file expires `fileReservedTime` after it was last written, by the clock and by the newest message
in the log. Expired files are deleted at the hours of `deleteWhen`, or at any hour once the disk is
fuller than `diskMaxUsedSpaceRatio`. Above `diskSpaceCleanForciblyRatio` younger files are deleted
as well, unless `cleanFileForciblyEnable` is false: the oldest first, and no more than bring the
disk below that ratio. The last file always stays, and readers of a deleted file can finish.

A disk may show the room of a deleted file late: btrfs at its next commit, any file system once the
last reader has closed the file. Until then, but for a minute at most, that room counts as free
(`PendingFreeSpace`); otherwise each run would delete further files for the same need.

Both clocks have to agree because either alone may be wrong. A clock that is years ahead expires
nothing, nor does a message that was stored by such a clock once the clock is right again. A file
written by it does not stay for ever, and a log that nobody writes to does not expire.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from ...common.local_time import local_time
from ..config import StoreConfig
from ..files.disk import Disk, DiskUsage
from ..files.mapped_file_queue import MappedFile, MappedFileQueue
from ..results import PhysicalOffset

FILES_AT_A_TIME = 10
_HOUR_MS = 3_600_000
_FREE_SPACE_DELAY_MAX_MS = 60_000
"""Time in which the disk has to show deleted files as free; btrfs commits every 30 s by default."""
_log = logging.getLogger(__name__)


class Expiry(NamedTuple):
    """The front of the log that may be deleted now.

    Attributes:
        until: The end of the files that may be deleted.
        forced_from: The end of those that have expired. Files from here to ``until`` are younger
            than `fileReservedTime`: the full disk forces their deletion.
    """

    until: PhysicalOffset
    forced_from: PhysicalOffset


class PendingFreeSpace:
    """The bytes of deleted files that the disk does not report as free yet."""

    def __init__(self) -> None:
        """Begin with nothing deleted."""
        self._bytes = self._deleted_bytes = 0
        self._deleted_ms = 0
        self._used = 0
        self._written = 0

    def update(self, usage: DiskUsage, written: int, now_ms: int) -> DiskUsage:
        """Return the usage once all that was deleted is free.

        ``written`` is the end of the log: what was written since the last call hides as much room
        that became free.
        """
        freed = self._used + written - self._written - usage.used
        self._used, self._written = usage.used, written
        self._bytes = max(self._bytes - max(freed, 0), 0)
        if self._bytes and not 0 <= now_ms - self._deleted_ms < _FREE_SPACE_DELAY_MAX_MS:
            if self._bytes > self._deleted_bytes // 2:
                _log.warning(
                    "deleting %d bytes of the commit log has freed %d: a snapshot or another "
                    "program holds the deleted files, or others have filled the disk",
                    self._deleted_bytes,
                    self._deleted_bytes - self._bytes,
                )
            self._bytes = 0
        return usage.with_freed(self._bytes)

    def add(self, deleted_bytes: int, now_ms: int) -> None:
        """Expect the room of files that were deleted after the last look."""
        if deleted_bytes:
            self._bytes += deleted_bytes
            self._deleted_bytes, self._deleted_ms = self._bytes, now_ms


class Retention:
    """Decides which files may be deleted from the front of the log."""

    def __init__(self, config: StoreConfig, disk: Disk, files: MappedFileQueue) -> None:
        """Take the settings; their hours are those of local time, as RocketMQ takes them."""
        self._config = config
        self._disk = disk
        self._files = files

    def expiry(self, now_ms: int, newest_ms: int, usage: DiskUsage) -> Expiry:
        """Return what may be deleted now, by the clock and the newest message of the log.

        ``usage`` is that of the disk once all deleted files are free.
        """
        config, file_size = self._config, self._files.file_size
        hour = local_time(now_ms).hour
        may_go = hour in config.delete_when_hours or usage.ratio >= config.disk_max_used_space_ratio
        kept_since_ms = min(now_ms, newest_ms) - config.file_reserved_time_hours * _HOUR_MS
        until = forced_from = PhysicalOffset(self._files.first_offset)
        files = self._files.files
        for number, mapped in enumerate(files[:-1][:FILES_AT_A_TIME]):
            has_expired = (
                may_go
                and until == forced_from
                and self._written_ms(files[number:], now_ms) < kept_since_ms
            )
            is_forced = (
                config.clean_file_forcibly_enable
                and usage.ratio >= config.disk_space_clean_forcibly_ratio
            )
            if not has_expired and not is_forced:
                break
            until = PhysicalOffset(mapped.from_offset + file_size)
            if has_expired:
                forced_from = until
            usage = usage.with_freed(file_size)
        return Expiry(until, forced_from)

    def _written_ms(self, files: Sequence[MappedFile], now_ms: int) -> float:
        """Return when the first of these files was written last, or at the latest.

        A time in the future comes from a clock that was ahead; the next file's time stands for it.
        A time in the past is believed whatever the next files say, because these may have been
        written by a clock that was slow, and young messages must stay.
        """
        for mapped in files:
            written_ms = self._disk.modified_at(mapped.file.path) * 1000
            if written_ms <= now_ms:
                return written_ms
        return now_ms
