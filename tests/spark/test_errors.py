import pickle

import pytest

from rmq_spark.errors import RocketPollError
from rmq_spark.spark.errors import (
    CheckpointError,
    DataLoss,
    OptionError,
    RowError,
    SchemaError,
    WriteError,
    describe_queue,
)
from rmq_spark.wire.message_queue import MessageQueue


@pytest.mark.parametrize(
    "error",
    [
        OptionError("topic", "is needed"),
        DataLoss(["a", "b"]),
        CheckpointError("c"),
        SchemaError("d"),
        RowError(1, 2, "body", "it is null"),
        WriteError("e"),
    ],
)
def test_errors_travel_from_workers_to_the_driver(error):
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # what Spark does
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert isinstance(error, RocketPollError)


def test_spark_error_texts_name_option_row_and_queue():
    assert str(OptionError("topic", "it is needed")) == "option topic: it is needed"
    assert str(DataLoss(["a is gone", "b is gone"])).startswith(
        "a is gone; b is gone. Set option failOnDataLoss"
    )
    assert (
        str(RowError(1, 2, "body", "it is null")) == "row 2 of partition 1, column body: it is null"
    )
    assert describe_queue(MessageQueue("T", "b", 3)) == "queue 3 of T on b"
