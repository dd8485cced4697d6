"""kill -9 of a query's processes between sending dead letters and committing the batch."""

from collections import Counter, defaultdict

import pytest
from support.spark.driver_processes import Query
from support.spark.restart_campaign import Campaign, patience_seconds, wait_for_rows
from support.suite.selection import count

from rmq_spark.client.message import Message
from rocketpoll import EmbeddedBroker

TOPIC, DEAD, QUEUES = "orders", "orders-dead", 2
MESSAGES = 40
KILLS = (
    ("worker", "task"),  # some of the batch's dead letters are sent
    ("driver", "sink"),  # all dead letters are sent, the batch is not written
    ("broker", "task"),
    ("driver", "sink-done"),  # the batch is written but not committed
    ("driver", "task"),
    ("driver", "partitions-done"),
)
ROUNDS = count("ROCKETPOLL_DEAD_LETTER_KILLS", 3, wide=len(KILLS))


class LettersCampaign(Campaign):
    """A topic in which every second message is not UTF-8, and therefore unreadable."""

    def __init__(self, directory, brokers):
        super().__init__(directory, brokers)
        self.good = []
        self._found = 0

    def made_query(self):
        (broker,) = self.brokers
        for topic in (TOPIC, DEAD):
            broker.create_topic(topic, QUEUES)
        return Query(
            self._directory,
            namesrvAddr=broker.address,
            subscribe=TOPIC,
            startingOffsets="earliest",
            bodyFormat="text",
            onBadRecord="dead_letter",
            deadLetterTopic=DEAD,
        )

    def send(self):
        bodies = []
        for _ in range(MESSAGES // 2):
            number = len(self.good)
            self.good.append(f"good {number} {'m' * 200}")
            bodies += [self.good[-1].encode(), b"\xff%d" % number]
        with self.brokers[0].producer() as producer:
            for body in bodies:
                producer.send(Message(TOPIC, body), timeout_ms=30_000)

    def wait(self):
        def count_found():
            self._found += len(self.query.new_rows())
            return self._found

        wait_for_rows(count_found, len(self.good))


@pytest.mark.timeout(patience_seconds(ROUNDS))
def test_kills_lose_no_dead_letter_and_repeats_have_the_same_id(tmp_path):
    broker = EmbeddedBroker(
        tmp_path / "broker",
        own_process=True,
        maxTransferBytesExtended=2048,  # so that a task has several record batches
    )
    with LettersCampaign(tmp_path, [broker]) as campaign:
        for victim, point in KILLS[:ROUNDS]:
            campaign.round(victim, point)
        rows = campaign.query.rows()
        assert Counter(body for *_, body in rows) == Counter(campaign.good)
        assert campaign.query.differing() == []
        stored = {
            (each.queue.queue_id, each.queue_offset): each.body for each in broker.messages(TOPIC)
        }
        ids = defaultdict(list)
        for letter in broker.messages(DEAD):
            place = letter.properties
            where = int(place["DLQ_ORIGIN_QUEUE_ID"]), int(place["DLQ_ORIGIN_QUEUE_OFFSET"])
            assert letter.body == stored[where]
            ids[where].append(letter.message_id)
    assert set(ids) == {where for where, body in stored.items() if body.startswith(b"\xff")}
    assert {len(set(each)) for each in ids.values()} == {1}
    assert len({each[0] for each in ids.values()}) == len(ids)
    assert max(map(len, ids.values())) > 1  # a batch did run again
