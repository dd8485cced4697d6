"""Out-of-order commits and those of outdated drivers are refused before their manifests
are stored."""

from dataclasses import replace

import pytest
from support.spark.exactly_once_sink import CommittingSink

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.api.admin_api import AdminApi
from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.errors import ConnectionClosed
from rmq_spark.client.manifest import commits_topic_name, decode_manifest
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.spark.errors import WriteError
from rocketpoll import read_committed

pytestmark = pytest.mark.usefixtures("own_producers")


@pytest.fixture
def sink(monkeypatch, rocketpoll_broker, rocketpoll_topic):
    return CommittingSink(monkeypatch, rocketpoll_broker, rocketpoll_topic, retryTimeoutMs="300")


def test_batch_id_lower_than_the_last_committed_is_refused(
    monkeypatch, sink, commits, rocketpoll_broker, rocketpoll_topic
):
    """For example from an older checkpoint, or a replaced driver; a repeat of the last batch is
    accepted."""
    sink.write(0, sink.rows(1))
    other = CommittingSink(monkeypatch, rocketpoll_broker, rocketpoll_topic, query="another")
    for batch in range(1, 4):
        sink.write(batch, sink.rows(2, 1))
        other.write(batch, other.rows(1))
    before = len(commits())
    sent = sink.send(1, sink.rows(1))
    with pytest.raises(WriteError, match="batch 1 of query query is not committed") as why:
        sink.commit(1, sent)
    assert f"batch 3 of the query is in {commits_topic_name(rocketpoll_topic)}" in str(why.value)
    assert "Restore the latest checkpoint" in str(why.value)
    assert len(commits()) == before
    sink.write(3, sink.rows(1))
    sink.write(4, sink.rows(1))
    assert len(commits()) == before + 2


@pytest.fixture
def made(monkeypatch, rocketpoll_broker, rocketpoll_topic):
    """Return a function that creates a driver of the same query."""

    def make(run, place):
        told = {"checkpointLocation": place, "retryTimeoutMs": "300"}
        sink = CommittingSink(monkeypatch, rocketpoll_broker, rocketpoll_topic, **told)
        sink.run = run
        return sink

    return make


def test_rows_of_a_batch_that_a_copy_of_the_checkpoint_has_committed_are_refused(made, commits):
    """Readers already have the copy's rows for this batch, and would never get these."""
    first = made("run-1", "here")
    first.write(0, first.rows(1))
    copy = made("run-of-a-copy", "elsewhere")
    copy.write(1, copy.rows(2))
    again = made("run-2", "here")
    sent = again.send(1, again.rows(3))
    with pytest.raises(WriteError, match="batch 1 of query query is not committed") as why:
        again.commit(1, sent)
    assert "is in" in str(why.value)
    assert "with other rows. Another driver uses this checkpoint, or a copy of it" in (
        str(why.value)
    )
    copy.write(2, copy.rows(1))
    assert len(commits()) == 3


def test_checkpoint_copy_on_another_machine_is_noticed_by_its_driver(made, commits):
    """Within a run no batch is repeated, so another driver has committed this one."""
    one, other = made("run-1", "/data"), made("run-2", "/data")
    one.write(0, one.rows(1))
    other.write(1, other.rows(2))
    with pytest.raises(WriteError, match=r"with other rows\. Another driver"):
        one.write(1, one.rows(1))
    assert len(commits()) == 2


def test_copied_checkpoint_is_detected_despite_many_writes_per_batch(
    monkeypatch, rocketpoll_broker, rocketpoll_topic
):
    names = [f"to-{number}" for number in range(12)]
    one, copy = (
        CommittingSink(monkeypatch, rocketpoll_broker, rocketpoll_topic, writeName="target_offset")
        for _ in range(2)
    )
    copy.run = "run-of-a-copy"
    for batch, sink in enumerate((one, copy)):
        for name in names:
            sink.options["writeName"] = f"{name}-{batch}"
            sink.write_batch(batch, sink.rows(1))
    for name in (names[0], names[-1]):
        one.options["writeName"] = f"{name}-1"
        with pytest.raises(
            WriteError, match=r"with other rows\. Another driver uses this checkpoint"
        ):
            one.write_batch(1, one.rows(2))


def names_of_writes(monkeypatch, broker, topic, visible_to, **options):
    """Return a function that creates the sink of a foreachBatch write, given a driver and a call.

    With ``visibleTo=all`` the sink's name identifies a write.
    """

    def make(name, run="driver-1", call=0, job_group="etl"):
        option = "writeName" if visible_to is None else "sinkName"
        name = f"{topic[-20:]}-{name}"  # unique, because brokers identify sinks by name
        named = {option: name, "visibleTo": visible_to, "checkpointLocation": None, **options}
        sink = CommittingSink(monkeypatch, broker, topic, **named)
        sink.is_batch_write = True
        sink.run, sink.call, sink.job_group = run, call, job_group
        return sink

    return make


@pytest.fixture(params=[None, "all"])
def write_of(request, monkeypatch, rocketpoll_broker, rocketpoll_topic):
    return names_of_writes(monkeypatch, rocketpoll_broker, rocketpoll_topic, request.param)


@pytest.fixture
def counting_bodies(rocketpoll_broker, rocketpoll_topic):
    """Return a function that reads the bodies of committed rows."""

    def read():
        found = read_committed(rocketpoll_topic, rocketpoll_broker.address)["body"].to_pylist()
        return sorted(body.decode() for body in found)

    return read


@pytest.mark.parametrize("restart", [{"run": "driver-2"}, {"call": 7}])
def test_foreach_batch_with_other_rows_in_a_repeat_is_accepted(
    write_of, counting_bodies, caplog, restart
):
    """The program sets its own job group, the same in each driver and batch."""
    first = write_of("w-3")
    first.write_batch(3, [["1-x", "2-x"]])
    write_of("w-3", **restart).write_batch(3, [["1-y", "2-y"]])
    assert counting_bodies() == ["1-x", "2-x"]
    assert [batch.split(" was committed to ")[0] for batch in told_of_others(caplog)] != []
    write_of("w-4", **restart).write_batch(4, [["3-y"]])
    assert counting_bodies() == ["1-x", "2-x", "3-y"]


def test_second_write_of_a_batch_counts_once_after_the_advised_renaming(write_of, counting_bodies):
    write_of("w").write_batch(0, [["large-1", "large-2"]])
    option = "sinkName" if "visibleTo" in write_of("w").options else "writeName"
    with pytest.raises(
        WriteError, match=f"set its option {option} to another name, and keep the name of"
    ):
        write_of("w").write_batch(0, [["small-1"]])
    for name, rows in (("w", ["large-1", "large-2"]), ("of-its-own", ["small-1"])):
        write_of(name, "driver-2").write_batch(0, [rows])
    assert counting_bodies() == ["large-1", "large-2", "small-1"]


def test_repeated_write_with_other_rows_is_refused_and_counts_once(write_of, counting_bodies):
    write_of("w").write_batch(0, [["1-x"]])
    with pytest.raises(WriteError, match="write the same rows"):
        write_of("w").write_batch(0, [["1-y"]])
    write_of("w").write_batch(0, [["1-x"]])
    assert counting_bodies() == ["1-x"]


def test_copied_checkpoint_is_detected_whatever_the_job_groups(
    monkeypatch, rocketpoll_broker, rocketpoll_topic, counting_bodies
):
    """As the error advises, a restart of the program lets the remaining driver continue."""
    write_of = names_of_writes(monkeypatch, rocketpoll_broker, rocketpoll_topic, None)
    write_of("w-0", "driver-1", 0, "batch 0").write_batch(0, [["0"]])
    write_of("w-1", "driver-2", 0, "batch 1").write_batch(1, [["1-of-2"]])
    with pytest.raises(WriteError, match="restart the other"):
        write_of("w-1", "driver-1", 1, "batch 1").write_batch(1, [["1-of-1"]])
    write_of("w-1", "driver-3", 0, "batch 1").write_batch(1, [["1-of-3"]])
    write_of("w-2", "driver-3", 1, "batch 2").write_batch(2, [["2"]])
    assert counting_bodies() == ["0", "1-of-2", "2"]


def test_batch_committed_by_an_earlier_release_counts_once(
    monkeypatch, rocketpoll_broker, rocketpoll_topic, counting_bodies, caplog
):
    """The run id of such a batch is the job group, that of the query or the program's own."""
    write_of = names_of_writes(monkeypatch, rocketpoll_broker, rocketpoll_topic, None)
    for run in ("5d1e6e6c-0000-4000-8000-000000000000", "etl"):
        sink = write_of(f"of {run}".replace(" ", "-"))
        sent = sink.attempt(0, 0, [f"first {run}"], sink.writer())
        old = replace(sent, manifest_id=sent.manifest_id._replace(run_id=run))
        sink.writer().commit([old])
        sink.run = "driver-2"
        sink.write_batch(0, [[f"again {run}"]])
    assert counting_bodies() == [
        "first 5d1e6e6c-0000-4000-8000-000000000000",
        "first etl",
    ]
    assert len(told_of_others(caplog)) == 2


def told_of_others(caplog):
    """Return the batches for which a warning reports rows that differ from the committed ones."""
    said = (each.getMessage().split(" with other rows than it has now") for each in caplog.records)
    return [batch for batch, *others in said if others]


def test_repeated_batch_after_a_moved_checkpoint_is_accepted(made, commits, caplog):
    """Batches with the same rows are accepted silently, others with a warning, because an older
    checkpoint looks the same."""
    killed = made("run-1", "here")
    killed.write(0, killed.rows(1))
    rows = killed.rows(2, 3)
    killed.write(1, rows)
    moved = made("run-2", "elsewhere")
    moved.write(1, [rows[1], rows[0]])
    assert not told_of_others(caplog)
    back = made("run-3", "here")
    back.write(1, back.rows(4))
    assert told_of_others(caplog) == [
        f"batch 1 of query query was committed to {commits()[0].topic}"
    ]
    moved.write(2, moved.rows(1))
    assert len(commits()) == 5


@pytest.fixture
def anew(monkeypatch, sink, rocketpoll_broker, rocketpoll_topic):
    """Return the query after its checkpoint was deleted: it has a new id."""
    told = {"checkpointLocation": sink.options["checkpointLocation"] + "/", "retryTimeoutMs": "300"}
    return CommittingSink(monkeypatch, rocketpoll_broker, rocketpoll_topic, query="anew", **told)


def test_query_with_a_deleted_checkpoint_is_refused_before_sending(
    sink, anew, commits, rocketpoll_broker, rocketpoll_topic
):
    for batch in range(3):
        sink.write(batch, sink.rows(1))
    with pytest.raises(WriteError, match="If the checkpoint was deleted, restore it") as why:
        anew.send(0, anew.rows(2))
    assert "query query with the same checkpointLocation has committed batch 2" in str(why.value)
    assert "If both queries write, give each its own checkpointLocation" in str(why.value)
    assert len(rocketpoll_broker.messages(rocketpoll_topic)) == len(commits()) == 3


def test_restarted_query_with_an_empty_batch_0_is_refused_at_its_first_commit(sink, anew, commits):
    sink.write(0, sink.rows(1))
    sent = anew.send(1, anew.rows(2))
    with pytest.raises(
        WriteError, match="batch 1 of query anew is not committed: query query with"
    ):
        anew.commit(1, sent)
    assert len(commits()) == 1


def test_restarts_and_other_checkpoints_are_not_refused(
    monkeypatch, sink, commits, rocketpoll_broker
):
    """A repeated batch, a restart, another checkpoint, and the same checkpoint with
    another topic."""
    sink.write(0, sink.rows(1))
    sink.run = "run-1"
    sink.write(0, sink.rows(1))
    sink.write(1, sink.rows(1))
    topic, place = sink.options["topic"], sink.options["checkpointLocation"]
    rocketpoll_broker.create_topic(f"{topic}-2", 4)
    for query, other_topic, other_place in (
        ("a", topic, "elsewhere"),
        ("b", f"{topic}-2", place),
    ):
        other = CommittingSink(
            monkeypatch, rocketpoll_broker, other_topic, query, checkpointLocation=other_place
        )
        for batch in (0, 0, 1):
            other.write(batch, other.rows(1))
    assert len(commits()) == 6


@pytest.mark.parametrize("is_known", [True, False])
def test_commit_waits_for_the_broker_that_knows_the_last_commit(
    sink, anew, commits, rocketpoll_broker, is_known
):
    """Without the answer, rows might be committed twice, or be skipped."""
    anew = sink if is_known else anew
    sink.write(0, sink.rows(1))
    sent = anew.send(1, anew.rows(2))
    asked = []

    def away(self, address, header):
        asked.append(header.key)
        raise ConnectionClosed(address, "its broker is gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdminApi, "query_message", away)
        with pytest.raises(WriteError, match="earlier commits cannot be read from "):
            anew.commit(1, sent)
    assert len(asked) > 1
    assert len(commits()) == 1


def test_unreadable_manifest_does_not_hide_other_manifests(sink, anew, commits, rocketpoll_broker):
    sink.write(0, sink.rows(1))
    with Producer("damage", rocketpoll_broker.address) as producer:
        (manifest,) = commits()
        bad = Message(manifest.topic, b"no manifest", keys=" ".join(manifest.keys))
        producer.send(bad)
    with pytest.raises(WriteError, match="If the checkpoint was deleted"):
        anew.send(0, anew.rows(1))


def test_foreach_batch_write_of_a_restarted_query_is_refused(
    monkeypatch, rocketpoll_broker, rocketpoll_topic, commits
):
    """The write has no checkpoint location: its name identifies it. No row is sent."""
    sink, anew = (
        CommittingSink(monkeypatch, rocketpoll_broker, rocketpoll_topic, query, writeName="paid-0")
        for query in ("query", "anew")
    )
    sink.write_batch(0, sink.rows(2))
    sink.write_batch(0, sink.rows(0))
    with pytest.raises(WriteError, match="query query with a write of the same name has") as why:
        anew.write_batch(0, anew.rows(2))
    assert "give each its own writeName" in str(why.value)
    assert len(rocketpoll_broker.messages(rocketpoll_topic)) == 2
    assert len(commits()) == 1
    anew.options["writeName"] = "others-0"
    anew.write_batch(0, anew.rows(2))
    assert len(commits()) == 2


def test_batch_write_with_the_name_of_another_is_refused(
    monkeypatch, rocketpoll_broker, rocketpoll_topic, commits
):
    """Concurrent foreachBatch writes look the same: Spark gives their threads no batch id."""
    sink = CommittingSink(
        monkeypatch, rocketpoll_broker, rocketpoll_topic, query=None, writeName="even"
    )
    rows = sink.rows(2, 3)
    sink.write_batch(0, rows)
    sink.write_batch(0, rows)  # the first write, restarted
    with pytest.raises(WriteError, match=r"write even has .* it is committed already: skip it, or"):
        sink.write_batch(0, sink.rows(2, 3))
    assert {decode_manifest(each.body).row_count for each in commits()} == {5}
    sink.options["writeName"] = "odd"
    sink.write_batch(0, sink.rows(1))
    counting = read_committed(sink.options["topic"], rocketpoll_broker.address)
    assert counting.num_rows == 6


def hidden_at_first(patch, looks):
    """Make a broker hide the last stored message for a number of lookups; return the lookups."""
    max_offset, made = BrokerApi.max_offset, []

    def behind(self, address, queue):
        made.append(queue.topic)
        return max_offset(self, address, queue) - (len(made) <= looks)

    patch.setattr(BrokerApi, "max_offset", behind)
    return made


def test_commit_waits_until_its_manifest_is_visible(monkeypatch, sink, rocketpoll_topic):
    """Another sink's batch may hide the manifest: until it is visible, the sink cannot know whether
    it counts."""
    made = hidden_at_first(monkeypatch, looks=2)
    sink.write(0, sink.rows(1))
    assert made == [commits_topic_name(rocketpoll_topic)] * 3


def test_batch_with_a_manifest_not_seen_in_time_fails_and_counts_once_when_repeated(
    monkeypatch, sink, commits
):
    """The broker may have lost the manifest. A repeat counts once, whichever manifest is found."""
    sink.options["retryTimeoutMs"] = "1"
    rows = sink.rows(1)
    with monkeypatch.context() as patch:
        hidden_at_first(patch, looks=1_000)
        with pytest.raises(WriteError, match="whether batch 0 of query query") as why:
            sink.write(0, rows)
    assert "was stored at offset 0 of topic" in str(why.value)
    sink.run = "run-1"
    sink.write(0, rows)
    assert len(commits()) == 2


def test_commits_topic_deleted_during_commit_fails_the_batch(
    monkeypatch, sink, rocketpoll_broker, rocketpoll_topic
):
    send, topic = Producer.send, commits_topic_name(rocketpoll_topic)

    def send_and_delete(self, *arguments):
        result = send(self, *arguments)
        with Admin(rocketpoll_broker.address) as admin:
            admin.delete_topic(topic, missing_ok=True)
        return result

    sent = sink.send(0, sink.rows(1))
    monkeypatch.setattr(Producer, "send", send_and_delete)
    with pytest.raises(WriteError, match=r"is not visible .*_COMMITS was deleted") as why:
        sink.commit(0, sent)
    assert f"mqadmin updateTopic -n ADDRESS -b BROKER:PORT -t {topic} -r 1 -w 1" in str(why.value)


def test_batch_counts_if_the_manifest_check_is_not_answered(monkeypatch, sink, commits):
    def away(self, address, queue):
        raise ConnectionClosed(address, "its broker is gone")

    monkeypatch.setattr(BrokerApi, "max_offset", away)
    sink.write(0, sink.rows(1))
    assert len(commits()) == 1
