"""A schema that matches no body field, so that all columns would be null, is reported."""

import logging

import pytest
from support.spark.body_rows import rows

SAID = (
    "2 bodies of orders have no field of bodySchema, and their columns are null: the schema has "
    "'orderId', the bodies have 'id', 'order_id'"
)


def warnings(caplog, bodies, schema, **more):
    with caplog.at_level(logging.WARNING):
        found = rows(bodies, schema, **more)
    return found, caplog.messages


@pytest.mark.parametrize("column", [{}, {"bodyColumn": "v", "columns": "v"}])
def test_schema_without_matching_fields_is_warned_of_once(caplog, column):
    bodies = [b'{"order_id": 1}', b'{"order_id": 2, "id": 3}']
    found, said = warnings(caplog, bodies, "orderId INT", **column)
    assert len(found) == 2
    assert said == [SAID]


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
    assert ["cannot be read" in each for each in said] == [True, True, False]
    assert said[2].endswith("the schema has 'id', the bodies have 'a'")


def test_missing_fields_warning_abridges_many_names(caplog):
    body = b"{%s}" % b", ".join(b'"f%02d": 1' % number for number in range(50))
    _, [said] = warnings(caplog, [body], "id INT")
    assert said.endswith("'f08', 'f09', ...")
