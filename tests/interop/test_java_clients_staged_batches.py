"""Java consumers of topics into which a sink commits staged batches.

They do not know batches. Each gets every row of the committed batches once, and no other row. Each
pull response gives the first row of an unfinished batch as the queue's end, so that no consumer
gets a part of it. Pulls that wait for more are held.
"""

from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from support.brokers.broker_kinds import (
    RocketPollBroker,
    store_config,
    wait_until,
    wait_until_known,
)
from support.rocketmq.java_clients import bodies_of, numbered, queue
from support.rocketmq.shared_store import now_ms
from support.stores.staged_batches import RemoteSink, Sink, roll_back_between
from support.suite.selection import count

from rocketpoll import Admin, read_table
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.message_store import MessageStore

pytestmark = pytest.mark.interop

BATCHES = count("ROCKETPOLL_STAGED_BATCHES", 16, wide=60)
QUEUES = 3
ROWS_MAX = 200  # rows of a queue in a batch: several pulls of a Java client
LARGE, LARGE_ROWS = 2, 9_000  # a batch that a broker dispatches in several steps
LINGERED = 4  # batches that are committed after all earlier rows have arrived, while pulls are held
UNTIL_IDLE = 5  # polls without messages
FATES = ("committed", "committed", "committed", "aborted", "unfinished", "beside another attempt")


class Story:
    """The staged batches, and the outcome of each."""

    def __init__(self, scenario, api, topics, seed):
        self._sink = RemoteSink(api, scenario.address, scenario.name)
        self._topics = topics
        self._dice = Random(seed)
        self._producer = scenario.producer()
        self.visible = {topic: Counter() for topic in topics}
        self.batches = []

    def tell(self, batch_id, fate):
        """Stage a batch, and commit it or not, while another producer sends."""
        chunks, attempt = self._stage(batch_id, "a")
        if fate == "aborted":
            self._sink.abort(batch_id, attempt.attempt)
        if fate in {"aborted", "unfinished"}:
            return
        if fate == "beside another attempt":
            self._stage(batch_id, "speculative", "never to be seen")
        others = numbered(3, start=3 * batch_id)
        with ThreadPoolExecutor(1) as aside:
            committed = aside.submit(self._sink.commit, batch_id, attempt)
            for topic in self._topics:
                self._producer.send(topic, *others)
                self.visible[topic].update(each["body"] for each in others)
            self.batches.append((batch_id, committed.result().spans))
        for topic, _, bodies in chunks:
            self.visible[topic].update(bodies)

    def _stage(self, batch_id, attempt, word="row"):
        """Stage rows for some queues of each topic."""
        is_large = batch_id == LARGE
        chunks = [
            (topic, queue_id, [f"{word} {batch_id} {queue_id} {row}" for row in range(rows)])
            for topic in (self._topics[:1] if is_large else self._topics)
            for queue_id in range(QUEUES)
            if (rows := LARGE_ROWS if is_large else self._dice.choice([0, 1, 40, ROWS_MAX]))
        ] or [(self._topics[0], 0, [f"{word} {batch_id} 0 alone"])]
        return chunks, self._sink.stage(batch_id, chunks, attempt)


@pytest.fixture
def api(java_broker):
    if not isinstance(java_broker, RocketPollBroker):
        pytest.skip("a RocketMQ broker knows no staged batches")
    with Admin(java_broker.name_server) as admin:
        yield admin.instance.api


def test_java_consumers_get_whole_committed_batches_only(scenario, api):
    topics = [scenario.topic(QUEUES) for _ in range(3)]
    consumers = [
        (topic, start(topic=topic, group=f"{scenario.group}-{name}-{number}"))
        for number, topic in enumerate(topics)
        for name, start in (("push", scenario.push), ("lite", scenario.lite))
    ]
    story = Story(scenario, api, topics, seed=1)
    sights = {}
    for batch_id in range(BATCHES):
        if batch_id < LINGERED:
            for topic, consumer in consumers:
                wait_for(consumer, story.visible[topic])
        story.tell(batch_id, FATES[batch_id % len(FATES)])
        look(scenario, consumers, topics, sights)
    for topic, consumer in consumers:
        wait_for(consumer, story.visible[topic])
        for _ in range(UNTIL_IDLE):
            consumer.look()
        check(consumer, topic, story)
    check_sights(sights, story.batches)

    for topic in topics:  # and a consumer that starts late
        latecomer = scenario.lite(group=f"{scenario.group}-late")
        latecomer.assign(topic, *range(QUEUES))
        wait_for(latecomer, story.visible[topic])
        check(latecomer, topic, story)
        latecomer.stop()


@pytest.mark.parametrize("before", [0, 2], ids=["before all others", "between others"])
def test_java_consumers_skip_offsets_of_rolled_back_rows(
    scenario, java_broker, java_clients, before
):
    if not isinstance(java_broker, RocketPollBroker):
        pytest.skip("a RocketMQ broker knows no staged batches")
    topic = scenario.topic()
    push = scenario.push(topic=topic, group=f"{scenario.group}-push")
    lite = scenario.lite(group=f"{scenario.group}-lite")
    lite.assign(topic, 0)
    java_broker.stop()
    store = MessageStore(store_config(java_broker.root), LocalDisk(), now_ms)
    sent = roll_back_between(store, before, topic=topic)
    gap = [
        at
        for at in range(len(sent) + 3)
        if store.staged_batches.rolled_back_offsets(topic, 0, at, 1)
    ]
    assert len(gap) == 3
    Sink(store).forget()
    store.shutdown()
    java_broker.start()
    wait_until_known(java_broker, java_clients)
    scenario.producer().send(topic, *numbered(3))
    expected = [*sent, *bodies_of(numbered(3))]
    for consumer in (push, lite):
        consumer.wait_for(expected)
        assert sorted(consumer.bodies) == sorted(expected)  # a push consumer has many threads
    assert lite.bodies == expected
    places = {each["queueOffset"] for each in lite.received}
    assert places.isdisjoint(gap)
    for at in gap:
        lite.received.clear()
        lite.ask("seek", **queue(topic, 0), queueOffset=at)
        behind = [body for place, body in zip(sorted(places), expected, strict=True) if place > at]
        lite.wait_for(behind)
        assert lite.bodies == behind
    assert read_table(topic, java_broker.name_server)["body"].to_pylist() == [
        body.encode() for body in expected
    ]


def wait_for(consumer, bodies):
    """Return when a consumer has received at least this number of messages."""

    def has_all():
        consumer.look()
        return len(consumer.received) >= bodies.total()

    wait_until(f"{bodies.total()} messages for {consumer.name}", has_all)


def look(scenario, consumers, topics, sights):
    """Record the messages that have arrived. When a row of a batch is first seen, record the ends
    of all queues."""
    seen = set()
    for _, consumer in consumers:
        seen.update(batch_of(each["body"]) for each in consumer.look())
    for batch_id in seen - sights.keys() - {None}:
        sights[batch_id] = {
            (topic, queue_id): scenario.max_offset(topic, queue_id)
            for topic in topics
            for queue_id in range(QUEUES)
        }


def batch_of(body):
    """Return the number of a row's batch, or None."""
    word, number, *_ = body.split()
    return None if word == "message" else int(number)


def check(consumer, topic, story):
    """Check that each row arrived once, in the order of its queue, and with its whole batch."""
    assert Counter(consumer.bodies) == story.visible[topic]
    ends = {
        (batch_id, span.queue_id): span.queue_offset + span.count
        for batch_id, spans in story.batches
        for span in spans
        if span.topic == topic
    }
    rows = defaultdict(list)
    for each in consumer.received:
        batch_id, queue_id = batch_of(each["body"]), each["queueId"]
        if batch_id is not None:
            rows[batch_id, queue_id].append((each["queueOffset"], each["body"]))
            # The end of the queue in the pull response that contained this row.
            assert int(each["properties"]["MAX_OFFSET"]) >= ends[batch_id, queue_id], each
    for found in rows.values():
        numbers = [int(body.split()[3]) for _, body in sorted(found) if "alone" not in body]
        assert numbers == sorted(numbers)


def check_sights(sights, batches):
    """Check that all rows of a batch were visible when the first one was seen."""
    assert len(sights) > 1
    for batch_id, spans in batches:
        for span in spans if batch_id in sights else ():
            end = sights[batch_id][span.topic, span.queue_id]
            assert end >= span.queue_offset + span.count, (batch_id, span)
