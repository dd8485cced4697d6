"""Rows of a write are sorted by topic, queue and delay."""

import pyarrow as pa
import pytest

from rmq_spark.client.producer.topic_sender import queue_for_key
from rmq_spark.spark.errors import RowError
from rmq_spark.spark.write.rows import RowRouter
from rmq_spark.wire.message_queue import MessageQueue

QUEUES = [("a", 0), ("a", 1), ("b", 0)]


def queues_of(topic):
    return [MessageQueue(topic, *queue) for queue in QUEUES]


def routed(*, to="T", **given):
    """Route these columns; ``to`` is the option topic."""
    count = len(next(iter(given.values())))
    numbers = {"row": list(range(100, 100 + count)), "body": [b"%d" % n for n in range(count)]}
    rows = pa.record_batch({**numbers, **given})
    return list(RowRouter(rows.schema.names, 5, to, queues_of).route(rows))


def where(found):
    """Return the bodies of each topic and queue, in order."""
    bodies = {}
    for each in found:
        queue = each.queue and (each.queue.broker_name, each.queue.queue_id)
        bodies.setdefault((each.topic, queue), []).extend(each.rows.column("body").to_pylist())
    return {place: b" ".join(some) for place, some in bodies.items()}


def refused(**given):
    with pytest.raises(RowError) as raised:
        routed(**given)
    return str(raised.value)


def test_row_router_keeps_rows_of_one_topic_together():
    (only,) = routed(tags=["a", "b"])
    assert where([only]) == {("T", None): b"0 1"}
    assert only.first_row == 100
    assert only.rows.schema.names == ["body", "tags"]
    assert routed(tags=pa.array([], pa.string())) == []


def test_rows_go_to_the_topics_that_they_name_in_their_order():
    found = routed(to=None, topic=["U", "T", "U", "T"])
    assert where(found) == {("U", None): b"0 2", ("T", None): b"1 3"}
    assert [each.first_row for each in found] == [100, 101]
    assert routed(to=None, topic=pa.array([], pa.string())) == []


def test_sink_row_needs_a_valid_topic():
    assert "row 101 of partition 5, column topic: it is null" in refused(to=None, topic=["T", None])
    assert "row 102 of partition 5, column topic: topic: needed letters" in refused(
        to=None, topic=["T", "T", "a b"]
    )
    assert "row 100 of partition 5, column topic" in refused(to=None, topic=["SCHEDULE_TOPIC_XXXX"])


def test_rows_with_one_sharding_key_go_to_the_queue_that_java_would_choose():
    keys = ["x", None, "y", "x", "z", "Ä"]
    found = routed(shardingKey=keys)
    queue_of = {
        body: each.queue
        for each in found
        for body in each.rows.column("body").to_pylist()
        if each.queue
    }
    assert queue_of == {
        b"%d" % row: queue_for_key(queues_of("T"), key)
        for row, key in enumerate(keys)
        if key is not None
    }
    assert where(found)["T", None] == b"1"
    orders = [each.rows.column("body").to_pylist() for each in found]
    assert all(order == sorted(order) for order in orders)


def test_rows_go_to_the_queues_that_they_name():
    ids, names = [1, 0, None, 0, 1], ["a", "b", "a", "a", None]
    assert where(routed(queueId=ids, brokerName=names)) == {
        ("T", ("a", 1)): b"0 4",
        ("T", ("b", 0)): b"1",
        ("T", None): b"2",
        ("T", ("a", 0)): b"3",
    }


def test_sink_row_queue_must_exist_on_exactly_one_broker():
    problem = refused(queueId=[1, 7])
    assert (
        "row 101 of partition 5, column queueId: there is no queue 7, only 0 on a, 1 on a, 0 on b"
        in problem
    )
    assert "there is no queue 1 on b" in refused(queueId=[1], brokerName=["b"])
    assert "queue 0 is on several brokers: name one of them in column brokerName" in refused(
        queueId=[0]
    )


def test_row_router_separates_timer_rows_with_their_times():
    found = routed(deliverAt=[None, 5, None, 7], delayLevel=[0, 0, 2, 0], shardingKey=["x"] * 4)
    assert [(each.has_delays, each.delay_level, where_in(each)) for each in found] == [
        (True, 0, {"body": [b"1", b"3"], "deliverAt": [5, 7]}),
        (False, 0, {"body": [b"0"]}),
        (True, 2, {"body": [b"2"]}),
    ]
    assert len({each.queue for each in found}) == 1


def where_in(each):
    return {name: values for name, values in each.rows.to_pydict().items() if name != "row"}


def test_row_router_groups_delayed_rows_by_level():
    found = routed(delayLevel=[0, 3, 0, 5, 3], shardingKey=["x"] * 5)
    assert [(each.delay_level, each.rows.column("body").to_pylist()) for each in found] == [
        (0, [b"0", b"2"]),
        (3, [b"1", b"4"]),
        (5, [b"3"]),
    ]
    assert len({each.queue for each in found}) == 1
