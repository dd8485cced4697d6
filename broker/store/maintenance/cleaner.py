"""Cleaner: deletes old files in an order that is safe at every crash.

A checkpoint comes first: after a crash, queues must not end before the deleted messages, or offsets
would be assigned twice. Each deletion is reported with its messages, once queues no longer offer
them and before a later disk error can prevent the report.

A file expires `fileReservedTime` after it was last written, by the clock and by the newest message
in the log. Expired files are deleted at the hours of `deleteWhen`, or at any hour once the disk is
fuller than `diskMaxUsedSpaceRatio`. Above `diskSpaceCleanForciblyRatio` younger files are deleted
as well, unless `cleanFileForciblyEnable` is false: the oldest first, until the disk is below that
ratio. The last file always stays, and readers of a deleted file can finish.

A file system may show the room of a deleted file late: btrfs at its next commit, any file system
once the last reader has closed the file. Until then, but for at most a minute, that room counts as
free (`PendingFreeSpace`); otherwise each run would delete further files for the same need.

A file has to be old by the clock and by the newest message, because either may be wrong. A clock
that is years ahead expires nothing; nor does a message stored by such a clock, once the clock is
right again. A file written by such a clock is not kept forever, and a log without new messages does
not expire.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...common.local_time import local_time
from ..components import StoreComponents
from ..config import BrokerRole
from ..files.disk import DiskUsage
from ..files.mapped_file_queue import MappedFile
from ..results import DeletedFiles, PhysicalOffset
from .checkpointer import Checkpointer

_log = logging.getLogger(__name__)


FILES_AT_A_TIME = 10
_HOUR_MS = 3_600_000
_FREE_SPACE_DELAY_MAX_MS = 60_000
"""Time after which deleted files no longer count as free; btrfs commits every 30 s by default."""


class Expiry(NamedTuple):
    """The front of the log that may be deleted now.

    Attributes:
        until: The end of the files that may be deleted.
        forced_from: The end of the expired files. Files from here to ``until`` are younger
            than `fileReservedTime`: the full disk forces their deletion.
    """

    until: PhysicalOffset
    forced_from: PhysicalOffset


class PendingFreeSpace:
    """Bytes of deleted files that the disk does not report as free yet."""

    def __init__(self) -> None:
        self._bytes = self._deleted_bytes = 0
        self._deleted_ms = 0
        self._used = 0
        self._written = 0

    def update(self, usage: DiskUsage, written: int, now_ms: int) -> DiskUsage:
        """Return the usage once all deleted files are free.

        ``written`` is the end of the log: data written since the last call hides as many freed
        bytes.
        """
        freed = self._used + written - self._written - usage.used
        self._used, self._written = usage.used, written
        self._bytes = max(self._bytes - max(freed, 0), 0)
        if self._bytes and not 0 <= now_ms - self._deleted_ms < _FREE_SPACE_DELAY_MAX_MS:
            if self._bytes > self._deleted_bytes // 2:
                _log.warning(
                    "deleting %d bytes of the commit log freed only %d: a snapshot or another "
                    "program holds the deleted files, or others have filled the disk",
                    self._deleted_bytes,
                    self._deleted_bytes - self._bytes,
                )
            self._bytes = 0
        return usage.with_freed(self._bytes)

    def add(self, deleted_bytes: int, now_ms: int) -> None:
        """Expect the room of files that were deleted after the last `update`."""
        if deleted_bytes:
            self._bytes += deleted_bytes
            self._deleted_bytes, self._deleted_ms = self._bytes, now_ms


# ---- Cleaner: the deletion itself, and the refusal of messages while the disk is full.


class Cleaner:
    """The cleaner of a store; ``on_deleted`` gets each report of deleted files and messages."""

    def __init__(
        self,
        components: StoreComponents,
        checkpointer: Checkpointer,
        now_ms: Callable[[], int],
        save_checkpoint: Callable[[], bool],
        stored_ms: Callable[[PhysicalOffset], int | None],
    ) -> None:
        """Use ``stored_ms`` to find when the message at a log offset was stored."""
        self.on_deleted: Callable[[DeletedFiles], object] = lambda _: None
        self.config = components.config
        """The settings of the next `clean`; its sizes and directories must not change."""
        self._components, self._disk, self._log = components, components.disk, components.log
        self._checkpointer = checkpointer
        self._now_ms = now_ms
        self._save_checkpoint = save_checkpoint
        self._stored_ms = stored_ms
        self.refusal_reason: str | None = None
        """The reason why a full disk accepts no messages, or None."""
        self._pending_free_space = PendingFreeSpace()
        self._deleted_bytes = self._forced_bytes = 0
        """Bytes of deleted files that were not reported yet, and the unexpired bytes among them."""

    def clean(self) -> int:
        """Delete expired files, and return their number.

        If no new checkpoint can be saved, only files before the offset of the last one are deleted.
        """
        checkpointing = self._checkpointer
        usage = self._disk.usage(self.config.store_path_root_dir)
        now_ms = self._now_ms()
        usage_after = self._pending_free_space.update(usage, self._log.written_offset, now_ms)
        expiry = self._expiry(now_ms, usage_after)
        if expiry.until > max(self._log.min_offset, checkpointing.saved_offset):
            self._save_checkpoint()
        begin = self._log.min_offset
        first_ms = self._stored_ms(begin) if expiry.until > begin else None
        try:
            deleted = self._log.files.delete_before(min(expiry.until, checkpointing.saved_offset))
        finally:
            end = self._log.min_offset
            self._pending_free_space.add(end - begin, now_ms)
            self._deleted_bytes += end - begin
            self._forced_bytes += max(end - max(begin, expiry.forced_from), 0)
        self.refuse_when_full()
        if self._expire(first_ms, usage.ratio) and not checkpointing.is_under_way:
            self._save_checkpoint()  # a checkpoint under way saves the expiry anyway
        checkpointing.delete_expired()
        self._components.staging_area.discard_expired()
        return deleted

    def _expiry(self, now_ms: int, usage: DiskUsage) -> Expiry:
        """Return what may be deleted now, by the clock and the newest message of the log.

        ``usage`` is that of the disk once all deleted files are free. The hours of the settings are
        in local time, as in RocketMQ.
        """
        config, files = self.config, self._log.files.files
        hour = local_time(now_ms).hour
        may_go = hour in config.delete_when_hours or usage.ratio >= config.disk_max_used_space_ratio
        newest_ms = self._log.timeline.last_ms
        kept_since_ms = min(now_ms, newest_ms) - config.file_reserved_time_hours * _HOUR_MS
        until = forced_from = self._log.min_offset
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
            until = PhysicalOffset(mapped.from_offset + self._log.files.file_size)
            if has_expired:
                forced_from = until
            usage = usage.with_freed(self._log.files.file_size)
        return Expiry(until, forced_from)

    def _written_ms(self, files: Sequence[MappedFile], now_ms: int) -> float:
        """Return when the first of these files was last written, or an upper bound.

        A time in the future comes from a clock that was ahead; the next file's time is used
        instead. A time in the past is used whatever the times of the next files are: a slow clock
        may have written these, and young messages must stay.
        """
        for mapped in files:
            written_ms = self._disk.modified_at(mapped.file.path) * 1000
            if written_ms <= now_ms:
                return written_ms
        return now_ms

    def _expire(self, first_ms: int | None, used_ratio: float) -> bool:
        """Expire the entries of deleted messages; return whether a checkpoint must be saved."""
        checkpointing = self._checkpointer
        if self._log.min_offset > checkpointing.expired_offset:  # the last attempt may have failed
            spans = checkpointing.expire_entries()
            has_changed = True
        else:
            spans = checkpointing.expire_remaining()
            has_changed = bool(spans)
        if self._deleted_bytes or any(span.first < span.next for span in spans):
            file_size, log_offset = self._log.files.file_size, self._log.min_offset
            forced_files = self._forced_bytes // file_size
            deleted = DeletedFiles(
                expired_files=self._deleted_bytes // file_size - forced_files,
                forced_files=forced_files,
                size_bytes=self._deleted_bytes,
                first_ms=first_ms,
                next_ms=self._stored_ms(log_offset),
                used_ratio=used_ratio,
                log_offset=log_offset,
                spans=tuple(spans),
            )
            self._deleted_bytes = self._forced_bytes = 0
            self.on_deleted(deleted)
        return has_changed

    def refuse_when_full(self) -> None:
        """Refuse messages if the disk is fuller than its limit; accept them again if it is not."""
        used = self._disk.usage(self.config.store_path_root_dir).ratio
        limit = self.config.disk_space_warning_level_ratio
        if self.config.broker_role is BrokerRole.SLAVE:
            return
        was_full, is_full = self.refusal_reason is not None, used >= limit
        why = f"the disk is {used:.0%} full, over {limit:.0%}"
        if is_full and not was_full:
            _log.warning("messages are refused: %s (diskSpaceWarningLevelRatio)", why)
        elif was_full and not is_full:
            _log.warning("messages are accepted again: the disk is %s full", f"{used:.0%}")
        self.refusal_reason = why if is_full else None
