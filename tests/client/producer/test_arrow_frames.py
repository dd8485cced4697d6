"""Rows from Arrow, pandas, polars and Arrow's C stream as producer input, and users' mistakes."""

import re
import time
from datetime import datetime, timezone

import pyarrow as pa
import pytest

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.producer.arrow_rows import message_columns, normalize_tables
from rmq_spark.client.producer.producer import Producer

SAYS = re.compile(r".+: needed .+, found .+; for example: .+")
MAPS = pa.map_(pa.string(), pa.string())
VIEWS = [pa.string_view()] if hasattr(pa, "string_view") else []  # new in pyarrow 16
TEXTS = [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), *VIEWS]
NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


class Stream:
    """An object with Arrow's C stream interface, like those of polars and DuckDB."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def rows_of(*given):
    return [row for batch in normalize_tables(given) for row in batch.to_pylist()]


def types_of(given):
    [batch] = normalize_tables([given])
    return {field.name: field.type for field in batch.schema}


def test_arrow_tables_batches_readers_and_streams_are_sent():
    rows = pa.record_batch({"body": [b"a", b"b"]})
    table = pa.Table.from_batches([rows, rows])
    assert [each.num_rows for each in normalize_tables([table, rows, table.to_reader()])] == [2] * 5
    assert rows_of(Stream(table)) == rows_of(table)


@pytest.mark.parametrize("kind", TEXTS, ids=str)
def test_arrow_rows_accept_text_in_any_arrow_type(kind):
    texts = pa.array(["a", "b"])
    texts = texts.dictionary_encode() if kind is TEXTS[-1] else texts.cast(kind)
    table = pa.table(dict.fromkeys(("body", "keys", "tags", "topic"), texts))
    assert types_of(Stream(table)) == {
        "body": pa.binary(),
        "keys": pa.string(),
        "tags": pa.string(),
        "topic": pa.string(),
    }
    assert rows_of(table)[1] == {"body": b"b", "keys": "b", "tags": "b", "topic": "b"}


def test_arrow_rows_accept_numbers_and_times_of_other_widths_and_units():
    table = pa.table(
        {
            "body": ["x"],
            "flag": pa.array([7.0]),
            "bornTimestamp": pa.array([NOON.replace(microsecond=1_999)], pa.timestamp("us", "UTC")),
        }
    )
    assert rows_of(table) == [
        {"body": b"x", "flag": 7, "bornTimestamp": NOON.replace(microsecond=1_000)}
    ]
    no_zone = pa.array([NOON.replace(tzinfo=None)], pa.timestamp("ns"))
    for times in (no_zone, [1_769_860_800_000], pa.array([1_769_860_800_000], pa.uint64())):
        assert rows_of(pa.table({"bornTimestamp": times})) == [{"bornTimestamp": NOON}]


def test_arrow_row_properties_are_maps_dicts_or_pairs():
    expected = [{"properties": [("a", "1")]}, {"properties": [("b", "2")]}, {"properties": None}]
    pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
    for column in (
        pa.array([{"a": "1"}, {"b": "2"}, None]),
        pa.array([[("a", "1")], [("b", "2")], None], MAPS),
        pa.array([[{"key": "a", "value": "1"}], [{"key": "b", "value": "2"}], None], pairs),
    ):
        assert rows_of(pa.table({"properties": column})) == expected
        assert types_of(pa.table({"properties": column})) == {"properties": MAPS}


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.large_list(pa.large_string())], ids=str)
def test_arrow_row_keys_are_texts_or_lists_of_texts(kind):
    keys = pa.array([["a"], ["order-42", "customer-7"], [], None], kind)
    rows = pa.record_batch({"body": pa.array([b"x"] * 3), "keys": keys.slice(1)})
    assert [row["keys"] for row in rows_of(rows)] == ["order-42 customer-7", None, None]


def test_all_null_arrow_column_is_sent_as_nulls():
    assert rows_of(pa.table({"body": ["x"], "tags": pa.nulls(1)})) == [{"body": b"x", "tags": None}]


FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The first and the last millisecond of the years 1 to 9999."""

WRONG = {
    "nothing": (None, "table: needed a pyarrow Table.* found NoneType None"),
    "a list": ([b"a"], "table: needed a pyarrow Table"),
    "a dict": ({"body": ["a"]}, r"found dict .*pa\.table"),
    "a stream of no table": (
        Stream(pa.chunked_array([[1, 2]])),
        "found Stream, which is not a table",
    ),
    "body: int": (
        pa.table({"body": [1, 2]}),
        r'column body: needed binary or text, found int64; .*\.cast\("string"\)',
    ),
    "body: double": (pa.table({"body": [1.5]}), "column body: .*found double"),
    "body: struct": (pa.table({"body": [{"id": 1}]}), "column body: .*found struct"),
    "tags: int": (pa.table({"tags": [1]}), r'column tags: .*frame\["tags"\]\.astype'),
    "tags: lists": (pa.table({"tags": [["a"]]}), "column tags: .*found list"),
    "tags: no UTF-8": (
        pa.table({"tags": [b"\xff"]}),
        "column tags: .*found binary, and Invalid UTF8",
    ),
    "tags: no text": (
        pa.table({"tags": pa.array([b"\xff"]).cast(pa.string(), safe=False)}),
        "column tags: .*found string, and Invalid UTF8",
    ),
    "times: seconds that are too late": (
        pa.table({"bornTimestamp": pa.array([1 << 62], pa.timestamp("s"))}),
        r"column bornTimestamp: .*found timestamp\[s\], and",
    ),
    **{
        f"times: {ms} ms": (
            pa.table({"bornTimestamp": pa.array([0, ms], kind)}),
            f"column bornTimestamp: needed times.*row 1 has {ms} ms, which is not between -6",
        )
        for ms, kind in (
            (1 << 62, pa.int64()),
            (LAST_MS + 1, pa.timestamp("ms", "UTC")),
            (FIRST_MS - 1, pa.int64()),
        )
    },
    "keys: lists of numbers": (pa.table({"keys": [[1, 2]]}), "column keys: needed text, or lists"),
    "keys: a list with a null": (
        pa.table({"keys": [["a", None]]}),
        "column keys: .*found list<.*>, and a key in a list is null",
    ),
    "topic: int": (pa.table({"topic": [1]}), "column topic: needed text"),
    "flag: text": (pa.table({"flag": ["1"]}), "column flag: needed 32-bit numbers, found string"),
    "flag: too large": (
        pa.table({"flag": [1 << 40]}),
        "column flag: .*found int64, and Integer value",
    ),
    "flag: a fraction": (pa.table({"flag": [1.5]}), "column flag: .*found double, and"),
    "times: text": (
        pa.table({"bornTimestamp": ["2026-01-31"]}),
        "column bornTimestamp: needed times",
    ),
    "properties: text": (pa.table({"properties": ["a=1"]}), "column properties: needed a map"),
    "properties: dicts of int": (
        pa.table({"properties": [{"n": 1}]}),
        "column properties: .*found struct<n: int64>",
    ),
}


@pytest.mark.parametrize(("rows", "why"), WRONG.values(), ids=WRONG)
def test_unsupported_rows_are_refused_with_advice(rows, why):
    with pytest.raises(TypeError, match=why) as raised:
        list(normalize_tables([rows]))
    assert SAYS.fullmatch(str(raised.value)), raised.value


# ---- sent rows


@pytest.fixture
def admin(running_broker):
    with Admin(running_broker.address) as made:
        made.create_topic("T", 1)
        yield made


@pytest.fixture
def sent(admin):
    """Return a function that sends rows and returns the topic's content."""
    with Producer("P", instance=admin.instance) as producer:

        def send(rows):
            result = producer.send_table(rows, "T")
            table = admin.read_table("T", columns=["body", "tags", "properties"])
            assert result.message_count == table.num_rows
            return [
                (row["body"], row["tags"], dict(row["properties"]).get("n"))
                for row in table.to_pylist()
            ]

        yield send


EXPECTED = [(b"one", "a", "1"), (b"two", None, None)]


def test_arrow_c_stream_is_sent(sent):
    maps = pa.array([[("n", "1")], []], MAPS)
    bodies = pa.array(["one", "two"], TEXTS[-1])
    table = pa.table({"body": bodies, "tags": ["a", None], "properties": maps})
    assert sent(Stream(table)) == EXPECTED


def test_pandas_frame_is_sent_without_its_index(sent):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(
        {
            "body": ["none", "one", "two"],
            "tags": ["x", "a", None],
            "properties": [{}, {"n": "1"}, None],
        },
        index=["x", "y", "z"],
    )
    assert sent(frame[frame["body"] != "none"]) == EXPECTED


OPTIONAL = {
    "tags": (["a", None], None),
    "keys": (["k", None], None),
    "properties": ([{"n": "1"}, None], "no property of its own"),
    "flag": ([7, None], 0),
    "bornTimestamp": ([1_767_268_800_000, None], "the time of the send"),
}
"""Columns with a null in the second row, and the default that the null means."""


@pytest.mark.parametrize("kind", ["arrow", "pandas"])
@pytest.mark.parametrize("name", OPTIONAL)
def test_null_in_an_optional_column_means_the_default(sent, admin, name, kind):
    values, default = OPTIONAL[name]
    columns = {"body": ["one", "two"], name: values}
    if kind == "arrow":
        rows = pa.table(columns)
    else:
        pandas = pytest.importorskip("pandas", reason="pandas is not installed")
        rows = pandas.DataFrame(columns)
        if name == "bornTimestamp":
            rows[name] = pandas.to_datetime(rows[name], unit="ms")
            assert rows[name].isna().any()
    began = time.time()
    sent(rows)
    _, found = admin.read_table("T", columns=[name]).column(name).to_pylist()
    if name == "bornTimestamp":
        assert began - 1 <= found.timestamp() <= time.time() + 1, default
    elif name == "properties":
        assert "n" not in dict(found), default
    else:
        assert found == default
    [batch] = normalize_tables([rows])
    assert not message_columns(batch).get("flag", pa.array([0])).null_count


@pytest.mark.parametrize("ms", [FIRST_MS, LAST_MS])
def test_extreme_displayable_timestamps_are_read_back(sent, admin, ms):
    sent(pa.table({"body": ["one"], "bornTimestamp": pa.array([ms], pa.int64())}))
    [found] = (
        admin.read_table("T", columns=["bornTimestamp"]).column(0).cast(pa.int64()).to_pylist()
    )
    assert found == ms * 1_000  # in microseconds


def test_pandas_column_of_mixed_types_is_refused():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    with pytest.raises(TypeError, match=r"columns of one type each.*body"):
        list(normalize_tables([pandas.DataFrame({"body": [1, "x", b"y"]})]))
    with pytest.raises(TypeError, match="column body: needed binary or text, found int64"):
        list(normalize_tables([pandas.DataFrame({"body": [1, 2]})]))


def test_polars_frame_is_sent(sent):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    properties = [[{"key": "n", "value": "1"}], []]
    columns = {"body": ["one", "two"], "tags": ["a", None], "properties": properties}
    assert sent(polars.DataFrame(columns)) == EXPECTED


def test_table_of_read_table_can_be_sent_again(sent, admin):
    names = ["body", "properties", "flag", "bornTimestamp"]
    maps = pa.array([[("n", "1")], []], MAPS)
    sent(pa.table({"body": ["one", "two"], "properties": maps, "flag": [1, 2]}))
    table = admin.read_table("T", columns=names)
    with Producer("Q", instance=admin.instance) as producer:
        producer.send_table(table, "T")
    assert admin.read_table("T", columns=names).to_pylist() == table.to_pylist() * 2


def test_unknown_arrow_column_is_refused_with_the_known_names(sent):
    with pytest.raises(MessageRejected, match="columns: needed body, and optionally topic"):
        sent(pa.table({"value": ["x"]}))
