"""Retention: which files of the log are old enough to go, or have to because the disk fills up.

By age, at the hours that are set: files last written longer ago than the reserved time, by the
clock and by the newest message in the log. By need, at any time: above one ratio of the disk, files
past their time at once; above a second, the oldest whatever its age. Oldest first, a few at a time,
never the last; a reader of a file goes on reading it.

So a clock that is years ahead makes no file old by itself, and a message that was stored by such a
clock makes none old once the clock is right again; nor does a file stay that was written by it. Nor
does a log grow old into which nobody writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from rocketpoll.broker.local_time import local_time
from rocketpoll.broker.store.config import StoreConfig
from rocketpoll.broker.store.disk import Disk
from rocketpoll.broker.store.mapped_file_queue import MappedFile, MappedFileQueue

FILES_AT_A_TIME = 10
_HOUR_MS = 3_600_000


class Retention:
    """The decision on what may go from the front of the log."""

    def __init__(self, config: StoreConfig, disk: Disk, files: MappedFileQueue) -> None:
        """Take the settings; their hours are those of local time, as RocketMQ takes them."""
        self._config = config
        self._disk = disk
        self._files = files

    def expired_until(self, now_ms: int, newest_ms: int) -> int:
        """Return up to where the log may or must go now, by the clock and its newest message."""
        used = self._disk.usage(self._config.store_path_root_dir).ratio
        must_go = used >= self._config.disk_space_clean_forcibly_ratio
        hour = local_time(now_ms).hour
        may_go = (
            hour in self._config.delete_when_hours or used >= self._config.disk_max_used_space_ratio
        )
        kept_since_ms = min(now_ms, newest_ms) - self._config.file_reserved_time_hours * _HOUR_MS
        expired_until = self._files.first_offset
        files = self._files.files
        for number, mapped in enumerate(files[:-1][:FILES_AT_A_TIME]):
            if not must_go and not (
                may_go and self._written_ms(files[number:], now_ms) < kept_since_ms
            ):
                break
            expired_until = mapped.from_offset + self._files.file_size
        return expired_until

    def _written_ms(self, files: Sequence[MappedFile], now_ms: int) -> float:
        """Return when the first of these files was written last, or at the latest.

        A time that is still to come was told by a clock that was ahead. The time of the file behind
        stands for it; one that has passed is believed, whatever those behind it say: they may have
        been written by a clock that was behind, and what is young must not go.
        """
        for mapped in files:
            written_ms = self._disk.modified_at(mapped.file.path) * 1000
            if written_ms <= now_ms:
                return written_ms
        return now_ms
