"""Suggestions of the nearest name for a misspelled one."""

import pytest

from rmq_spark.errors import nearest_name


@pytest.mark.parametrize(
    ("name", "meant"),
    [("ordres", "orders"), ("ORDERS", "orders"), ("queueid", "queueId"), ("zebra", None)],
)
def test_nearest_name_ignores_case_and_far_names(name, meant):
    assert nearest_name(name, ["payments", "orders", "queueId"]) == meant
    assert nearest_name(name, []) is None
