"""``rocketpoll sink`` shows the committed batches of queries, from manifests and without Spark."""

import pytest
from support.stores.staged_batches import commit_batch

from rmq_spark.client.manifest import CommitManifest, CommittedSpan, ManifestId, commits_topic_name
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer


@pytest.fixture
def committed(cluster):
    """Commit two batches of a query to a topic, one twice and one in parts, and a batch write."""
    topic = cluster.topic(queues=1)
    cluster.topic(1, commits_topic_name(topic))
    queue = cluster.queue(topic)
    with Producer("sinks", cluster.name_server) as producer:

        def commit(identity, rows, bytes_max=100_000):
            spans = tuple(CommittedSpan(queue, 10 * n, rows, 1, 1) for n in range(3))
            manifest = CommitManifest(topic, identity, spans)
            early, last = manifest.encode_parts(bytes_max)
            parts = [send(body) for body in early]
            send(manifest.encode_final_message(last, parts))

        def send(body):
            return producer.send(Message(commits_topic_name(topic), body)).queue_offset

        commit(ManifestId("query", "", 0, "run 1"), 2)
        commit(ManifestId("query", "", 1, "run 1"), 3, bytes_max=300)
        commit(ManifestId("query", "", 1, "run 2"), 3)
        commit(ManifestId(None, "large", 0), 4)
    return topic


def test_sink_list_shows_counting_batches_and_rows(run, committed):
    rows = run("sink", "list", committed, "-o", "json").json
    found = [(row["sink"], row["last_batch"], row["batches"], row["rows"]) for row in rows]
    assert found == [("query", 1, 2, 15), ("large", 0, 1, 12)]
    assert [row["repeats"] for row in rows] == [1, 0]


def test_sink_show_lists_the_latest_batches_with_repeats(run, committed):
    rows = run("sink", "show", committed, "query", "-o", "json").json
    found = [(row["batch"], row["rows"], row["run"], row["counts"]) for row in rows]
    assert found == [(0, 6, "run 1", True), (1, 9, "run 1", True), (1, 9, "run 2", False)]
    assert [row["bytes"] for row in rows] == [3, None, 3]  # unknown unless it reads all parts
    [last] = run("sink", "show", committed, "-n", 1, "-o", "json").json
    assert (last["sink"], last["run"]) == ("large", None)


def test_sink_command_reports_unknown_query_and_topic(run, cluster, committed):
    nobody = run("sink", "show", committed, "nobody")
    assert (nobody.code, nobody.out) == (1, "")
    assert f"nobody has committed nothing to {committed}. List its sinks" in nobody.err
    assert "nothing was committed to" in "".join(run("sink", "list", cluster.topic(queues=1))[1:])
    missing = run("sink", "list", "no-such-topic")
    assert missing.code == 1
    assert "there is no topic no-such-topic" in missing.err


def test_sink_command_names_position_of_an_invalid_manifest(run, cluster):
    topic = cluster.topic(queues=1)
    cluster.topic(1, commits_topic_name(topic))
    with Producer("sinks", cluster.name_server) as producer:
        producer.send(Message(commits_topic_name(topic), b"{}"))
    refused = run("sink", "list", topic)
    assert refused.code == 1
    assert f"offset 0 of {commits_topic_name(topic)}" in refused.err


@pytest.fixture
def staged(cluster, kind):
    """Return a topic with a batch 7 that a sink staged and committed on the broker."""
    if kind != "rocketpoll":
        pytest.skip("rows are staged on brokers of ours")
    topic = cluster.topic(queues=1)
    name = f"sink-of-{topic}"
    commit_batch(cluster.api, cluster.address, name, 7, topic)
    return topic, name


def test_sink_list_shows_a_staging_sink_with_its_broker(run, cluster, staged):
    topic, name = staged
    for command in (("sink", "list", topic), ("sink", "list")):
        found = {row["sink"]: row for row in run(*command, "-o", "json").json}
        assert (found[name]["broker"], found[name]["last_batch"]) == (cluster.broker_name, 7)
    [row] = run("sink", "show", topic, "-o", "json").json
    assert (row["sink"], row["batch"], row["rows"], row["counts"]) == (name, 7, 2, True)
    assert "nothing was committed to" in "".join(run("sink", "list", cluster.topic(queues=1))[1:])


def test_sink_forget_needs_confirmation(run, cluster, staged):
    topic, name = staged
    asked = run("sink", "forget", name)
    assert asked.code == 2
    assert f"forget sink {name} after batch 7" in asked.err
    gone = run("sink", "forget", name, "--yes")
    assert (gone.code, gone.out) == (0, f"forgot {name} on {cluster.broker_name}\n")
    assert name not in run("sink", "list", topic, "-o", "json").out
    again = run("sink", "forget", name, "--yes")
    assert again.code == 1
    assert f"no broker knows sink {name}. List all with rocketpoll sink list" in again.err
