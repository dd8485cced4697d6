"""Readers of manifests lose nothing near the gaps of rolled-back batches, in the topic or among the
manifests."""

import time

import pytest
from support.spark.exactly_once_sink import CommittingSink
from support.spark.streaming_engine import Engine
from support.stores.small_store import open_store
from support.stores.staged_batches import roll_back_between

from rmq_spark.client.manifest import commits_topic_name
from rocketpoll import EmbeddedBroker, read_committed

SMALL = {
    "mapped_file_size_commit_log": 1 << 23,
    "mapped_file_size_consume_queue": 6_000,
    "max_hash_slot_num": 64,
    "max_index_num": 256,
}

pytestmark = pytest.mark.usefixtures("own_producers")


def broker_on(directory):
    return EmbeddedBroker(
        directory,
        mappedFileSizeCommitLog=SMALL["mapped_file_size_commit_log"],
        mappedFileSizeConsumeQueue=SMALL["mapped_file_size_consume_queue"],
        maxHashSlotNum=SMALL["max_hash_slot_num"],
        maxIndexNum=SMALL["max_index_num"],
    )


def roll_back_in(directory, topic):
    """Create a gap in the first queue of a topic while no broker runs."""
    store = open_store(directory, clock=lambda: time.time_ns() // 1_000_000, **SMALL)
    roll_back_between(store, 0, topic=topic, while_others_send=False)
    store.shutdown()


@pytest.mark.parametrize("of", [str, commits_topic_name], ids=["rows", "manifests"])
def test_committed_rows_around_rolled_back_batches_are_read_once(monkeypatch, tmp_path, of):
    rows = []
    for batch in range(3):
        with broker_on(tmp_path) as broker:
            if not batch:
                broker.create_topic("T", 1)
            sink = CommittingSink(monkeypatch, broker, "T")
            rows += sink.write(batch, sink.rows(3))
        roll_back_in(tmp_path, of("T"))
    with broker_on(tmp_path) as broker:
        found = read_committed("T", broker.address)["body"].to_pylist()
        assert sorted(found) == sorted(row.encode() for row in rows)
        query = Engine(broker.address, topic="T", isolation="committed", maxOffsetsPerTrigger=1)
        query.start()
        query.run()
        query.stop()
        assert sorted(row.body for row in query.rows()) == sorted(rows)
