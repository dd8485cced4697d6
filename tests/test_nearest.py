"""The name that was meant."""

import pytest

from rmq_spark.errors import nearest_name


@pytest.mark.parametrize(
    ("name", "meant"),
    [("ordres", "orders"), ("ORDERS", "orders"), ("queueid", "queueId"), ("zebra", None)],
)
def test_the_nearest_is_told_whatever_its_case_and_none_that_is_far_away(name, meant):
    assert nearest_name(name, ["payments", "orders", "queueId"]) == meant
    assert nearest_name(name, []) is None
