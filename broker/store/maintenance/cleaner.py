"""Cleaner: deletes old files in an order that is safe at every crash.

A checkpoint comes first: after a crash, queues must not end before the deleted messages, or offsets
would be given twice. `retention` decides which files are old. Each deletion is reported with its
messages, once queues no longer offer them and before the disk can refuse anything else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..components import StoreComponents
from ..config import BrokerRole
from ..results import DeletedFiles, PhysicalOffset
from .checkpointer import Checkpointer
from .retention import PendingFreeSpace, Retention

_log = logging.getLogger(__name__)


class Cleaner:
    """The cleaner of a store.

    ``set_refusal`` is called with the reason why a full disk accepts no messages, or with None;
    ``on_deleted`` with what was deleted.
    """

    def __init__(
        self,
        components: StoreComponents,
        checkpointer: Checkpointer,
        now_ms: Callable[[], int],
        save_checkpoint: Callable[[], bool],
        set_refusal: Callable[[str | None], object],
        stored_ms: Callable[[PhysicalOffset], int | None],
    ) -> None:
        """Prepare; ``stored_ms`` returns when the message at a log offset was stored."""
        self.on_deleted: Callable[[DeletedFiles], object] = _ignore
        self.config = components.config
        """The settings of the next `clean`, in which the store's forms and places stay the same."""
        self._disk, self._log, self._staging = (
            components.disk,
            components.log,
            components.staging_area,
        )
        self._checkpointer = checkpointer
        self._now_ms = now_ms
        self._save_checkpoint = save_checkpoint
        self._set_refusal = set_refusal
        self._stored_ms = stored_ms
        self._is_full = False
        self._pending_free_space = PendingFreeSpace()
        self._deleted_bytes = self._forced_bytes = 0
        """Bytes of deleted files that are not reported yet; of these, bytes of unexpired files."""

    def clean(self) -> int:
        """Delete the old files, and return their number.

        Without room for a checkpoint, an older one decides what may be deleted.
        """
        checkpointing = self._checkpointer
        retention = Retention(self.config, self._disk, self._log.files)
        usage = self._disk.usage(self.config.store_path_root_dir)
        now_ms = self._now_ms()
        in_the_end = self._pending_free_space.update(usage, self._log.written_offset, now_ms)
        expiry = retention.expiry(now_ms, self._log.last_timestamp, in_the_end)
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
            self._save_checkpoint()  # a checkpoint under way notes it by itself
        checkpointing.delete_expired()
        self._staging.forget_old()
        return deleted

    def _expire(self, first_ms: int | None, used_ratio: float) -> bool:
        """Expire the entries of deleted messages; return whether a checkpoint is to be saved."""
        checkpointing = self._checkpointer
        if self._log.min_offset > checkpointing.expired_offset:  # the last time may have failed
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
        is_full = used >= limit
        why = f"the disk is {used:.0%} full, over {limit:.0%}"
        if is_full and not self._is_full:
            _log.warning("messages are refused: %s (diskSpaceWarningLevelRatio)", why)
        elif self._is_full and not is_full:
            _log.warning("messages are taken again: the disk is %s full", f"{used:.0%}")
        self._is_full = is_full
        self._set_refusal(why if is_full else None)


def _ignore(deleted: DeletedFiles) -> None:
    """Ignore a deletion, until a broker asks for reports."""
