"""Arrow rows are split into requests by size and topic."""

import pyarrow as pa
import pytest

from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.producer.arrow_rows import message_columns, record_columns, split_rows
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.message_queue import MessageQueue

MEBIBYTE = 1 << 20


def batch(**columns):
    return pa.record_batch(columns)


def bodies(piece):
    return piece.rows.column("body").to_pylist()


def cut(rows, topic="T", bytes_max=MEBIBYTE, rows_max=1_000):
    return list(split_rows(rows, topic, bytes_max, lambda _: rows_max))


def test_arrow_rows_are_split_when_a_request_is_full():
    rows = batch(body=[b"%d" % n * 1_000 for n in range(5)])
    assert [each.rows.num_rows for each in cut(rows, rows_max=2)] == [2, 2, 1]
    assert [each.rows.num_rows for each in cut(rows, bytes_max=2_500)] == [2, 2, 1]
    assert [body[:1] for each in cut(rows, bytes_max=2_500) for body in bodies(each)] == [
        b"0",
        b"1",
        b"2",
        b"3",
        b"4",
    ]


def test_arrow_rows_count_properties_only_where_they_are():
    """Large properties in some rows must not make the requests of other rows too large."""
    maps = [[("p", "v" * 1_000)]] * 20 + [[], None] * 490
    rows = batch(body=[b"b"] * 1_000, properties=pa.array(maps, pa.map_(pa.string(), pa.string())))
    for given in (rows, rows.slice(10)):
        sizes = [each.rows.num_rows for each in cut(given, bytes_max=6_000)]
        assert sizes[0] == 5
        assert max(sizes) > 15


def test_arrow_rows_are_split_by_their_topic_column():
    rows = batch(body=[b"1", b"2", b"3"], topic=["A", "B", "A"])
    assert [(each.topic, bodies(each)) for each in cut(rows, None)] == [
        ("A", [b"1", b"3"]),
        ("B", [b"2"]),
    ]
    with pytest.raises(MessageRejected, match="one in each row"):
        cut(batch(body=[b"1"], topic=pa.array([None], pa.string())), None)


def test_rows_become_columns_of_records_for_a_queue():
    rows = batch(body=[b"1"], topic=["other"], tags=["red"])
    columns = record_columns(rows, MessageQueue("T", "b", 3), "[::1]:5", "127.0.0.1:9")
    assert (columns["topic"], columns["queueId"], columns["tags"].to_pylist()) == ("T", 3, ["red"])
    assert columns["sysFlag"] == MessageSysFlag.BORN_HOST_V6.value
    assert columns["bornTimestamp"].as_py() is not None


def test_rows_become_columns_of_a_batch_which_has_one_topic_and_one_time():
    rows = batch(body=["text"], keys=["k"], topic=["T"], bornTimestamp=[1])
    assert {name: column.to_pylist() for name, column in message_columns(rows).items()} == {
        "body": ["text"],
        "keys": ["k"],
    }
