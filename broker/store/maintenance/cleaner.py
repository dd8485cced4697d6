"""Cleaning: deletes old files in an order that no crash can turn into a wrong answer.

A checkpoint comes first: a crash must not find queues that end before deleted messages, or offsets
would be given twice. `retention` decides which files are old. Each deletion is reported with the
messages that it took, once queues offer them no more and before the disk can refuse anything else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..components import StoreParts
from ..config import BrokerRole
from ..results import DeletedFiles, PhysicalOffset
from .checkpointer import Checkpointing
from .retention import Retention, RoomToCome

_log = logging.getLogger(__name__)


class Cleaning:
    """The cleaning of a store.

    ``refuse`` is called with the reason why a full disk takes no messages, or with None; ``report``
    with what was deleted.
    """

    def __init__(
        self,
        parts: StoreParts,
        checkpointing: Checkpointing,
        now_ms: Callable[[], int],
        save_checkpoint: Callable[[], bool],
        refuse: Callable[[str | None], object],
        message_ms: Callable[[PhysicalOffset], int | None],
    ) -> None:
        """Take the parts; ``message_ms`` returns when the message at a place was stored."""
        self.report: Callable[[DeletedFiles], object] = _ignore
        self.config = parts.config
        """The settings of the next `clean`, in which the store's forms and places stay the same."""
        self._disk, self._log, self._staging = parts.disk, parts.log, parts.staging
        self._checkpointing = checkpointing
        self._now_ms = now_ms
        self._save_checkpoint = save_checkpoint
        self._refuse = refuse
        self._message_ms = message_ms
        self._is_full = False
        self._room_to_come = RoomToCome()
        self._deleted_bytes = self._forced_bytes = 0
        """Bytes of deleted files that are not reported yet; of these, bytes of unexpired files."""

    def clean(self) -> int:
        """Delete the files that are to go, and return their number.

        Without room for a checkpoint, an older one decides what may go.
        """
        checkpointing = self._checkpointing
        retention = Retention(self.config, self._disk, self._log.files)
        usage = self._disk.usage(self.config.store_path_root_dir)
        now_ms = self._now_ms()
        in_the_end = self._room_to_come.look(usage, self._log.written_offset, now_ms)
        expiry = retention.expiry(now_ms, self._log.last_timestamp, in_the_end)
        if expiry.until > max(self._log.min_offset, checkpointing.noted_offset):
            self._save_checkpoint()
        begin = self._log.min_offset
        first_ms = self._message_ms(begin) if expiry.until > begin else None
        try:
            deleted = self._log.files.delete_before(min(expiry.until, checkpointing.noted_offset))
        finally:
            end = self._log.min_offset
            self._room_to_come.add(end - begin, now_ms)
            self._deleted_bytes += end - begin
            self._forced_bytes += max(end - max(begin, expiry.forced_from), 0)
        self.refuse_when_full()
        if self._expire(first_ms, usage.ratio) and not checkpointing.is_under_way:
            self._save_checkpoint()  # a checkpoint under way notes it by itself
        checkpointing.delete_expired()
        self._staging.forget_old()
        return deleted

    def _expire(self, first_ms: int | None, used_ratio: float) -> bool:
        """Expire the entries of deleted messages; return whether a checkpoint is to be saved."""
        checkpointing = self._checkpointing
        if self._log.min_offset > checkpointing.expired_offset:  # the last time may have failed
            spans = checkpointing.expire_entries()
            has_changed = True
        else:
            spans = checkpointing.expire_kept()
            has_changed = bool(spans)
        if self._deleted_bytes or any(span.first < span.next for span in spans):
            file_size, log_offset = self._log.files.file_size, self._log.min_offset
            forced_files = self._forced_bytes // file_size
            deleted = DeletedFiles(
                expired_files=self._deleted_bytes // file_size - forced_files,
                forced_files=forced_files,
                size_bytes=self._deleted_bytes,
                first_ms=first_ms,
                next_ms=self._message_ms(log_offset),
                used_ratio=used_ratio,
                log_offset=log_offset,
                spans=tuple(spans),
            )
            self._deleted_bytes = self._forced_bytes = 0
            self.report(deleted)
        return has_changed

    def refuse_when_full(self) -> None:
        """Refuse messages if the disk is fuller than its limit, or take them again if it is not."""
        used = self._disk.usage(self.config.store_path_root_dir).ratio
        limit = self.config.disk_space_warning_level_ratio
        if self.config.broker_role is BrokerRole.SLAVE:
            return
        is_full = used >= limit
        why = f"the disk is {used:.0%} full, over {limit:.0%}"
        if is_full and not self._is_full:
            _log.warning("messages are refused: %s (diskSpaceWarningLevelRatio)", why)
        elif self._is_full and not is_full:
            _log.warning("messages are taken again: the disk is %s full", f"{used:.0%}")
        self._is_full = is_full
        self._refuse(why if is_full else None)


def _ignore(deleted: DeletedFiles) -> None:
    """Ignore a deletion, until a broker asks for reports."""
