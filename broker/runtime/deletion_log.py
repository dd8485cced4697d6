"""DeletionLog: reports what retention deleted, in the log, in metrics and in health checks.

Deleting expired messages that all groups have consumed is routine. Operators need to know of two
losses: messages that a group has not consumed, and messages that a full disk forces out before
`fileReservedTime`. Both are logged as warnings, with the groups concerned, counted and recorded.
The second makes `rocketpoll cluster health` fail for an hour, the first makes it warn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from rmq_spark.errors import format_count
from rmq_spark.wire.names import SCHEDULE_TOPIC

from ..common.local_time import format_local_time
from ..common.recent_losses import LossKind, RecentLosses
from ..state.tables.consumer_offset import ConsumerOffsetManager
from ..store.config import StoreConfig
from ..store.results import DeletedFiles, DeletedSpan

_log = logging.getLogger(__name__)
_GROUPS_SHOWN: Final = 5


class DeletionLog:
    """A record of deleted files. Counters begin at zero with each start of the broker."""

    def __init__(
        self,
        config: Callable[[], StoreConfig],
        offsets: ConsumerOffsetManager,
        delay_offsets: Callable[[], Mapping[int, int]],
        losses: RecentLosses,
    ) -> None:
        """Store the sources; ``delay_offsets`` returns how far each level has been delivered."""
        self._config = config
        self._offsets = offsets
        self._delay_offsets = delay_offsets
        self._losses = losses
        self.expired_files = 0
        """Files deleted because they were older than `fileReservedTime`."""
        self.forced_files = 0
        """Younger files deleted because the disk was full."""
        self.unconsumed_messages = 0
        """Messages deleted before a group had consumed them, added up over groups."""

    def report(self, deleted: DeletedFiles) -> None:
        """Log and count one deletion; call it in the thread that changes the groups' offsets."""
        unconsumed = self._offsets.unconsumed(deleted.spans)
        undelivered = self._undelivered(deleted.spans)
        self.expired_files += deleted.expired_files
        self.forced_files += deleted.forced_files
        lost = sum(unconsumed.values()) + undelivered
        self.unconsumed_messages += lost
        affected = tuple(_affected_groups(unconsumed, undelivered))
        texts = (*_describe(deleted), *affected)
        if deleted.forced_files:
            count, level = max(deleted.message_count, 1), logging.WARNING
            self._losses.report(LossKind.DELETED_EARLY, *texts, count=count, level=level)
            _log.warning(
                "Free or enlarge the disk, or set cleanFileForciblyEnable=false: sends are then "
                "refused before young messages are deleted"
            )
        elif not affected:
            for text in texts:
                _log.info("%s", text)
        else:
            level = logging.WARNING
            self._losses.report(LossKind.EXPIRED_UNCONSUMED, *texts, count=lost, level=level)
            _log.warning(
                "Raise fileReservedTime (%d hours), check these groups, or delete those that "
                "nobody uses: rocketpoll group delete",
                self._config().file_reserved_time_hours,
            )

    def _undelivered(self, ranges: tuple[DeletedSpan, ...]) -> int:
        delivered = self._delay_offsets()
        return sum(
            max(span.next - max(span.first, delivered.get(span.queue_id + 1, 0)), 0)
            for span in ranges
            if span.topic == SCHEDULE_TOPIC
        )


def _describe(deleted: DeletedFiles) -> tuple[str, str]:
    """Return two log lines: what was deleted, and why."""
    count = deleted.expired_files + deleted.forced_files
    stored = ""
    if deleted.first_ms is not None and deleted.next_ms is not None:
        first, last = map(format_local_time, (deleted.first_ms, deleted.next_ms))
        stored = f" stored from {first} to {last}"
    why = "They had expired (fileReservedTime)"
    if deleted.forced_files:
        why = f"The disk is {deleted.used_ratio:.0%} full (diskSpaceCleanForciblyRatio)"
        if deleted.expired_files:
            expired = format_count(deleted.expired_files, "file")
            why += f", and {expired} had expired (fileReservedTime)"
    what = (
        f"deleted {format_count(count, 'file')} of the commit log "
        f"({deleted.size_bytes / 2**20:,.1f} MiB, "
        f"{format_count(deleted.message_count, 'message')}{stored})."
    )
    return what, f"{why}; the log begins at {deleted.log_offset} now."


def _affected_groups(unconsumed: Mapping[str, int], undelivered: int) -> Iterator[str]:
    """Yield a log line on groups that had not consumed the messages, and one on delayed ones."""
    shown = sorted(unconsumed.items(), key=lambda item: (-item[1], item[0]))
    texts = [f"{group} ({count:,})" for group, count in shown[:_GROUPS_SHOWN]]
    if len(shown) > _GROUPS_SHOWN:
        texts.append(f"and {len(shown) - _GROUPS_SHOWN} more")
    if texts:
        yield f"Groups that had not consumed them: {', '.join(texts)}."
    if undelivered:
        yield f"Delayed messages that were not delivered yet: {undelivered:,}."
