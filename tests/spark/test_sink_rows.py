"""Rows of a sink become messages, or are refused with row and column."""

import pyarrow as pa
import pytest

from rmq_spark.spark.errors import RowError
from rmq_spark.spark.options.sink_columns import SINK_COLUMNS, SinkColumn
from rmq_spark.spark.options.values import RowIds
from rmq_spark.spark.write.reports import ROW_ID, WriteTask
from rmq_spark.spark.write.rows import RowPreparer
from rmq_spark.wire.chunk.encode import ENCODED_PROPERTIES
from rmq_spark.wire.message.properties import decode_properties

TASK = WriteTask("q", 7, 3)
MAPS = pa.map_(pa.string(), pa.string())
LISTS = pa.list_(pa.string())


def checked(first_row=0, *, ids=RowIds.NONE, task=TASK, **given):
    """Return the prepared rows of these columns, by default with a body for each."""
    count = len(next(iter(given.values())))
    arrays = {"body": pa.array(["x"] * count), **given}
    arrays = {
        name: values if isinstance(values, pa.Array) else pa.array(values)
        for name, values in arrays.items()
    }
    sent = [SinkColumn(name, at, "?") for at, name in enumerate(arrays)]
    batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
    return RowPreparer(sent, task, body_bytes_max=10, row_ids=ids).prepare(batch, first_row)


def column(name, values, **more):
    return checked(**{name: values}, **more).column(name).to_pylist()


def encoded(rows):
    """Return the encoded properties of each row, by name."""
    texts = rows.column(ENCODED_PROPERTIES).to_pylist()
    return [decode_properties(text.decode()) for text in texts]


def refused(first_row=0, **given):
    with pytest.raises(RowError) as raised:
        checked(first_row, **given)
    return str(raised.value)


def test_sink_bodies_are_text_or_bytes_of_any_arrow_type():
    for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        rows = checked(body=pa.array(["ä", "b"], pa.string()).cast(kind))
        assert rows.column("body").to_pylist() == ["ä".encode(), b"b"]
        assert rows.column("body").type == pa.binary()


@pytest.mark.parametrize(
    ("bodies", "problem"),
    [
        (
            ["a", None],
            "row 41 of partition 3, column body: it is null: remove such rows with .where",
        ),
        (["", "b"], "row 40 of partition 3, column body: it is empty"),
        (
            ["a", "b" * 11],
            "row 41 of partition 3, column body: it has over 10 bytes: shorten or split it",
        ),
        (["a" * 10, "ä" * 6], "row 41 of partition 3, column body: it has over 10 bytes"),
    ],
)
def test_unsendable_body_is_named_by_its_row(bodies, problem):
    assert problem in refused(40, body=bodies)


def test_sink_keys_are_a_text_or_an_array_and_empty_ones_are_null():
    assert column("keys", ["a b", "", None]) == ["a b", None, None]
    assert column("tags", ["a", "", None]) == ["a", None, None]
    lists = pa.array([["a", "b"], [], None, ["", None, "c"]], LISTS)
    assert column("keys", lists) == ["a b", None, None, "c"]
    assert column("keys", lists.slice(1)) == [None, None, "c"]
    assert column("keys", lists.slice(0, 2)) == ["a b", None]


def test_sink_texts_that_would_be_parsed_differently_are_refused():
    assert "row 1 of partition 3, column tags: it has the character" in refused(
        tags=["a", "b\x02c"]
    )
    assert "row 2 of partition 3, column keys: it has the character" in refused(
        keys=pa.array([["a"], None, ["b", "\x02"]], LISTS)
    )
    assert "row 42 of partition 3, column keys: a key in the array has a space" in refused(
        40, keys=pa.array([["a"], [], ["b", "c d"]], LISTS)
    )


def test_sink_numbers_of_all_widths_are_converted_to_32_bits():
    rows = checked(flag=pa.array([-1, None], pa.int64()), delayLevel=pa.array([3, None], pa.int8()))
    assert rows.column("flag").to_pylist() == [-1, 0]
    assert rows.column("delayLevel").to_pylist() == [3, 0]
    assert column("queueId", pa.array([1, None], pa.int16())) == [1, None]
    assert "row 1 of partition 3, column flag: needed a number from" in refused(flag=[0, 1 << 31])
    assert "row 0 of partition 3, column queueId: needed a number from 0" in refused(queueId=[-1])
    assert "row 0 of partition 3, column delayLevel: needed a number from 0" in refused(
        delayLevel=[-2]
    )


def test_sink_timer_times_become_milliseconds_and_are_never_early():
    micros = pa.array(
        [None, 1_700_000_000_000_000, 1_700_000_000_000_001], pa.timestamp("us", "UTC")
    )
    assert column("deliverAt", micros) == [None, 1_700_000_000_000, 1_700_000_000_001]
    assert "row 0 of partition 3, column deliverAt: it is before 1970" in refused(
        deliverAt=pa.array([-1], pa.timestamp("us", "UTC"))
    )
    assert "row 1 of partition 3, column deliverAt: the row has a delayLevel" in refused(
        deliverAt=micros, delayLevel=[1, 1, 0]
    )


def test_sink_omits_properties_without_a_value():
    maps = pa.array([[("a", "1"), ("b", None), ("c", "")], None, [], [("d", "2")]], MAPS)
    assert column("properties", maps) == [[("a", "1")], [], [], [("d", "2")]]
    assert column("properties", maps.slice(3)) == [[("d", "2")]]


def test_system_properties_of_read_messages_are_dropped():
    read = [("UNIQ_KEY", "F0"), ("CLUSTER", "c"), ("mine", "1"), (ROW_ID, "old"), ("TAGS", "t")]
    rows = checked(properties=pa.array([read], MAPS), tags=["t"], ids=RowIds.POSITIONS)
    assert rows.column("properties").to_pylist() == [[("mine", "1")]]
    assert encoded(rows) == [{ROW_ID: "q:7:3:0"}]


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("KEYS", "keys"),
        ("TAGS", "tags"),
        ("DELAY", "delayLevel"),
        ("TIMER_DELIVER_MS", "deliverAt"),
        ("__SHARDINGKEY", "shardingKey"),
    ],
)
def test_reserved_property_in_sink_rows_is_refused_with_the_column_to_use(name, instead):
    maps = pa.array([[("a", "1")], [], [("b", "2"), (name, "3")]], MAPS)
    problem = refused(properties=maps)
    assert problem.startswith("row 2 of partition 3, column properties: ")
    assert f"use column {instead}" in problem
    assert instead in SINK_COLUMNS


@pytest.mark.parametrize("bad", [("a\x01", "1"), ("a\x02", "1"), ("a", "\x02")])
def test_properties_that_would_be_read_as_something_else_are_refused(bad):
    maps = pa.array([[("ok", "1")], [bad]], MAPS)
    assert "row 1 of partition 3, column properties: a name or a value has a character" in refused(
        properties=maps
    )


def test_property_with_an_empty_name_and_a_value_is_refused():
    maps = pa.array([[("ok", "1")], [("a", "1"), ("", "2")]], MAPS)
    assert "row 1 of partition 3, column properties: a value has an empty name" in refused(
        properties=maps
    )
    neither = pa.array([[("", ""), ("a", "1"), ("", None)]], MAPS)
    assert column("properties", neither) == [[("a", "1")]]


def test_sink_row_properties_must_fit_into_16_bits():
    fits = [("a", "x" * 20_000)]
    assert checked(properties=pa.array([fits], MAPS), keys=["k" * 12_000]).num_rows == 1
    problem = refused(properties=pa.array([[], fits], MAPS), keys=["k", "k" * 13_000])
    assert (
        "row 1 of partition 3, column properties: with keys and tags they take 33003 bytes"
        in problem
    )


def test_row_ids_count_among_the_bytes_of_properties():
    fits = [("a", "x" * 32_240)]
    assert checked(properties=pa.array([fits], MAPS)).num_rows == 1
    assert "over the" in refused(properties=pa.array([fits], MAPS), ids=RowIds.POSITIONS)


def test_sink_row_id_is_the_same_when_its_task_is_retried():
    maps = pa.array([[("a", "1")], None, [("b", "2"), ("c", "3")]], MAPS)
    for _ in range(2):
        rows = checked(10, properties=maps, ids=RowIds.POSITIONS)
        assert rows.column("properties").to_pylist() == [[("a", "1")], [], [("b", "2"), ("c", "3")]]
        assert encoded(rows) == [{ROW_ID: f"q:7:3:{row}"} for row in (10, 11, 12)]
    rows = checked(5, body=["x", "y"], ids=RowIds.POSITIONS)
    assert encoded(rows) == [{ROW_ID: TASK.row_id(5)}, {ROW_ID: TASK.row_id(6)}]
    assert rows.column("row").to_pylist() == [5, 6]


def test_row_ids_by_keys_do_not_depend_on_the_position():
    """After a shuffle, a row may be in another partition and at another position."""
    expected = {"k1": "q:7:keys:k1", "k2 k3": "q:7:keys:k2 k3"}
    for keys, task in ((["k1", "k2 k3"], TASK), (["k2 k3", "k1"], TASK._replace(partition=9))):
        for given in (pa.array(keys), pa.array([each.split() for each in keys], LISTS)):
            rows = checked(9, keys=given, ids=RowIds.KEYS, task=task)
            ids = [each[ROW_ID] for each in encoded(rows)]
            assert dict(zip(keys, ids, strict=True)) == expected


def test_row_ids_by_keys_refuse_rows_with_empty_or_repeated_keys():
    said = "row 41 of partition 3, column keys: "
    for none in (None, ""):
        assert f"{said}it is empty, but" in refused(40, keys=["a", none], ids=RowIds.KEYS)
    said += "an earlier row of the batch has the same"
    assert said in refused(40, keys=["a", "a", "b", "b"], ids=RowIds.KEYS)


def test_checked_rows_of_an_empty_batch_are_empty():
    assert checked(body=pa.array([], pa.string()), ids=RowIds.POSITIONS).num_rows == 0
