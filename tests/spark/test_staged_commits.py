"""The driver's commits with visibleTo=all: broker commits before manifests, and batch writes."""

import logging
from collections import Counter

import pytest
from support.spark.exactly_once_sink import CommittingSink
from support.spark.streaming_engine import Engine, assert_read

from rmq_spark.client.api.admin_api import StagingApi
from rmq_spark.client.errors import ConnectionClosed, RequestTimeout
from rmq_spark.client.manifest import commits_topic_name, decode_manifest
from rmq_spark.spark.errors import WriteError
from rmq_spark.spark.exactly_once import staged_commit
from rocketpoll import EmbeddedBroker, read_committed


class Killed(BaseException):
    """Raised where a test kills the driver."""


pytestmark = pytest.mark.usefixtures("own_producers")


@pytest.fixture
def made(monkeypatch, rocketpoll_broker, rocketpoll_topic):
    """Return a function that creates a sink with visibleTo=all."""

    def make(query="query", **options):
        given = {"visibleTo": "all", "retryTimeoutMs": "300", **options}
        return CommittingSink(monkeypatch, rocketpoll_broker, rocketpoll_topic, query, **given)

    return make


@pytest.fixture
def sink(made):
    return made()


@pytest.fixture
def seen(rocketpoll_broker, rocketpoll_topic):
    """Return a function that reads the topic without isolation."""
    return lambda: sorted(m.text for m in rocketpoll_broker.messages(rocketpoll_topic))


@pytest.fixture
def manifests(rocketpoll_broker, rocketpoll_topic):
    """Return a function that reads the stored manifests."""

    def found():
        commits = commits_topic_name(rocketpoll_topic)
        if not rocketpoll_broker.has_topic(commits):
            return []
        return [decode_manifest(message.body) for message in rocketpoll_broker.messages(commits)]

    return found


def failing_once(monkeypatch, name, error, *, behind=True):
    """Make a request fail once, before or after its work."""
    real, errors = getattr(StagingApi, name), [error]

    def call(self, *arguments):
        if errors and not behind:
            raise errors.pop()
        answer = real(self, *arguments)
        if errors:
            raise errors.pop()
        return answer

    monkeypatch.setattr(StagingApi, name, call)


def test_readers_of_what_counts_have_the_rows_that_all_see(
    sink, seen, manifests, rocketpoll_broker, rocketpoll_topic
):
    rows = sink.write(0, sink.rows(3, 4)) + sink.write(1, sink.rows(2))
    assert seen() == sorted(rows)
    assert [(each.id, each.row_count) for each in manifests()] == [
        (("query", "", 0, "run-0"), 7),
        (("query", "", 1, "run-0"), 2),
    ]
    reader = Engine(
        rocketpoll_broker.address,
        subscribe=rocketpoll_topic,
        isolation="committed",
        startingOffsets="earliest",
    )
    reader.start()
    reader.run()
    assert_read(reader, rows)
    reader.stop()


@pytest.mark.parametrize(
    "error", [ConnectionClosed("a:1", "it is gone"), RequestTimeout("a:1", 29004, 1)]
)
@pytest.mark.parametrize("behind", [True, False])
def test_commit_without_answer_is_sent_again(monkeypatch, sink, seen, manifests, error, behind):
    failing_once(monkeypatch, "commit_batch", error, behind=behind)
    rows = sink.write(0, sink.rows(3))
    assert seen() == sorted(rows)
    assert len(manifests()) == 1


def test_rows_are_never_named_before_they_are_there(monkeypatch, sink, seen, manifests):
    """Readers of a manifest without rows would wait for them, or read others in their place."""
    sent = sink.send(0, sink.rows(2))
    failing_once(monkeypatch, "commit_batch", Killed(), behind=False)
    with pytest.raises(Killed):
        sink.commit(0, sent)
    assert (seen(), manifests()) == ([], [])
    sink.commit(0, sent)
    assert len(seen()) == 2


def test_driver_killed_between_commit_and_manifest_stores_the_manifest_on_rerun(
    monkeypatch, sink, seen, manifests
):
    rows = sink.rows(5, 2)
    failing_once(monkeypatch, "commit_batch", Killed())
    with pytest.raises(Killed):
        sink.write(0, rows)
    assert (len(seen()), manifests()) == (7, [])
    sink.run = "run-1"
    sink.write(0, [rows[0][:1], rows[0][1:] + rows[1], []])  # as after a shuffle
    assert len(seen()) == 7
    (manifest,) = manifests()
    assert manifest.row_count == 7


def test_abort_removes_the_reported_attempts_and_keeps_another_drivers(
    sink, seen, rocketpoll_broker, rocketpoll_topic
):
    old = sink.send(3, sink.rows(2, 1))
    rows = sink.rows(4)
    new = sink.send(3, rows)  # from the driver that has replaced it
    sink.writer().abort([*old, None], 3)
    assert len(list((rocketpoll_broker.directory / "staging" / rocketpoll_topic).iterdir())) == 1
    sink.commit(3, new)
    assert seen() == sorted(rows[0])


def test_abort_after_commit_changes_nothing(sink, seen, manifests):
    sent = sink.send(0, sink.rows(2))
    sink.commit(0, sent)
    sink.writer().abort(sent, 0)
    assert len(seen()) == len(sink.send(0, sink.rows(2))) * 2
    assert len(manifests()) == 1


def test_abort_without_answer_is_logged_only(monkeypatch, made, tmp_path, caplog):
    with EmbeddedBroker(tmp_path) as broker:
        broker.create_topic("T", 1)
        sink = made(namesrvAddr=broker.address, requestTimeoutMs="300")
        sink.options["topic"] = "T"
        sent = sink.send(0, sink.rows(1))
    caplog.set_level(logging.WARNING, "rmq_spark")
    sink.writer().abort(sent, 0)
    assert "keeps the staged rows until the next commit" in caplog.text
    body, staged = sent[0].rows.body_bytes, sent[0].rows.staged.staged_bytes
    said = f"batch 0 was aborted: 1 rows, {body} bytes, of 1 tasks were staged in {staged} bytes"
    assert said in caplog.text


def test_batch_without_rows_is_not_committed(sink, seen, manifests):
    sink.write(0, sink.rows(0, 0))
    sink.commit(0, [])
    assert (seen(), manifests()) == ([], [])
    sink.write(1, sink.rows(1))
    assert len(seen()) == 1


def test_missing_staged_rows_fail_the_commit(sink, seen, rocketpoll_broker, rocketpoll_topic):
    sent = sink.send(0, sink.rows(1))
    (chunk,) = (rocketpoll_broker.directory / "staging" / rocketpoll_topic).iterdir()
    sink.writer().abort(sent, 0)
    assert not chunk.exists()
    with pytest.raises(
        WriteError, match=r"batch 0 of query query is not committed, .* is not staged"
    ):
        sink.commit(0, sent)
    assert seen() == []


def test_topic_deleted_before_the_commit_is_named_and_shows_no_rows(
    sink, rocketpoll_broker, rocketpoll_topic
):
    sent = sink.send(0, sink.rows(1))
    rocketpoll_broker.delete_topic(rocketpoll_topic)
    with pytest.raises(WriteError, match=f"topic {rocketpoll_topic} was deleted after rows had"):
        sink.commit(0, sent)


def test_broker_that_forgot_a_commit_shows_no_part_of_a_repeated_batch(monkeypatch, sink, seen):
    """Tasks were notified that the batch is committed, and have left rows out."""
    rows = sink.rows(2, 2)
    sink.write(0, rows)
    again = sink.send(0, rows)
    monkeypatch.setattr(StagingApi, "last_batch", lambda *_: None)
    with pytest.raises(WriteError, match=r"reported batch 0 .* does not know it now"):
        sink.commit(0, again)
    assert len(seen()) == 4


def test_batches_without_a_possible_commits_topic_have_no_manifests(
    monkeypatch, rocketpoll_broker, caplog
):
    topic = "t" * 124
    rocketpoll_broker.create_topic(topic, 1)
    sink = CommittingSink(monkeypatch, rocketpoll_broker, None, visibleTo="all", sinkName="long")
    sink.topic_of = lambda _: topic
    sink.write(0, sink.rows(2))
    assert len(rocketpoll_broker.messages(topic)) == 2
    assert "has no manifests, as it has no commits topic" in caplog.text


# ---- batch writes


def test_batch_write_is_visible_whole_or_not_at_all(made, seen, manifests):
    sink = made(query=None)
    writer = sink.writer()
    sent = [sink.attempt(0, at, rows, writer) for at, rows in enumerate(sink.rows(2, 3))]
    assert seen() == []
    writer.commit(sent)
    assert len(seen()) == 5
    gone = sink.writer()
    gone.abort([sink.attempt(0, 0, ["x"], gone), None])
    sink.write_batch(0, sink.rows(1))
    assert len(seen()) == 6
    assert [each.row_count for each in manifests()] == [5, 1]


def test_overlapping_writes_of_one_sink_are_refused(made, seen):
    """The later write is committed first; the earlier one fails, and may be repeated."""
    sink = made(query=None)
    early, late = sink.writer(), sink.writer()
    sent = sink.attempt(0, 0, ["early"], early)
    late.commit([sink.attempt(0, 0, ["late"], late)])
    with pytest.raises(
        WriteError, match=r"another batch write of sink .* was committed in the meantime"
    ):
        early.commit([sent])
    assert seen() == ["late"]
    sink.options["sinkName"] = "mine"
    sink.write_batch(0, [["early"]])
    assert seen() == ["early", "late"]


def test_batch_write_numbers_increase_with_the_clock_set_back(made, monkeypatch, seen):
    sink = made(query=None)
    sink.write_batch(0, sink.rows(1))
    monkeypatch.setattr(staged_commit.time, "time", lambda: 1.0)
    sink.write_batch(0, sink.rows(1))
    assert len(seen()) == 2


def test_foreach_batch_write_is_visible_once_per_sink_and_batch(
    made, seen, manifests, rocketpoll_broker, rocketpoll_topic
):
    sink = made()
    sink.is_batch_write = True
    rows = sink.rows(2)
    sink.write_batch(4, rows)
    sink.write_batch(4, rows)  # a retry in the user's code
    with pytest.raises(
        WriteError, match=r"has already committed other rows of batch 4 .* its option sinkName"
    ):
        sink.write_batch(4, sink.rows(3))
    sink.options["sinkName"] = "large"
    sink.write_batch(4, sink.rows(3))
    assert len(seen()) == 5
    assert [each.id.write_name for each in manifests()] == [rocketpoll_topic] * 2 + ["large"]
    counting = read_committed(rocketpoll_topic, rocketpoll_broker.address)
    assert sorted(body.decode() for body in counting.column("body").to_pylist()) == seen()


def test_txn_app_id_and_version_make_batch_writes_idempotent(
    made, seen, manifests, rocketpoll_broker, rocketpoll_topic
):
    """For example with Spark Connect: a repeated foreachBatch function commits once."""

    def version(number, query=None, application="large"):
        return made(query, txnAppId=application, txnVersion=str(number))

    rows = version(6).rows(2, 1)
    for sink in (version(6), version(6), version(6, query="query")):
        sink.is_batch_write = True
        sink.write_batch(0, rows)
    version(7).write_batch(0, rows)
    assert Counter(seen()) == Counter(row for some in (*rows, *rows) for row in some)
    assert [each.id.batch_id for each in manifests()] == [6, 6, 6, 7]
    counting = read_committed(rocketpoll_topic, rocketpoll_broker.address)
    assert sorted(body.decode() for body in counting.column("body").to_pylist()) == seen()
    with pytest.raises(WriteError, match="has already committed other rows of batch 7"):
        version(7).write_batch(0, version(7).rows(4))
    with pytest.raises(WriteError, match="has committed batch 7 of application large, and this is"):
        version(6).write_batch(0, rows)
    with pytest.raises(WriteError, match="belongs to application large, which has committed batch"):
        version(8, application="small").write_batch(0, rows)
    assert len(seen()) == 6


def test_rows_of_a_batch_that_a_copy_of_the_checkpoint_has_committed_are_refused(
    made, seen, manifests
):
    """Tasks that learn of the commit only count their rows; others counted theirs when they staged
    them."""
    first = made(checkpointLocation="here")
    first.write(0, first.rows(1))
    copy, again = made(checkpointLocation="elsewhere"), made(checkpointLocation="here")
    copy.run, again.run = "run-of-a-copy", "run-1"
    staged = again.send(1, again.rows(3))
    copy.write(1, copy.rows(2))
    told = again.send(1, again.rows(2))
    for sent in (staged, told):
        with pytest.raises(
            WriteError, match=r"batch 1 .* has committed it already, with other row"
        ):
            again.commit(1, sent)
    assert len(seen()) == 3
    assert [each.row_count for each in manifests()] == [1, 2]


def test_repeated_staged_batch_with_other_rows_is_accepted(made, seen, manifests, caplog):
    """A warning names them, because an older checkpoint looks the same."""
    killed = made(checkpointLocation="here")
    rows = killed.rows(2, 1)
    killed.write(0, rows)
    again, moved = made(checkpointLocation="here"), made(checkpointLocation="elsewhere")
    again.run, moved.run = "run-1", "run-2"
    again.write(0, again.rows(4))
    [told] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert told.startswith("batch 0 of query query was committed to sink ")
    assert "an old checkpoint was restored" in told
    moved.write(0, [rows[1], rows[0]])
    moved.write(1, moved.rows(1))
    assert len(seen()) == 4
    assert [each.row_count for each in manifests()] == [3, 3, 3, 1]


def test_second_foreach_batch_write_of_several_topics_in_one_sink_is_refused(
    made, rocketpoll_broker
):
    sink = made(sinkName="several")
    del sink.options["topic"]
    sink.is_batch_write, topics = True, ["several-left", "several-right"]
    sink.topic_of = lambda number: topics[number % 2]
    rows = sink.rows(4)
    sink.write_batch(0, rows)
    sink.write_batch(0, rows)
    with pytest.raises(WriteError, match=r"other rows of batch 0 .* to sink several"):
        sink.write_batch(0, sink.rows(4))
    assert [len(rocketpoll_broker.messages(topic)) for topic in topics] == [2, 2]
