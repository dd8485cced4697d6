"""Cleaning: old files go, in an order that no crash can turn into a wrong answer.

A checkpoint comes first: a crash must not find queues that end before deleted messages, or offsets
would be given twice. `retention` says which files are old; this module must not know who asks, nor
what becomes of messages that are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rocketpoll.broker.store.checkpointing import Checkpointing
from rocketpoll.broker.store.config import BrokerRole
from rocketpoll.broker.store.parts import StoreParts
from rocketpoll.broker.store.retention import Retention

_log = logging.getLogger(__name__)


class Cleaning:
    """The cleaning of a store; ``refuse`` is told why it must refuse messages, or None."""

    def __init__(
        self,
        parts: StoreParts,
        checkpointing: Checkpointing,
        now_ms: Callable[[], int],
        save_checkpoint: Callable[[], bool],
        refuse: Callable[[str | None], object],
    ) -> None:
        self.config = parts.config
        """The settings of the next `clean`, in which the store's forms and places stay the same."""
        self._disk, self._log, self._staging = parts.disk, parts.log, parts.staging
        self._checkpointing = checkpointing
        self._now_ms = now_ms
        self._save_checkpoint = save_checkpoint
        self._refuse = refuse
        self._is_full = False

    def clean(self) -> int:
        """Delete the files that are to go, and return their number.

        Without room for a checkpoint, an older one decides what may go.
        """
        checkpointing = self._checkpointing
        retention = Retention(self.config, self._disk, self._log.files)
        expired_until = retention.expired_until(self._now_ms(), self._log.last_timestamp)
        if expired_until > max(self._log.min_offset, checkpointing.noted_offset):
            self._save_checkpoint()
        deleted = self._log.files.delete_before(min(expired_until, checkpointing.noted_offset))
        self.refuse_when_full()
        if self._expire() and not checkpointing.is_under_way:  # else that one notes it
            self._save_checkpoint()
        checkpointing.delete_expired()
        self._staging.forget_old()
        if deleted:
            begin = self._log.min_offset
            _log.info("%d old files are deleted: the commit log begins at %d now", deleted, begin)
        return deleted

    def _expire(self) -> bool:
        """Let queues offer nothing that has expired; return whether that has changed anything."""
        checkpointing = self._checkpointing
        if self._log.min_offset > checkpointing.expired_offset:  # the last time may have failed
            checkpointing.expire_entries()
            return True
        return checkpointing.expire_kept()

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
