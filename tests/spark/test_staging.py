"""A task's staging: its first check, its repeats, and the chunks that it leaves staged."""

import re

import pytest
from support.servers.fake_servers import FakeCluster
from support.spark.exactly_once_sink import CommittingSink, behind_look

from rmq_spark.cli.main import main
from rmq_spark.client.api.admin_api import StagingApi
from rmq_spark.client.errors import ConnectionClosed
from rmq_spark.spark.errors import OptionError, WriteError
from rmq_spark.spark.exactly_once import staged_commit
from rocketpoll import EmbeddedBroker

pytestmark = pytest.mark.usefixtures("own_producers")


@pytest.fixture
def sink(monkeypatch, rocketpoll_broker, rocketpoll_topic):
    broker, topic = rocketpoll_broker, rocketpoll_topic
    return CommittingSink(monkeypatch, broker, topic, visibleTo="all", retryTimeoutMs="300")


@pytest.fixture
def seen(rocketpoll_broker, rocketpoll_topic):
    """Return a function that reads the topic without isolation."""
    return lambda: sorted(m.text for m in rocketpoll_broker.messages(rocketpoll_topic))


@pytest.fixture
def staged(rocketpoll_broker, rocketpoll_topic):
    """Return a function that lists all staged chunks of the sink."""
    directory = rocketpoll_broker.directory / "staging" / rocketpoll_topic
    return lambda: [file.name for file in directory.iterdir()]


@pytest.fixture
def chunks(monkeypatch):
    """Record the chunks that tasks stage; the test makes some fail, before or after the broker's
    work."""
    sent, stage = [], StagingApi.stage_chunk

    class Chunks(list):
        story = staticmethod(lambda _: None)

    sent = Chunks()

    def stage_chunk(self, address, header, body, timeout_ms=None):
        sent.append((header, bytes(body)))
        error = sent.story(len(sent))
        answer = stage(self, address, header, body, timeout_ms)
        if error is not None:
            answer.result()
            raise error
        return answer

    monkeypatch.setattr(StagingApi, "stage_chunk", stage_chunk)
    return sent


def test_staged_rows_are_visible_after_their_commit(sink, seen):
    partitions = sink.rows(3, 0, 4)
    sent = sink.send(0, partitions)
    sink.send(0, sink.rows(2))  # of an attempt that is not committed
    assert seen() == []
    sink.commit(0, sent)
    assert seen() == sorted(row for rows in partitions for row in rows)


def test_staged_chunk_without_answer_is_sent_again(sink, seen, chunks):
    chunks.story = lambda number: ConnectionClosed("a:1", "it is gone") if number == 1 else None
    (rows,) = sink.rows(5)
    (sent,) = sink.send(0, [rows])
    assert sent.rows[:3] == (5, sum(map(len, rows)), 1)
    sink.commit(0, [sent])
    (first, body), (second, again) = chunks
    assert (first, body) == (second, again)
    assert seen() == sorted(rows)


def test_staged_chunks_are_numbered_and_keep_the_order_of_a_queue(
    monkeypatch, rocketpoll_broker, rocketpoll_topic, chunks
):
    sink = CommittingSink(monkeypatch, rocketpoll_broker, rocketpoll_topic, visibleTo="all")
    monkeypatch.setattr("rmq_spark.spark.exactly_once.staged_commit.CHUNK_BYTES", 1_000)
    sink.options["maxMessageBytes"] = "1500"
    rows = sink.write(0, sink.rows(40))
    assert [header.number for header, _ in chunks] == list(range(len(chunks)))
    assert len(chunks) > 4
    found = list(rocketpoll_broker.messages(rocketpoll_topic))
    assert sorted(m.text for m in found) == sorted(rows)
    of_queue = {}
    for message in found:
        of_queue.setdefault(message.queue.queue_id, []).append(rows.index(message.text))
    assert all(numbers == sorted(numbers) for numbers in of_queue.values())


def test_staging_task_waits_for_a_killed_broker_to_restart(monkeypatch, tmp_path, chunks):
    with EmbeddedBroker(tmp_path / "killed", own_process=True) as broker:
        broker.create_topic("T", 2)
        sink = CommittingSink(monkeypatch, broker, "T", visibleTo="all", maxMessageBytes="1500")
        monkeypatch.setattr("rmq_spark.spark.exactly_once.staged_commit.CHUNK_BYTES", 1_000)

        def story(number):
            if number in {3, 8}:
                broker.kill()
                broker.restart()

        chunks.story = story
        rows = sink.write(0, sink.rows(60))
        assert sorted(message.text for message in broker.messages("T")) == sorted(rows)
        assert len({header.number for header, _ in chunks}) > 8


def test_task_of_a_committed_batch_sends_nothing(sink, seen, chunks):
    rows = sink.rows(3)
    sink.write(0, rows)
    chunks.clear()
    again = sink.send(0, rows)
    assert chunks == []
    assert (again[0].rows.row_count, again[0].rows.staged.is_committed) == (3, True)
    assert again[0].rows.staged.sums.rows == 3
    sink.commit(0, again)
    assert len(seen()) == 3


def test_attempt_that_learns_late_of_its_committed_batch_stops_staging(monkeypatch, sink, seen):
    """The attempt has checked before another driver committed; that driver has not stored its
    manifest yet."""
    monkeypatch.setattr(staged_commit, "commit", lambda *_, **__: None)
    sent = sink.send(0, sink.rows(2))
    look = StagingApi.last_batch
    behind_look(monkeypatch, 2, lambda: sink.commit(0, sent))
    late = sink.attempt(0, 0, ["late"])
    assert late.rows.staged.is_committed
    assert late.rows.staged.attempt is None
    monkeypatch.setattr(StagingApi, "last_batch", look)
    sink.commit(0, [late])
    assert len(seen()) == 2


def test_failed_task_aborts_its_own_staged_rows_only(monkeypatch, sink, staged, seen):
    monkeypatch.setattr(
        "rmq_spark.spark.write.sender.COALESCED_BYTES", 1
    )  # rows are sent as they come
    rows = sink.rows(2, 2)
    sent = sink.send(0, rows)
    before, answers, stage = staged(), [], StagingApi.stage_chunk

    def stage_chunk(*given):
        answers.append(stage(*given))
        return answers[-1]

    monkeypatch.setattr(StagingApi, "stage_chunk", stage_chunk)
    sink.fails = True
    with pytest.raises(RuntimeError, match="a step before"):
        sink.attempt(0, 0, rows[0])
    assert [answer.result(5) for answer in answers] == [False]  # staged now, or earlier
    assert len(before) == 2
    assert staged() == before
    sink.commit(0, sent)
    assert len(seen()) == 4
    assert staged() == []


def test_sink_name_of_another_query_is_refused_with_possible_causes(sink, seen):
    sink.write(0, sink.rows(1))
    sink.write(1, sink.rows(1))
    sink.query = "query-with-a-new-checkpoint"
    with pytest.raises(WriteError) as raised:
        sink.send(0, sink.rows(1))
    for told in (
        "belongs to query query, which has committed batch 1, and this is query query-with-a-new",
        "set option sinkName to another name",
        "If the checkpoint was deleted, restore it",
    ):
        assert told in str(raised.value)
    sink.options["sinkName"] = "another"
    sink.write(0, sink.rows(1))
    assert len(seen()) == 3


@pytest.mark.parametrize("query", ["query-with-a-new-checkpoint", "query"])
def test_sink_reset_command_of_the_error_lets_the_query_restart(
    sink, seen, query, rocketpoll_broker
):
    """The checkpoint was deleted or restored from an older copy, and the rows are wanted again."""
    sink.write(1, sink.rows(1))
    sink.query = query
    with pytest.raises(WriteError) as raised:
        sink.send(0, sink.rows(1))
    sink.query = "query-with-a-new-checkpoint"
    command = re.search(r"rocketpoll (sink forget \S+)$", str(raised.value))[1]
    assert main([*command.split(), "--yes", "--namesrv", rocketpoll_broker.address]) == 0
    sink.write(0, sink.rows(1))
    assert len(seen()) == 2


def test_batch_id_below_the_last_committed_is_refused(sink, seen):
    """For example from a replaced driver, or an older copy of the checkpoint."""
    sent = sink.send(0, sink.rows(1))
    sink.commit(0, sent)
    sink.write(1, sink.rows(1))
    for late in (lambda: sink.send(0, sink.rows(1)), lambda: sink.commit(0, sent)):
        with pytest.raises(WriteError, match="has committed batch 1 of query query, and this is"):
            late()
    assert len(seen()) == 2


def test_rows_may_name_topics_and_all_of_one_broker_are_seen_at_once(
    monkeypatch, rocketpoll_broker
):
    sink = CommittingSink(monkeypatch, rocketpoll_broker, None, visibleTo="all", sinkName="both")
    topics = ["staged-left", "staged-right"]
    for topic in topics:
        rocketpoll_broker.create_topic(topic, 2)
    sink.topic_of = lambda number: topics[number % 2]
    sent = sink.send(0, sink.rows(6, 5))
    assert [len(rocketpoll_broker.messages(topic)) for topic in topics] == [0, 0]
    sink.commit(0, sent)
    assert [len(rocketpoll_broker.messages(topic)) for topic in topics] == [6, 5]


@pytest.mark.parametrize("query", ["query", None])
def test_broker_without_staged_batches_is_refused_at_the_start(monkeypatch, query):
    with FakeCluster(a=lambda _: 0) as cluster:
        room = type("Broker", (), {"address": cluster.address})
        sink = CommittingSink(monkeypatch, room, "T", query, visibleTo="all")
        with pytest.raises(
            OptionError, match=r"broker a at .* does not support staged batches"
        ) as raised:
            sink.write_batch(0, sink.rows(1)) if query is None else sink.send(0, sink.rows(1))
    assert "remove visibleTo" in str(raised.value)


def test_topics_of_several_brokers_are_refused_with_the_reason(monkeypatch):
    with FakeCluster(a=lambda _: 0, b=lambda _: 0) as cluster:
        room = type("Broker", (), {"address": cluster.address})
        sink = CommittingSink(monkeypatch, room, "T", visibleTo="all")
        with pytest.raises(OptionError, match="has rows for a, b"):
            sink.send(0, sink.rows(1))
        with pytest.raises(WriteError, match="has rows for a, b"):
            sink.send(7, sink.rows(1))


def test_staging_over_max_staged_bytes_gives_advice(monkeypatch, tmp_path):
    with EmbeddedBroker(tmp_path / "small", maxStagedBytes=2_000) as broker:
        broker.create_topic("T", 1)
        sink = CommittingSink(monkeypatch, broker, "T", visibleTo="all", retryTimeoutMs="100")
        with pytest.raises(WriteError, match=r"\(maxStagedBytes\).*; make batches smaller"):
            sink.send(0, sink.rows(100))
        sink.write(0, sink.rows(2))
