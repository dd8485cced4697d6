"""LostTopics: topics that their table does not know come back for the messages that they have.

The table is saved first, so that it lacks topics only if somebody has put an older copy in its
place, or it was damaged, or taken away. What was acknowledged is not to be lost by that: topics
with messages in their queues come back at the start; those whose messages are all delayed, or wait
for their retry, when the first of these is due.

Whether a topic was deleted is the store's to know, and asked before anything is made again here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from rmq_spark.wire.names import topic_fault

from ..state.tables.topic_config import QUEUE_NUMS_MAX
from .state_tables import StateTables

_log = logging.getLogger(__name__)
_DEFAULT_QUEUE_NUMS = 4
"""The number of queues that Java's producers ask for."""


class TopicRestore:
    """Makes topics, and queues of topics, again that have messages."""

    def __init__(self, tables: StateTables, default_queue_nums: int) -> None:
        """Take the tables, and how many queues a topic has that is made without being asked for."""
        self._tables = tables
        self._queue_nums_min = min(_DEFAULT_QUEUE_NUMS, default_queue_nums)

    def restore_missing(self, stored_queue_nums: Mapping[str, int]) -> None:
        """Make again what there are messages of, by topic and number of queues.

        Queues that are missing in the newest table stay so: an operator has taken them away.
        """
        topics = self._tables.topics
        for topic, queues in stored_queue_nums.items():
            known, queue_nums = topics.get(topic), min(queues, QUEUE_NUMS_MAX)
            if known is None and topic_fault(topic) is None:
                self.recreate(topic, queue_nums)
            elif known is not None and self._tables.may_miss_topics:
                fewest = min(known.read_queue_nums, known.write_queue_nums)
                if fewest < queue_nums:
                    _log.warning(
                        "the topic %s gets %d queues again for its messages: the table of topics "
                        "that was read is not the newest, and says %d",
                        topic,
                        queue_nums,
                        fewest,
                    )
                    topics.add_queues(topic, queue_nums)

    def recreate(self, topic: str, queue_nums: int) -> int | None:
        """Make one topic again, and return how many queues it has; None if it is just leaving.

        Raises:
            ValueError: No topic may have this name.
        """
        topics = self._tables.topics
        if topic in topics.deleting:
            return None
        queue_nums = max(min(queue_nums, QUEUE_NUMS_MAX), self._queue_nums_min)
        made = topics.create_in_send_back(topic, queue_nums)
        _log.warning(
            "the topic %s is missing and is made again for its messages; if it was deleted, by "
            "RocketMQ or in a newer table, delete it once more (rocketpoll topic delete %s)",
            topic,
            topic,
        )
        return made.write_queue_nums
