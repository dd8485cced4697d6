"""What a query says that ends because messages are gone."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from rmq_spark.spark.errors import DataLoss


@contextmanager
def loss(*words):
    """The query ends, and says what is gone and what can be done."""
    with pytest.raises(DataLoss) as raised:
        yield
    for word in (*words, "failOnDataLoss"):
        assert word in str(raised.value)
