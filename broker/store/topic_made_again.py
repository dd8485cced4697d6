"""MadeAgain: topics that were deleted and made again, as the log tells where nobody else knows.

Offsets of a queue come a second time, behind messages that had them before: those that had them
first are of the topic that was deleted, and the others of a new one of its name.

    log      a 0   a 1   a 2   ...   a 0   a 1      topic a was made again behind its first a 2

It changes the queue that it is asked about, and notes the deletion. It must not know who carries
messages, or where they go next.
"""

from __future__ import annotations

import logging

from rmq_spark.errors import RecordError
from rmq_spark.wire.framing import Buffer
from rocketpoll.broker.store.commit_log import CommitLog
from rocketpoll.broker.store.consume_queue import ConsumeQueue, first_place
from rocketpoll.broker.store.dispatch import Dispatcher
from rocketpoll.broker.store.errors import UnreadableFile
from rocketpoll.broker.store.lacks import lacks_means
from rocketpoll.broker.store.offsets import PhysicalOffset
from rocketpoll.broker.store.records.record_glance import glance

_log = logging.getLogger(__name__)


class MadeAgain:
    """The topics of one log that were made again, and that only the log has told of."""

    def __init__(self, log: CommitLog, dispatcher: Dispatcher) -> None:
        """Know of none yet."""
        self._commit_log = log
        self._dispatcher = dispatcher
        self.topics: set[str] = set()
        """Their names."""

    def begin_anew(self, topic: str, queue_id: int, queue: ConsumeQueue, entries: Buffer) -> None:
        """Clear a queue whose offsets come for a second time, if these are of a new topic.

        Its first messages may be damaged, so that its offsets do not begin with 0 here. All that
        lies before the end of what the queue has held is of the topic that was deleted, in its
        other queues, too. What lies behind that may be of the new one. Entries that come once more
        lie before it, and an entry that is damaged leads nowhere.
        """
        physical_offset = first_place(entries)
        known_end = self._end_of_last_record(topic, queue_id, queue)
        if known_end is None or physical_offset < known_end:
            return
        if topic not in self.topics:
            self.topics.add(topic)
            _log.warning(
                "%s was deleted and made again, which the manifest does not say: all messages of "
                "the new topic are served, and those of the old one are hidden where they are in "
                "its way",
                topic,
            )
        self._dispatcher.note_deleted(topic, known_end)
        queue.clear()

    def _end_of_last_record(
        self, topic: str, queue_id: int, queue: ConsumeQueue
    ) -> PhysicalOffset | None:
        """Return the end of the record of a queue's last entry, or None without that record."""
        try:
            last = queue.last_entry()
            if last is None:
                return None
            queue_offset, place, size = last
            found = glance(self._commit_log.record(place), 0, size)[:3]
        except (UnreadableFile, RecordError) as error:
            if isinstance(error, UnreadableFile) and lacks_means(error):
                raise
            return None
        return place + size if found == (topic.encode(), queue_id, queue_offset) else None
