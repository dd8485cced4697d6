"""Commits: offsets of a member stored at once, where the queues are still the ones that were read.

A queue that is another one now, as its topic was made again, has had none of what was read: an
offset of the old one would pass over as many of its messages. What is stored now and then is not
decided here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from rmq_spark.client.consumer.group_brokers import by_broker
from rmq_spark.client.consumer.last_known import LastKnown, MessageAt
from rmq_spark.client.consumer.offset_table import OffsetStore
from rmq_spark.errors import RocketPollError
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)


def store_offsets(
    store: OffsetStore,
    offsets: Mapping[MessageQueue, int],
    known: Mapping[MessageQueue, LastKnown],
    message_at: MessageAt,
) -> None:
    """Wait until all brokers have the offsets; one that fails keeps none from the others.

    Args:
        store: Where offsets are kept.
        offsets: The offset to go on at, by queue.
        known: Knowledge of the queues that are read; of others there is none.
        message_at: Returns a message of a queue, to look whether it is still the one that was read.

    Raises:
        RocketPollError: A broker has not answered. Its offsets are remembered, and stored later.
    """
    failures: list[RocketPollError] = []
    for queue, offset in offsets.items():  # remembered, should its broker fail
        store.update_offset(queue, offset, increase_only=False)
    for own in by_broker(offsets).values():
        try:
            for queue in own:
                if queue not in known or known[queue].is_known(queue, message_at):
                    store.persist(queue, offsets[queue])
                else:
                    _log.warning("%s is another queue now: no offset is stored for it", queue)
        except RocketPollError as error:  # noqa: PERF203  # the broker's other queues would fail, too
            failures.append(error)
    if failures:
        raise failures[0]
