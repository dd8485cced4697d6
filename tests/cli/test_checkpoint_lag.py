"""A query's lag, computed from its checkpoint, and a group moved to the query's offsets."""

import json

import pytest


@pytest.fixture
def topic(cluster):
    """Create a topic with six messages in queue 0 and two in queue 1."""
    topic = cluster.topic(queues=2)
    for queue_id, count in enumerate((6, 2)):
        cluster.send(topic, *range(count), queue_id=queue_id)
    return topic


@pytest.fixture
def checkpoint(cluster, tmp_path):
    """Write a checkpoint of batches with these ends, by topic and source; the last is not
    committed."""

    def write(*batches):
        for folder in ("offsets", "commits"):
            (tmp_path / folder).mkdir()
        for number, sources in enumerate(batches):
            lines = [
                json.dumps({"v": 1, "offsets": {topic: {cluster.broker_name: ends}}})
                for topic, ends in sources
            ]
            text = "\n".join(["v1", json.dumps({"batchTimestampMs": 1_767_225_600_000}), *lines])
            (tmp_path / "offsets" / str(number)).write_text(text, encoding="utf-8")
            if number < len(batches) - 1:
                (tmp_path / "commits" / str(number)).write_text("v1\n{}", encoding="utf-8")
        return str(tmp_path)

    return write


def test_checkpoint_lag_counts_messages_since_the_last_committed_batch(run, topic, checkpoint):
    directory = checkpoint([(topic, {"0": 4, "1": 2})], [(topic, {"0": 6, "1": 2})])
    found = run("checkpoint", directory, "--lag", "-o", "json").json
    assert (found["batch"], found["committed"], found["behind"]) == (0, True, 2)
    rows = [(each["queue"], each["next"], each["end"], each["behind"]) for each in found["queues"]]
    assert rows == [(0, 4, 6, 2), (1, 2, 2, 0)]


def test_deleted_topic_in_a_checkpoint_has_no_lag(run, topic, checkpoint):
    directory = checkpoint([("no-more", {"0": 4}), (topic, {"0": 5})], [])
    found = run("checkpoint", directory, "--lag", "-o", "json").json
    assert found["behind"] == 1
    gone, held = found["queues"]
    assert (gone["source"], gone["end"], gone["behind"]) == (0, "gone", None)
    assert (held["source"], held["end"], held["behind"]) == (1, 6, 1)


def test_checkpoint_lag_of_a_deleted_topic_suggests_the_nearest(run, topic, checkpoint):
    directory = checkpoint([(f"{topic}s", {"0": 4})], [])
    for how in (("--lag",), ("--to-group", "billing")):
        ran = run("checkpoint", directory, *how)
        assert (ran.code, ran.out) == (1, "")
        assert f"there is no topic {topic}s. Did you mean {topic}?" in ran.err


def test_checkpoint_lag_of_renamed_brokers_gives_advice(run, cluster, topic, checkpoint):
    directory = checkpoint([(topic, {"7": 4})], [])
    assert run("checkpoint", directory, "--lag", "-o", "json").json["queues"][0]["end"] == "gone"
    why = run("checkpoint", directory, "--to-group", cluster.group()).err
    assert (
        "none of the checkpoint's queues exists. Compare them (rocketpoll checkpoint DIR --lag)"
        in why
    )


def test_checkpoint_to_group_sets_offsets_of_the_query(run, cluster, topic, checkpoint):
    directory, group = checkpoint([(topic, {"0": 4, "1": 2})], []), cluster.group()
    cluster.store_offset(group, topic, 1, 0)
    dry = run("checkpoint", directory, "--to-group", group, "--dry-run", "-o", "json").json
    found = [(row["committed"] or 0, row["to"], row["behind"]) for row in dry]
    # for the other, young queue some brokers report 0, others nothing
    assert found == [(1, 4, 2), (0, 2, 0)]
    assert cluster.stored_offset(group, topic, 0) == 1
    ran = run("checkpoint", directory, "--to-group", group, "--yes")
    assert ran.err == "moved\n"
    assert [cluster.stored_offset(group, topic, each) for each in range(2)] == [4, 2]


def test_checkpoint_with_several_sources_needs_a_source_choice(run, cluster, topic, checkpoint):
    other, group = cluster.topic(queues=1), cluster.group()
    cluster.send(other, 1, 2, queue_id=0)
    directory = checkpoint([(topic, {"0": 4}), (other, {"0": 1})], [])
    why = run("checkpoint", directory, "--to-group", group).err
    assert "the query has several sources: 0, 1. Choose one with --source" in why
    why = run("checkpoint", directory, "--to-group", group, "--source", "7").err
    assert "source 7 is not a rocketpoll source. Use one of: 0, 1" in why
    ran = run(
        "checkpoint", directory, "--to-group", group, "--source", "1", "--batch", "0", "--yes"
    )
    assert (ran.code, ran.err) == (0, "moved\n")
    assert group in run("group", "list").out
    assert cluster.stored_offset(group, other, 0) == 1
    # RocketMQ reports 0 for a young queue
    assert cluster.stored_offset(group, topic, 0) in (None, 0)
    why = run("checkpoint", directory, "--to-group", group, "--batch", "9").err
    assert "has the batches 0 to 1, not 9" in why
