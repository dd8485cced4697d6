"""A sink task sends its rows: order, retries, refusals and timeouts."""

import os
from datetime import datetime, timedelta, timezone
from math import ceil

import pyarrow as pa
import pytest
from support.servers.fake_servers import FakeCluster
from support.spark.exactly_once_sink import CommittingSink
from support.suite.clocks import Clock

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.errors import ConnectionFailed
from rmq_spark.client.manifest import CommittedSpan
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.spark.errors import RowError, WriteError
from rmq_spark.spark.options.options import write_options
from rmq_spark.spark.options.sink_columns import SinkColumn
from rmq_spark.spark.write import sender
from rmq_spark.spark.write.reports import ROW_ID, WriteTask
from rmq_spark.spark.write.sender import producer_of, send_message, send_rows
from rmq_spark.wire.message.message_batch import decode_batch
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll.broker.embedded import EmbeddedBroker

TASK = WriteTask("q", 0, 2)
PATIENCE_MS = 60_000


@pytest.fixture(autouse=True)
def _no_producer_outlives_its_test(monkeypatch):
    made = {}
    monkeypatch.setattr(sender, "_producers", made)
    yield
    for producer in made.values():
        producer.shutdown()


def options_of(address, topic="T", **more):
    given = {"namesrvAddr": address, "retryTimeoutMs": str(PATIENCE_MS), **more}
    return write_options(given if topic is None else {**given, "topic": topic})


def write(options, *batches, clock=None, on_wait=lambda: None):
    """Write dicts of columns, one record batch each; waits take no time and are recorded."""
    clock = clock or Clock()

    def sleep(seconds):
        clock.now += seconds
        on_wait()

    made = [pa.record_batch(batch) for batch in batches]
    sent = [SinkColumn(name, at, "?") for at, name in enumerate(batches[0])]
    return send_rows(options, sent, TASK, made, clock=clock, sleep=sleep)


def refused(options, *batches, **more):
    with pytest.raises(WriteError) as raised:
        write(options, *batches, **more)
    return str(raised.value)


def ids_of(messages):
    return sorted(message.properties[ROW_ID] for message in messages)


def test_write_stores_all_rows_and_returns_their_spans(rocketpoll_broker, rocketpoll_topic):
    options = options_of(rocketpoll_broker.address, rocketpoll_topic)
    found = write(
        options, {"body": ["a", "b"], "keys": ["k", None]}, {"body": ["c"], "keys": ["l"]}
    )
    messages = rocketpoll_broker.messages(rocketpoll_topic)
    assert sorted(message.body for message in messages) == [b"a", b"b", b"c"]
    assert ids_of(messages) == [TASK.row_id(row) for row in range(3)]
    assert found.row_count == sum(span.message_count for span in found.spans) == 3
    stored = {(message.queue, message.queue_offset) for message in messages}
    assert stored == {
        (span.queue, span.queue_offset + at)
        for span in found.spans
        for at in range(span.message_count)
    }


def test_rows_of_one_key_stay_in_order_and_spans_that_follow_each_other_are_one(
    rocketpoll_broker, rocketpoll_topic, monkeypatch
):
    monkeypatch.setattr(sender, "COALESCED_BYTES", 1)
    options = options_of(rocketpoll_broker.address, rocketpoll_topic)
    batches = [{"body": [f"{n}-{m}" for m in range(5)], "shardingKey": ["x"] * 5} for n in range(4)]
    found = write(options, *batches)
    messages = rocketpoll_broker.messages(rocketpoll_topic)
    assert [message.body.decode() for message in messages] == [
        body for b in batches for body in b["body"]
    ]
    assert ids_of(messages) == sorted(TASK.row_id(row) for row in range(20))
    assert found.spans == (CommittedSpan(messages[0].queue, 0, 20, 0, 0),)


def test_rows_with_a_key_wait_for_name_servers_as_others_do(
    rocketpoll_broker, rocketpoll_topic, monkeypatch
):
    options = options_of(rocketpoll_broker.address, rocketpoll_topic)
    publish_queues, waits = Producer.publish_queues, []

    def away_at_first(producer, topic):
        if len(waits) < 3:
            raise ConnectionFailed("127.0.0.1:1", "refused")
        return publish_queues(producer, topic)

    monkeypatch.setattr(Producer, "publish_queues", away_at_first)
    write(options, {"body": ["a"], "shardingKey": ["x"]}, on_wait=lambda: waits.append(1))
    assert [message.body for message in rocketpoll_broker.messages(rocketpoll_topic)] == [b"a"]
    assert len(waits) == 3


def test_delayed_rows_are_sent_with_their_level(rocketpoll_broker, rocketpoll_topic):
    options = options_of(rocketpoll_broker.address, rocketpoll_topic)
    rows = {"body": ["now", "later"], "delayLevel": [0, 1], "tags": ["a", "b"], "queueId": [2, 2]}
    assert write(options, rows).row_count == 2
    rocketpoll_broker.wait_until_arrived(rocketpoll_topic, 2)
    by_body = {message.body: message for message in rocketpoll_broker.messages(rocketpoll_topic)}
    assert by_body[b"later"].store_timestamp - by_body[b"now"].store_timestamp >= 900
    assert by_body[b"later"].tags == "b"
    assert {message.queue.queue_id for message in by_body.values()} == {2}
    assert ids_of(by_body.values()) == [TASK.row_id(0), TASK.row_id(1)]


def test_rows_with_a_time_of_delivery_wait_for_it(rocketpoll_broker, rocketpoll_topic):
    options = options_of(rocketpoll_broker.address, rocketpoll_topic)
    at = datetime.now(timezone.utc) + timedelta(seconds=1.5)
    rows = {"body": ["later", "now"], "deliverAt": [at, None], "tags": ["b", "a"]}
    assert write(options, rows).row_count == 2
    rocketpoll_broker.wait_until_arrived(rocketpoll_topic, 2)
    by_body = {message.body: message for message in rocketpoll_broker.messages(rocketpoll_topic)}
    assert by_body[b"later"].store_timestamp >= at.timestamp() * 1_000
    assert by_body[b"now"].store_timestamp < at.timestamp() * 1_000
    assert by_body[b"later"].properties["TIMER_DELIVER_MS"] == str(ceil(at.timestamp() * 1_000))
    assert by_body[b"later"].tags == "b"


def test_row_with_too_late_a_time_of_delivery_is_named_with_the_brokers_limit():
    now = datetime.now(timezone.utc)
    times = [None, now, now + timedelta(days=30), now + timedelta(days=60)]
    bodies = ["the longest body of all", "b", "c", "d"]
    with EmbeddedBroker() as broker:
        broker.create_topic("T")
        problem = refused(
            options_of(broker.address),
            {"body": bodies, "deliverAt": times},
            on_wait=lambda: pytest.fail("waited"),
        )
    assert problem.startswith("partition 2, row 2: ")
    assert "Set an earlier time of delivery, or raise the broker's timerMaxDelaySec" in problem
    assert "longest body" not in problem
    assert "maxMessageBytes" not in problem


def test_delayed_row_with_too_long_a_body_is_named_with_advice_on_its_size():
    with EmbeddedBroker(maxMessageSize=1_000) as broker:
        broker.create_topic("T")
        rows = {"body": ["a", "x" * 2_000, "b"], "delayLevel": [1, 1, 1]}
        problem = refused(options_of(broker.address), rows)
    assert problem.startswith("partition 2, row 1: ")
    assert "shorten larger bodies or raise both" in problem


def test_null_body_row_fails_before_its_record_batch_is_sent(rocketpoll_broker, rocketpoll_topic):
    with pytest.raises(RowError, match="row 1 of partition 2, column body: it is null"):
        write(options_of(rocketpoll_broker.address, rocketpoll_topic), {"body": ["a", None]})
    assert rocketpoll_broker.messages(rocketpoll_topic) == []


def test_producer_is_shared_by_tasks_of_a_process_but_not_by_forks(rocketpoll_broker):
    options = options_of(rocketpoll_broker.address)
    producer = producer_of(options)
    assert producer_of(options_of(rocketpoll_broker.address, "another")) is producer
    assert producer_of(options_of(rocketpoll_broker.address, producerGroup="mine")) is not producer
    child = os.fork()
    if child == 0:
        os._exit(0 if producer_of(options) is not producer else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert producer_of(options) is producer


def test_commits_topic_is_created_with_one_queue_by_its_manifest(rocketpoll_broker):
    """The commits topic may be deleted between the lookup of its queue and the send."""
    options = options_of(rocketpoll_broker.address, "orders")
    queues = {}
    for topic in ("orders", "orders_COMMITS"):
        rocketpoll_broker.create_topic(topic, 1)
        routes = producer_of(options).instance.routes
        (queue,) = routes.sendable_queues(topic, "TBW102", 1)
        rocketpoll_broker.delete_topic(topic)
        if topic == "orders":
            write(options, {"body": ["a row"]})
        else:
            send_message(options, Message(topic, b"a manifest"), queue)
        queues[topic] = len(routes.refresh(topic).publish_queues)
    assert queues == {"orders": 4, "orders_COMMITS": 1}


def test_sink_task_waits_for_a_restarting_broker_and_loses_no_row():
    with EmbeddedBroker(own_process=True) as broker:
        broker.create_topic("T")
        options = options_of(broker.address, requestTimeoutMs="30000")
        write(options, {"body": ["before"]})
        broker.kill()
        waits = []

        def come_back():
            waits.append(1)
            if len(waits) == 2:
                broker.restart()

        rows = {"body": [f"{n}" for n in range(100)], "delayLevel": [n % 2 for n in range(100)]}
        assert write(options, rows, on_wait=come_back).row_count == 100
        assert len(waits) >= 2
        broker.wait_until_arrived("T", 101)
        assert {message.body for message in broker.messages("T")} >= {b"%d" % n for n in range(100)}


def test_busy_broker_is_retried_with_growing_pauses():
    clock, waits = Clock(), []
    started = clock.now
    with FakeCluster(a=lambda number: 2 if number < 6 else 0) as cluster:
        found = write(
            options_of(cluster.address),
            {"body": ["a"]},
            clock=clock,
            on_wait=lambda: waits.append(clock.now),
        )
        assert found.row_count == 1
        assert cluster.sends() == {"a": 6}
    assert [at - started for at in waits] == [0.5, 1.5, 3.5, 7.5, 12.5]


def test_unavailable_broker_fails_the_sink_task_after_the_retry_timeout():
    clock = Clock()
    started = clock.now
    with FakeCluster(a=lambda _: 2) as cluster:
        problem = refused(options_of(cluster.address), {"body": ["a"]}, clock=clock)
    assert PATIENCE_MS / 1000 < clock.now - started < PATIENCE_MS / 1000 + sender.PAUSE_SECONDS_MAX
    assert problem.startswith("partition 2, row 0 or after it: sending to T failed")
    assert (
        "raise option retryTimeoutMs. 0 rows of this partition were stored before, and stay"
        in problem
    )


@pytest.mark.parametrize(
    ("code", "remedy", "tries"),
    [
        (13, "set option maxMessageBytes to the broker's maxMessageSize", 1),
        (16, "make the topic writable (perm 6)", 3),
        (17, "create the topic, for example with mqadmin updateTopic", 3),
    ],
)
def test_permanent_refusal_is_not_retried_and_has_advice(code, remedy, tries):
    with FakeCluster(a=lambda _: code) as cluster:
        problem = refused(
            options_of(cluster.address), {"body": ["a"]}, on_wait=lambda: pytest.fail("waited")
        )
        assert cluster.sends() == {"a": tries}
    assert remedy in problem


def test_partially_sent_rows_are_counted_and_not_resent(monkeypatch):
    """A RocketMQ broker's batch has at most 4,000 messages; here the second one is refused."""
    bodies = [f"{n}" for n in range(10_000)]
    rows = {"body": bodies, "queueId": [0] * len(bodies)}
    with FakeCluster(a=lambda number: 2 if number == 2 else 0) as cluster:
        found = write(options_of(cluster.address), rows)
        batches = [decode_batch(body) for _, body in cluster.brokers["a"].sent]
    assert found.row_count == 10_000
    assert [len(batch) for batch in batches] == [4_000, 4_000, 4_000, 2_000]
    assert [message.body for message in batches[2]] == [message.body for message in batches[1]]
    with FakeCluster(a=lambda number: 13 if number == 2 else 0) as cluster:
        problem = refused(options_of(cluster.address), rows)
    assert "4,000 messages sent, then sending to T failed" in problem
    assert "4000 rows of this partition were stored before, and stay" in problem


def test_send_timeout_restarts_after_each_success():
    clock = Clock()

    def wait_longer_than_is_said():
        clock.now += PATIENCE_MS / 1000

    bodies = [f"{n}" for n in range(10_000)]
    with FakeCluster(a=lambda number: 2 if number in {2, 4} else 0) as cluster:
        found = write(
            options_of(cluster.address),
            {"body": bodies, "queueId": [0] * len(bodies)},
            clock=clock,
            on_wait=wait_longer_than_is_said,
        )
        assert cluster.sends() == {"a": 5}
    assert found.row_count == 10_000


def test_unreachable_broker_is_retried_until_the_timeout():
    clock = Clock()
    with FakeCluster(a=lambda _: 0) as cluster:
        options = options_of(cluster.address, retryTimeoutMs="1000")
        write(options, {"body": ["a"]})
    problem = refused(options, {"body": ["b"]}, clock=clock)
    assert 1 < clock.now - Clock().now < 4
    assert "check that the brokers and the name servers of option namesrvAddr run" in problem


def test_write_to_a_topic_that_cannot_be_created_fails_at_once():
    with EmbeddedBroker(autoCreateTopicEnable=False) as broker:
        problem = refused(
            options_of(broker.address, None),
            {"topic": ["orders"], "body": ["a"]},
            on_wait=lambda: pytest.fail("waited"),
        )
    assert (
        "no route to topic orders: it does not exist, and no broker creates topics automatically"
        in problem
    )
    assert "create the topic, for example with mqadmin updateTopic" in problem


def test_bodies_over_four_megabytes_go_where_the_broker_takes_them():
    with EmbeddedBroker(maxMessageSize=8 * 1024 * 1024) as broker:
        broker.create_topic("T")
        body = "x" * (5 * 1024 * 1024)
        with pytest.raises(
            RowError, match="where the broker's maxMessageSize is higher, set option"
        ):
            write(options_of(broker.address), {"body": [body]})
        write(options_of(broker.address, maxMessageBytes="8m"), {"body": [body]})
        (message,) = broker.messages("T")
        assert len(message.body) == len(body)


def test_message_over_the_brokers_limit_is_refused_with_advice():
    with EmbeddedBroker(maxMessageSize=1_000) as broker:
        broker.create_topic("T")
        problem = refused(options_of(broker.address), {"body": ["x" * 2_000]})
    assert "MESSAGE_ILLEGAL" in problem
    assert "the longest body is that of row 0, with 2000 bytes" in problem
    assert "shorten larger bodies or raise both" in problem


def test_rows_go_to_the_queue_that_they_name(rocketpoll_broker, rocketpoll_topic):
    options = options_of(rocketpoll_broker.address, rocketpoll_topic)
    rows = {"body": ["a", "b"], "queueId": [3, 1], "brokerName": ["broker-a", "broker-a"]}
    found = write(options, rows)
    assert {span.queue for span in found.spans} == {
        MessageQueue(rocketpoll_topic, "broker-a", number) for number in (3, 1)
    }


@pytest.mark.parametrize("column", ["keys", "tags", "shardingKey", "brokerName"])
def test_empty_text_in_an_optional_sink_column_equals_null(
    rocketpoll_broker, rocketpoll_topic, column
):
    """Rows without a sharding key are sent round-robin; queueId selects the queue."""
    stored = []
    for nothing in (None, ""):
        topic = f"{rocketpoll_topic}-{len(stored)}"
        rocketpoll_broker.create_topic(topic, queues=4)
        rows = {"body": ["a", "b"], column: pa.array([nothing] * 2, pa.string())}
        if column == "brokerName":
            rows["queueId"] = [1, 2]
        for _ in range(4):
            write(options_of(rocketpoll_broker.address, topic, rowIds="false"), rows)
        messages = rocketpoll_broker.messages(topic)
        stored.append(
            sorted((each.queue.queue_id, each.body, each.tags, each.keys) for each in messages)
        )
    assert stored[0] == stored[1]
    assert len({queue_id for queue_id, *_ in stored[1]}) > 1


BODY_BYTES_MAX = 65_536
"""The maxMessageSize of the broker in the tests below."""


@pytest.fixture(scope="module")
def strict_broker():
    with EmbeddedBroker(maxMessageSize=BODY_BYTES_MAX) as broker:
        yield broker


@pytest.fixture(params=["batch", "chunk", "staged"])
def write_bodies(request, monkeypatch, strict_broker):
    """Return a function that writes bodies to a new topic and returns the stored messages, for each
    protocol of a sink. Brokers without chunks get batches."""
    way, topic = request.param, f"sizes-{request.node.name.translate(NO_BRACKETS)}"
    strict_broker.create_topic(topic, queues=1)
    agreement = BrokerApi.agreement

    def without_chunks(self, address):
        return agreement(self, address)._replace(extensions=frozenset())

    def write_all(*bodies, **options):
        if way == "staged":
            sink = CommittingSink(monkeypatch, strict_broker, topic, visibleTo="all", **options)
            sink.write(0, [list(bodies)])
        else:
            if way == "batch":
                monkeypatch.setattr(BrokerApi, "agreement", without_chunks)
            options = options_of(strict_broker.address, topic, **options)
            write(options, {"body": list(bodies), "keys": ["k"] * len(bodies)})
        return [message.body for message in strict_broker.messages(topic)]

    return write_all


NO_BRACKETS = str.maketrans("[]", "--")


@pytest.mark.parametrize("more", [-1, 0])
def test_body_of_the_producers_maximum_size_is_written_by_the_sink(
    strict_broker, write_bodies, more
):
    body = os.urandom(BODY_BYTES_MAX + more).hex()[: BODY_BYTES_MAX + more]
    with Producer("sizes", strict_broker.address) as producer:
        strict_broker.create_topic("sent", queues=1)
        producer.send(Message("sent", body.encode()))
    option = {"maxMessageBytes": str(BODY_BYTES_MAX)}
    assert body.encode() in write_bodies("short", body, "short", **option)


def test_body_refused_by_the_broker_is_named_by_its_row(write_bodies):
    long = os.urandom(BODY_BYTES_MAX + 1).hex()[: BODY_BYTES_MAX + 1]
    with pytest.raises(WriteError) as raised:
        write_bodies(*["short"] * 77, long, *["short"] * 22)
    error = str(raised.value)
    assert f"the longest body is that of row 77, with {BODY_BYTES_MAX + 1} bytes" in error
    assert "shorten larger bodies or raise both" in error


def test_body_over_max_message_bytes_is_named_by_its_row_before_sending(write_bodies):
    with pytest.raises(RowError, match=r"row 1 "):
        write_bodies("short", "x" * 1_001, maxMessageBytes="1000")
