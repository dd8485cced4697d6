"""A poll interrupted by a signal handler's exception, at any point where that is possible.

The poll's messages are delivered again, the group's offset keeps moving, and no undelivered message
counts as processed.
"""

import sys
from pathlib import Path

import pytest
from support.suite.selection import some

from rmq_spark.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_spark.client.consumer.settings import LitePullSettings
from rmq_spark.wire.bodies.clients import ConsumeFromWhere

PATIENCE_MS = 20_000
COUNT = 12
CLIENT = str(Path(sys.modules[LitePullConsumer.__module__].__file__).parents[1])
MOST_MOMENTS = 80
"""More interruptible points than a poll with available messages has."""


class Signal(BaseException):
    """The exception of a signal handler."""


class Interrupting:
    """Raises at one of the points of a poll where Python may run signal handlers: the starts of
    functions, and the returns of calls into C."""

    def __init__(self, moment):
        self.left = moment

    def __enter__(self):
        sys.setprofile(self._profile)

    def __exit__(self, *_):
        sys.setprofile(None)

    def _profile(self, frame, event, _):
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(CLIENT):
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                raise Signal


@pytest.mark.parametrize("auto_commit", [True, False])
@pytest.mark.parametrize("moment", some(range(1, MOST_MOMENTS + 1), "ROCKETPOLL_CUT_POLLS", 20))
def test_interrupted_poll_loses_no_message_and_keeps_the_order(cluster, moment, auto_commit):
    topic = cluster.topic(queues=1)
    queue = cluster.queue(topic, 0)
    cluster.send(topic, *(f"{number:03}" for number in range(COUNT)), queues=1)
    group = cluster.group()
    consumer = cluster.until_end(
        LitePullConsumer(
            group,
            instance=cluster.instance(),
            settings=LitePullSettings(
                consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                pull_batch_size=3,
                auto_commit=auto_commit,
            ),
        )
    )
    consumer.subscribe(topic)
    consumer.start()
    got = list(consumer.poll(PATIENCE_MS))
    assert got
    before = len(got)
    with Interrupting(moment):
        try:
            got += consumer.poll(PATIENCE_MS)
        except Signal:
            assert len(got) == before
    assert consumer.committed(queue) is None or consumer.committed(queue) <= len(got)
    while len({message.queue_offset for message in got}) < COUNT:
        more = consumer.poll(PATIENCE_MS)
        assert more, f"only {[message.queue_offset for message in got]}"
        got += more
    offsets = [message.queue_offset for message in got]
    assert offsets == sorted(offsets), "messages in hand came again"
    consumer.commit()
    assert consumer.committed(queue) == COUNT
