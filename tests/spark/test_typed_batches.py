"""Record batches with columns of decoded bodies, and the handling of bad bodies."""

import logging

import pytest
from support.spark.body_rows import batches, rows

from rmq_spark.spark.errors import RecordFault

BODIES = [b'{"id": 1}', b"bad", b'{"id": 3}']


def test_bad_typed_body_fails_or_is_null_or_skipped(caplog):
    with pytest.raises(RecordFault, match="offset 1 of queue 3 of orders on broker-a"):
        rows(BODIES, "id INT")
    with caplog.at_level(logging.WARNING):
        found = rows(BODIES, "id INT", columns="queueOffset,id", onBadRecord="null")
    assert [tuple(row.values()) for row in found] == [(0, 1), (1, None), (2, 3)]
    assert (
        "offset 1 of queue 3 of orders on broker-a cannot be read, and its body is null"
        in caplog.text
    )
    assert rows(BODIES, "id INT", columns="id", onBadRecord="skip") == [{"id": 1}, {"id": 3}]


@pytest.mark.parametrize("bad", [0, 300, 777, 999])
def test_bad_body_among_many_is_named_by_its_offset(bad):
    bodies = [b'{"id": 1}'] * 1_000
    bodies[bad] = b"bad"
    with pytest.raises(RecordFault, match=f"offset {bad} of queue 3"):
        rows(bodies, "id INT")
    found = rows(bodies, "id INT", columns="queueOffset,id", onBadRecord="null")
    assert [row["queueOffset"] for row in found if row["id"] is None] == [bad]


def test_bad_body_in_a_struct_column_makes_the_whole_column_null():
    found = rows(BODIES, "id INT", columns="v", bodyColumn="v", onBadRecord="null")
    assert found == [{"v": {"id": 1}}, {"v": None}, {"v": {"id": 3}}]


def test_body_column_may_be_selected_beside_decoded_columns():
    assert rows(BODIES[:1], "id INT", columns="body,id") == [{"body": b'{"id": 1}', "id": 1}]


def test_bodies_of_which_no_column_is_wanted_are_not_decoded():
    assert len(rows(BODIES, "id INT", columns="queueOffset")) == 3
    assert rows(BODIES, "id INT", columns="body") == [{"body": body} for body in BODIES]


def test_unselected_body_fields_are_not_decoded():
    body = b'{"id": 1, "name": 7}'
    assert rows([body], "id INT, name STRING", columns="id") == [{"id": 1}]
    with pytest.raises(RecordFault, match="its name: needed a string, found 7"):
        rows([body], "id INT, name STRING")


def test_text_body_must_be_utf_8():
    assert rows(["ü".encode(), b""], None, "text", columns="body") == [{"body": "ü"}, {"body": ""}]
    with pytest.raises(RecordFault, match=r"its body: needed UTF-8, found byte b'.xff' at 1"):
        rows([b"a", b"a\xff"], None, "text")
    found = rows([b"a", b"\xff"], None, "text", columns="v", bodyColumn="v", onBadRecord="null")
    assert found == [{"v": "a"}, {"v": None}]


def test_batch_without_messages_is_empty():
    assert batches([b"bad"], "id INT", onBadRecord="skip") == []


# ---- a schema that matches no body field, so that all columns would be null, is reported


SAID = [
    "bodySchema has 'orderId', but 2 bodies of orders have none of these: their columns are null",
    "the bodies of orders have the fields 'id', 'order_id'",
]


def warnings(caplog, bodies, schema, **more):
    with caplog.at_level(logging.WARNING):
        found = rows(bodies, schema, **more)
    return found, caplog.messages


@pytest.mark.parametrize("column", [{}, {"bodyColumn": "v", "columns": "v"}])
def test_schema_without_matching_fields_is_warned_of_once(caplog, column):
    bodies = [b'{"order_id": 1}', b'{"order_id": 2, "id": 3}']
    found, said = warnings(caplog, bodies, "orderId INT", **column)
    assert len(found) == 2
    assert said == SAID


@pytest.mark.parametrize(
    ("bodies", "schema", "more"),
    [
        ([b'{"id": 1}', b'{"other": 1}'], "id INT", {}),
        ([b'{"id": null, "other": 1}'], "id INT", {}),
        ([b"{}", b"{}"], "id INT", {}),
        ([b'{"id": 1, "other": 2}'], "id INT, discount INT", {"columns": "discount"}),
        ([], "id INT", {}),
    ],
    ids=["a-value", "a-null", "empty-objects", "a-field-that-is-not-chosen", "no-messages"],
)
def test_matching_schema_gives_no_warning(caplog, bodies, schema, more):
    assert warnings(caplog, bodies, schema, **more)[1] == []


def test_bad_bodies_are_not_counted_in_the_missing_fields_warning(caplog):
    _, said = warnings(caplog, [b"bad", b'{"a": 1}', b"[" * 9_999], "id INT", onBadRecord="null")
    assert ["cannot be read" in each for each in said] == [True, True, False, False]
    assert said[3].endswith("have the fields 'a'")


def test_missing_fields_warning_abridges_many_names(caplog):
    body = b"{%s}" % b", ".join(b'"f%02d": 1' % number for number in range(50))
    _, [_, said] = warnings(caplog, [body], "id INT")
    assert said.endswith("'f08', 'f09', ...")
