"""Queries continue from the checkpoints of earlier releases."""

import json
import shutil

import pytest
from support.spark.driver_processes import Query
from support.spark.golden_checkpoints import QUERIES, SETTINGS, TOPICS, offsets, releases, unread
from support.spark.streaming_engine import Engine, assert_read, send

from rmq_spark.spark.plan.source_offset import SourceOffset
from rocketpoll import EmbeddedBroker


@pytest.fixture(params=releases(), ids=lambda path: f"{path.parent.name}-{path.name}")
def golden(request, tmp_path):
    """Run a broker on the store of an earlier release; return it with the checkpoints."""
    shutil.copytree(request.param / "store", tmp_path / "store")
    with EmbeddedBroker(tmp_path / "store", **SETTINGS) as broker:
        yield broker, request.param


@pytest.mark.parametrize("name", QUERIES)
def test_golden_offsets_are_read_as_by_earlier_releases(golden, name):
    _, directory = golden
    found = [SourceOffset.from_json(json.loads(text)) for text in offsets(directory / name)]
    ends = [
        {q.topic: p.next_offset for q, p in each.positions.items() if q.queue_id == 0}
        for each in found
    ]
    assert all(set(end) == set(TOPICS) for end in ends)
    assert [sum(p.next_offset for p in each.positions.values()) for each in found] == [6, 12, 18]
    assert all(p.stored_ms for p in found[-1].positions.values())


@pytest.mark.parametrize("name", QUERIES)
def test_query_continues_from_a_committed_batch_of_an_earlier_release(golden, name):
    broker, directory = golden
    query = Engine(broker.address, **QUERIES[name])
    query.offsets = offsets(directory / name)
    query.commits = len(query.offsets)
    query.start()
    query.run()
    more = [body for topic in TOPICS for body in send(broker, topic, 4)]
    query.run()
    assert_read(query, unread() + more)


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("committed", [0, 1, 2])
def test_batch_planned_by_an_earlier_release_is_read_as_planned(golden, name, committed):
    broker, directory = golden
    query = Engine(broker.address, startingOffsets="latest", **QUERIES[name])
    query.offsets = offsets(directory / name)[: committed + 1]
    query.commits = committed
    query.start()
    query.trigger()
    assert sorted(row.body for row in query.rows()) == sorted(
        f"read {committed} {number} of {topic}" for topic in TOPICS for number in range(3)
    )


@pytest.mark.wide
@pytest.mark.parametrize("name", QUERIES)
def test_spark_query_continues_from_a_checkpoint_of_an_earlier_release(
    golden, name, driver, tmp_path
):
    broker, directory = golden
    query = Query(tmp_path / "query", namesrvAddr=broker.address, **QUERIES[name])
    shutil.copytree(directory / name, query.checkpoint)
    driver.start(query, trigger={"availableNow": True})
    assert driver.end() is None
    assert sorted(body for *_, body in query.rows()) == sorted(unread())
