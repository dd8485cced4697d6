"""Queries about queues: ends, times, sizes and committed offsets."""

import json
import os
import random
import struct
from datetime import timedelta

import pytest
from support.servers.wrong_answers import LIES, WrongBroker
from support.spark.source_queries import BROKER, queue_of, queues_of, send

from rmq_spark.spark.brokers.queue_client import MessagePosition, TimestampQuery
from rocketpoll import EmbeddedBroker

STORE_TIMESTAMP_AT = 56


def test_queue_starts_and_ends_are_queried(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 1, "a", "b", "c")
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        which = queues.discover()
        assert queues.ends(which) == {
            queue_of(rocketpoll_topic, n): 3 if n == 1 else 0 for n in range(4)
        }
        assert set(queues.starts(which).values()) == {0}


def test_queue_client_returns_time_and_size_of_a_message(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b" * 100)
    message = rocketpoll_broker.messages(rocketpoll_topic)[1]
    queue = queue_of(rocketpoll_topic)
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        queues.discover()
        places = [
            MessagePosition(queue, 1),
            MessagePosition(queue_of(rocketpoll_topic, 1), 5),
            MessagePosition(queue_of(rocketpoll_topic, 2), -1),
        ]
        found = queues.fingerprints(places)
        assert list(found) == places[:1]
        assert found[places[0]].timestamp_ms == message.store_timestamp
        assert 190 < found[places[0]].size < 500


@pytest.mark.parametrize(
    "lie", ["another topic", "another queue", "another offset", "all of other offsets", "cut short"]
)
def test_stored_asks_again_for_a_record_that_contradicts_its_request(
    rocketpoll_broker, rocketpoll_topic, lie
):
    """A missing message is a loss: without the second request a planned batch would
    leave it out."""
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b")
    place = MessagePosition(queue_of(rocketpoll_topic), 1)
    with WrongBroker(rocketpoll_broker, LIES[lie]) as wrong:
        wrong.dice, wrong.left = random.Random(1), 1
        ways = json.dumps({BROKER: wrong.address})
        with queues_of(rocketpoll_broker, rocketpoll_topic, brokerAddresses=ways) as queues:
            queues.discover()
            assert list(queues.fingerprints([place])) == [place]
        assert wrong.left == 0


def test_stored_believes_a_record_that_contradicts_its_request_in_the_end(
    rocketpoll_broker, rocketpoll_topic, caplog
):
    """A damaged record must not stop a query for good."""
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b")
    with WrongBroker(rocketpoll_broker, LIES["another queue"]) as wrong:
        wrong.dice, wrong.left = random.Random(1), 1_000
        more = {"brokerAddresses": json.dumps({BROKER: wrong.address}), "retryTimeoutMs": "300"}
        with queues_of(rocketpoll_broker, rocketpoll_topic, **more) as queues:
            queues.discover()
            assert queues.fingerprints([MessagePosition(queue_of(rocketpoll_topic), 1)]) == {}
    assert "cannot be read, and counts as missing" in caplog.text


@pytest.mark.parametrize("bit", [42, 63])
def test_record_with_an_impossible_store_time_has_no_fingerprint(tmp_path, bit):
    """After a flipped bit, an offset with such a time would be refused when it is read."""
    with EmbeddedBroker(tmp_path) as broker:
        broker.create_topic("T", queues=1)
        broker.send("T", "a")
        [message] = broker.messages("T")
        [log] = (tmp_path / "commitlog").iterdir()
        with log.open("r+b") as file:
            time = struct.pack(">q", message.store_timestamp)
            at = file.read(1 << 16).index(time, STORE_TIMESTAMP_AT)
            changed = struct.unpack(">Q", time)[0] ^ 1 << bit
            os.pwrite(file.fileno(), struct.pack(">Q", changed), at)
        with queues_of(broker, "T") as queues:
            queues.discover()
            assert queues.fingerprints([MessagePosition(queue_of("T"), 0)]) == {}


def test_offsets_for_times_finds_the_exact_first_message():
    queue = queue_of("orders")
    with EmbeddedBroker() as broker, queues_of(broker, "orders") as queues:
        broker.create_topic("orders", queues=1)
        for text in "abcdefgh":
            send(broker, "orders", 0, text)
            broker.clock.advance(timedelta(milliseconds=2))
        times = [message.store_timestamp for message in broker.messages("orders")]
        queues.discover()
        for ms in range(times[0] - 2, times[-1] + 3):
            expected = sum(each < ms for each in times)
            assert queues.offsets_for_times({queue: TimestampQuery(ms, 0, len(times))}) == {
                queue: expected
            }
        assert queues.offsets_for_times({queue: TimestampQuery(times[-1], 0, 3)}) == {queue: 3}


def test_committed_group_offset_is_read_back(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b")
    queue = queue_of(rocketpoll_topic)
    with queues_of(rocketpoll_broker, rocketpoll_topic) as queues:
        queues.discover()
        assert queues.committed_offsets([queue], "unit-group") == {queue: None}
        queues.commit("unit-group", {queue: 2})
        rocketpoll_broker.wait_until_consumed("unit-group", rocketpoll_topic)
        assert queues.committed_offsets([queue], "unit-group") == {queue: 2}


def test_unreachable_broker_is_logged_once_when_committing_offsets(caplog):
    """The query continues without the broker, with many batches while it is down."""
    with EmbeddedBroker() as broker:
        broker.create_topic("T", queues=2)
        which = {queue_of("T", number): 1 for number in (0, 1)}
        with queues_of(broker, "T") as queues:
            queues.discover()
            with broker.away():
                for _ in range(3):
                    assert queues.commit("G", which) == {}
            assert queues.commit("G", which) == which
    said = [line for line in caplog.messages if "committing the group's offset of" in line]
    assert len(said) == 2
    assert " recovered after " in said[1]
