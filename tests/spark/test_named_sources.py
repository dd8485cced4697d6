"""Spark's offset log on disk for named sources, since 4.2."""

import json

import pytest
from pyspark.sql.streaming.readwriter import DataStreamReader

from rmq_spark.cli.main import main
from rmq_spark.spark.monitoring.checkpoint import read_checkpoint, starting_offsets

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(
        not hasattr(DataStreamReader, "name"), reason="sources have names since Spark 4.2"
    ),
]

_CONF = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


@pytest.fixture
def named(source):
    """Return two topics of a query's sources, by name, and the checkpoint."""
    topics = {"orders": source.cluster.topic(1), "others": source.cluster.topic(1)}
    for number, topic in enumerate(topics.values(), 1):
        source.cluster.send(topic, *(f"{topic} {each}" for each in range(number)), queue_id=0)

    def stream(name):
        given = {"namesrvAddr": source.cluster.name_server, "topic": topics[name]}
        reader = source.spark.readStream.format("rocketpoll").name(name)
        return reader.options(**given, startingOffsets="earliest", columns="body").load()

    source.spark.conf.set(_CONF, "true")
    try:
        checkpoint = source.checkpoint()
        batches = source.run(stream("orders").union(stream("others")), checkpoint)
        assert len(batches.rows) == 3
        assert (checkpoint / "offsets" / "0").read_text(encoding="utf-8").startswith("v2\n")
        yield topics, checkpoint
    finally:
        source.spark.conf.unset(_CONF)


def test_batches_have_their_offsets_by_the_names_of_sources(named):
    topics, checkpoint = named
    (*_, batch) = read_checkpoint(checkpoint)
    ends = {name: offset.to_json()["offsets"] for name, offset in batch.offsets.items()}
    assert ends == {
        "orders": {topics["orders"]: {"broker-a": {"0": 1}}},
        "others": {topics["others"]: {"broker-a": {"0": 2}}},
    }
    assert json.loads(starting_offsets(checkpoint, source="others")) == ends["others"]


def test_checkpoint_command_shows_the_offsets_of_a_named_source(named, capsys):
    topics, checkpoint = named
    assert main(["checkpoint", str(checkpoint), "--start", "--source", "others"]) == 0
    assert json.loads(capsys.readouterr().out) == {topics["others"]: {"broker-a": {"0": 2}}}
