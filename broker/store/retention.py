"""Retention: which files at the front of the commit log may be deleted.

A file expires `fileReservedTime` after it was last written, by the clock and by the newest message
in the log. Expired files are deleted at the hours of `deleteWhen`, or at any hour once the disk is
fuller than `diskMaxUsedSpaceRatio`. Above `diskSpaceCleanForciblyRatio` younger files are deleted
as well, unless `cleanFileForciblyEnable` is false: the oldest first, and no more than bring the
disk below that ratio. The last file always stays, and readers of a deleted file can finish.

Both clocks have to agree because either alone may be wrong: a clock that is years ahead expires
nothing, nor does a message that was stored by such a clock once the clock is right again. A file
written by it does not stay for ever, and a log that nobody writes to does not expire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rocketpoll.broker.local_time import local_time
from rocketpoll.broker.store.config import StoreConfig
from rocketpoll.broker.store.disk import Disk
from rocketpoll.broker.store.mapped_file_queue import MappedFile, MappedFileQueue
from rocketpoll.broker.store.offsets import PhysicalOffset

FILES_AT_A_TIME = 10
_HOUR_MS = 3_600_000


class Expiry(NamedTuple):
    """The front of the log that may be deleted now.

    Attributes:
        until: The end of the files that may be deleted.
        forced_from: The end of those that have expired. Files from here to ``until`` are younger
            than `fileReservedTime`: the full disk forces their deletion.
    """

    until: PhysicalOffset
    forced_from: PhysicalOffset


class Retention:
    """The decision on which files may be deleted from the front of the log."""

    def __init__(self, config: StoreConfig, disk: Disk, files: MappedFileQueue) -> None:
        """Take the settings; their hours are those of local time, as RocketMQ takes them."""
        self._config = config
        self._disk = disk
        self._files = files

    def expiry(self, now_ms: int, newest_ms: int) -> Expiry:
        """Return what may be deleted now, by the clock and the newest message of the log."""
        config, file_size = self._config, self._files.file_size
        usage = self._disk.usage(config.store_path_root_dir)
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
