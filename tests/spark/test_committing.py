"""The exactly-once sink's commit: the commits topic, and the manifest that it stores there."""

import json
import re

import pytest
from support.spark.exactly_once_sink import CommittingSink

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.api.admin_api import AdminApi
from rmq_spark.client.errors import ConnectionClosed, NoPermission
from rmq_spark.client.manifest import CommittedSpan, ManifestId, commits_topic_name, decode_manifest
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.results import SendStatus
from rmq_spark.spark.errors import WriteError
from rmq_spark.spark.exactly_once.manifest_commit import commit
from rmq_spark.spark.options.options import write_options
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.message_queue import MessageQueue

pytestmark = pytest.mark.usefixtures("own_producers")


@pytest.fixture
def sink(monkeypatch, rocketpoll_broker, rocketpoll_topic):
    return CommittingSink(monkeypatch, rocketpoll_broker, rocketpoll_topic, retryTimeoutMs="300")


def test_manifest_lists_the_rows_of_the_counting_task_attempts(sink, commits, rocketpoll_topic):
    rows = sink.rows(3, 0, 4)
    sent = sink.send(0, rows)
    sink.send(0, rows)
    assert commits() == []
    sink.commit(0, sent)
    (message,) = commits()
    assert message.keys[:2] == ("query:0", "query")
    manifest = decode_manifest(message.body)
    assert manifest.topic == rocketpoll_topic
    assert manifest.id == ("query", "", 0, "run-0")
    assert list(manifest.spans) == [span for each in sent for span in each.rows.spans]
    assert (manifest.row_count, json.loads(message.body)["rows"]) == (7, 7)


def test_commits_topic_has_one_queue(sink, rocketpoll_broker, rocketpoll_topic):
    sink.write(0, sink.rows(1, 1))
    sink.write(0, sink.rows(1, 1))
    with Admin(rocketpoll_broker.address) as admin:
        assert len(admin.topic_offsets(commits_topic_name(rocketpoll_topic))) == 1


def test_commits_topic_that_cannot_be_created_gives_the_mqadmin_command(
    sink, monkeypatch, rocketpoll_broker, rocketpoll_topic
):
    def refuse(self, address, config):
        code, request = ResponseCode.NO_PERMISSION, RequestCode.UPDATE_AND_CREATE_TOPIC
        raise NoPermission(code, "topics are made by operators", address, request)

    with monkeypatch.context() as patch:
        patch.setattr(AdminApi, "create_topic", refuse)
        with pytest.raises(
            WriteError, match=r"which stores the commits, .* does not create it: .*operators"
        ) as why:
            sink.send(0, sink.rows(1))
    assert f"-t {commits_topic_name(rocketpoll_topic)} -r 1 -w 1" in str(why.value)
    assert len(rocketpoll_broker.messages(rocketpoll_topic)) == 0
    rocketpoll_broker.create_topic(commits_topic_name(rocketpoll_topic), 1)
    sink.write(0, sink.rows(1))


def test_oversized_manifest_names_the_option_to_raise(
    sink, commits, rocketpoll_broker, rocketpoll_topic
):
    """The last message of a manifest has the numbers of all parts."""
    sink.write(0, sink.rows(1))
    given = {"namesrvAddr": rocketpoll_broker.address, "topic": rocketpoll_topic}
    options = write_options({**given, "delivery": "exactly_once", "maxMessageBytes": "1000"})
    queue = MessageQueue(rocketpoll_topic, "broker-a", 0)
    spans = [CommittedSpan(queue, 2 * at, 1, 0, 1) for at in range(1_000)]
    said = (
        "batch 1 of query q is not committed: .* over the 1000 of option maxMessageBytes. Raise it"
    )
    with pytest.raises(WriteError, match=said):
        commit(options, ManifestId("q", "", 1), spans)
    counted = [decode_manifest(message.body) for message in commits()]
    assert [each.id.query_id for each in counted if each is not None] == ["query"]


def test_empty_or_aborted_batch_has_no_manifest(sink, commits):
    sink.write(0, sink.rows(0, 0))
    sink.commit(0, [])
    sink.writer().abort(sink.send(1, sink.rows(3)), 1)
    assert commits() == []


def test_task_reports_of_different_batches_are_refused(sink, commits):
    sent = sink.send(0, sink.rows(1))
    for batch, reports in [(1, sent), (0, [*sent, None]), (0, sent + sink.send(1, sink.rows(1)))]:
        with pytest.raises(
            WriteError, match="the reports of the tasks belong to different batches"
        ):
            sink.commit(batch, reports)
    assert commits() == []


def test_missing_commits_topic_is_not_created_after_the_first_batch(
    sink, rocketpoll_broker, rocketpoll_topic
):
    sent = sink.send(5, sink.rows(1))
    with pytest.raises(WriteError, match=r"no name server knows the queue of topic .*_COMMITS"):
        sink.commit(5, sent)
    rocketpoll_broker.create_topic(commits_topic_name(rocketpoll_topic), 4)
    with pytest.raises(WriteError, match="batches are ordered within one queue only") as why:
        sink.commit(5, sent)
    assert "mqadmin updateTopic" in str(why.value)


def test_manifest_without_answer_is_sent_again(sink, commits, monkeypatch):
    """If only the response is lost, the manifest is stored twice, and counts once."""
    sent, real, answers = sink.send(0, sink.rows(2)), Producer.send, []

    def send(self, *arguments):
        answers.append(real(self, *arguments))
        if len(answers) == 1:
            raise ConnectionClosed("127.0.0.1:1", "its broker is gone")
        return answers[-1]

    monkeypatch.setattr(Producer, "send", send)
    sink.commit(0, sent)
    assert [answer.send_status for answer in answers] == [SendStatus.SEND_OK] * 2
    first, second = commits()
    assert first.body == second.body


# ---- batch writes


def test_batch_write_is_atomic_and_counts_once_under_its_name(
    monkeypatch, rocketpoll_broker, rocketpoll_topic, commits
):
    sink = CommittingSink(monkeypatch, rocketpoll_broker, rocketpoll_topic, query=None)
    writer = sink.writer()
    sent = [sink.attempt(0, 0, rows, writer) for rows in sink.rows(2, 3)]
    assert commits() == []
    writer.commit(sent)
    manifest = decode_manifest(commits()[0].body)
    assert manifest.id.query_id is None
    assert len(manifest.id.write_name) == 36
    assert manifest.row_count == 5


def test_foreach_batch_write_is_identified_by_query_batch_and_write_name(
    monkeypatch, rocketpoll_broker, rocketpoll_topic, commits
):
    sink = CommittingSink(monkeypatch, rocketpoll_broker, rocketpoll_topic, writeName="paid")
    sink.write_batch(4, sink.rows(2))
    identity = decode_manifest(commits()[0].body).id
    assert identity[:3] == ("query", "paid", 4)
    assert re.fullmatch("[0-9a-f]{24}#0", identity.run_id)
    rows = sink.rows(3)
    sink.options["writeName"] = "large"
    sink.write_batch(4, rows)
    sink.write_batch(4, rows[::-1])  # a retry in the user's code
    with pytest.raises(
        WriteError, match=r"has already committed other rows of .*, write large to "
    ):
        sink.write_batch(4, sink.rows(3))
    del sink.options["writeName"]
    sink.is_batch_write = True
    with pytest.raises(
        WriteError,
        match=(
            r"identify a write within foreachBatch\. Set option writeName, to a different "
            "name for each write"
        ),
    ):
        sink.write_batch(4, sink.rows(2))
