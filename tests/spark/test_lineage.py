"""OpenLineage events of queries, sent by the real client of openlineage-python."""

import json
import sys
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest
from openlineage.client import OpenLineageClient
from openlineage.client.transport.file import FileConfig, FileTransport
from support.brokers.broker_kinds import wait_until
from support.spark.source_queries import send

from rmq_spark.client.errors import MessageRejected
from rmq_spark.spark.errors import SetUpError
from rmq_spark.spark.monitoring.lineage import LineageListener

RUN = "0189d1e6-1b1f-7c9e-9f0a-1c2d3e4f5a6b"
NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "events.jsonl"


@pytest.fixture
def client(log):
    transport = FileTransport(FileConfig(log_file_path=str(log), append=True))
    return OpenLineageClient(transport=transport)


def events(log):
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def batch(*topics, name="q"):
    """Return Spark's report of a batch that has read these topics and another source."""
    offsets = {topic: {"b": {"0": 1}} for topic in topics}
    ends = [json.dumps({"v": 1, "offsets": offsets}), '{"rate": 5}']
    sources = [SimpleNamespace(endOffset=each) for each in ends]
    return SimpleNamespace(
        progress=SimpleNamespace(id="0-1", runId=RUN, name=name, sources=sources)
    )


def started(name="q"):
    return SimpleNamespace(id="0-1", runId=RUN, name=name)


def ended(exception=None):
    return SimpleNamespace(id="0-1", runId=RUN, exception=exception)


def states(log):
    return [
        (each["eventType"], [f"{of['namespace']} {of['name']}" for of in each["inputs"]])
        for each in events(log)
    ]


def test_query_reports_start_new_topics_and_end(client, log):
    listener = LineageListener(
        client, "ns:9876;other:9876", outputs={"q": ["out"]}, now=lambda: NOW
    )
    listener.onQueryStarted(started())
    for topics in (["a"], ["a"], ["a", "b"]):
        listener.onQueryProgress(batch(*topics))
    listener.onQueryTerminated(ended())
    of = "rocketmq://ns:9876"
    assert states(log) == [
        ("START", [f"{of} a"]),
        ("RUNNING", [f"{of} a", f"{of} b"]),
        ("COMPLETE", [f"{of} a", f"{of} b"]),
    ]
    for event in events(log):
        assert event["run"]["runId"] == RUN
        assert (event["job"]["namespace"], event["job"]["name"]) == ("spark", "q")
        assert event["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
        assert [(each["namespace"], each["name"]) for each in event["outputs"]] == [(of, "out")]
        assert event["eventTime"] == NOW.isoformat()


def test_failed_query_reports_its_error(client, log):
    listener = LineageListener(client, "ns:9876")
    listener.onQueryStarted(started())
    listener.onQueryProgress(batch("a"))
    listener.onQueryTerminated(ended("broker away"))
    last = events(log)[-1]
    assert last["eventType"] == "FAIL"
    assert last["run"]["facets"]["errorMessage"]["message"] == "broker away"


def test_query_without_topics_reports_nothing_unless_its_outputs_are_named(client, log):
    listener = LineageListener(client, "ns:9876", outputs={"writer": ["out"]})
    for name in ("other", "writer"):
        listener.onQueryStarted(started(name))
        listener.onQueryProgress(batch(name=name))
        listener.onQueryTerminated(ended())
    assert [(each["eventType"], each["job"]["name"]) for each in events(log)] == [
        ("START", "writer"),
        ("COMPLETE", "writer"),
    ]


def test_lineage_event_that_cannot_be_sent_is_logged(caplog):
    class Broken:
        def emit(self, _):
            raise OSError("connection refused")

    listener = LineageListener(Broken(), "ns:9876")
    listener.onQueryProgress(batch("a"))
    assert "sending the START event of query q failed: connection refused" in caplog.text


@pytest.mark.parametrize(
    ("namesrv", "outputs", "said"),
    [
        ("", {}, "namesrv: needed at least one address"),
        ("ns:9876", {"totals": "daily"}, r"outputs: needed lists .*\{'totals': \['daily'\]\}"),
    ],
)
def test_lineage_listener_refuses_wrong_arguments(client, namesrv, outputs, said):
    with pytest.raises((MessageRejected, TypeError), match=said):
        LineageListener(client, namesrv, outputs=outputs)


def test_lineage_refuses_a_client_that_sends_no_events():
    with pytest.raises(TypeError, match="client: needed an OpenLineageClient, found None"):
        LineageListener(None, "ns:9876")


def test_lineage_without_openlineage_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "openlineage.client.event_v2", None)
    with pytest.raises(SetUpError, match="pip install openlineage-python"):
        LineageListener(object(), "ns:9876")


@pytest.mark.deep
def test_lineage_of_a_spark_stream_reports_its_topics(
    spark, client, log, rocketpoll_broker, rocketpoll_topic, tmp_path
):
    send(rocketpoll_broker, rocketpoll_topic, 0, *"ab")
    listener = LineageListener(client, rocketpoll_broker.address)
    spark.streams.addListener(listener)
    try:
        rows = spark.readStream.format("rocketpoll").options(
            namesrvAddr=rocketpoll_broker.address,
            topic=rocketpoll_topic,
            startingOffsets="earliest",
        )
        query = (
            rows.load()
            .writeStream.format("noop")
            .queryName("lineage")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        wait_until("its events", lambda: log.exists() and len(events(log)) == 2)
    finally:
        spark.streams.removeListener(listener)
    topic = f"rocketmq://{rocketpoll_broker.address} {rocketpoll_topic}"
    assert states(log) == [("START", [topic]), ("COMPLETE", [topic])]
