"""Errors reach Spark as one line, without frames of ours."""

import io
import pickle
import traceback

import pytest
from pyspark.util import handle_worker_exception

from rmq_spark.errors import RocketPollError
from rmq_spark.spark.data_source import RocketPollDataSource
from rmq_spark.spark.errors import (
    CheckpointError,
    DataLoss,
    OptionError,
    RowError,
    SchemaError,
    WriteError,
)
from rmq_spark.spark.tracebacks import without_frames
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
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # as Spark does
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert isinstance(error, RocketPollError)


def test_spark_error_texts_name_option_row_and_queue():
    assert str(OptionError("topic", "it is required")) == "option topic: it is required"
    assert str(DataLoss(["a is gone", "b is gone"])).startswith(
        "a is gone; b is gone. Set option failOnDataLoss"
    )
    assert (
        str(RowError(1, 2, "body", "it is null")) == "row 2 of partition 1, column body: it is null"
    )
    assert str(MessageQueue("T", "b", 3)) == "queue 3 of T on b"


def _frames(error):
    return [each.name for each in traceback.extract_tb(error.__traceback__)][1:]


@without_frames
class _Reader:
    def read(self):
        yield 1
        raise DataLoss(["a is gone"]) from KeyError("a")

    def stop(self):
        raise ZeroDivisionError


def test_errors_reach_spark_without_our_frames_and_causes():
    with pytest.raises(OptionError) as raised:
        RocketPollDataSource({"tpic": "orders"})
    assert _frames(raised.value) == ["call"]
    with pytest.raises(DataLoss) as raised:
        list(_Reader().read())
    assert _frames(raised.value) == ["generate"]
    assert (raised.value.__cause__, raised.value.__suppress_context__) == (None, True)


def test_bugs_reach_spark_with_their_frames():
    with pytest.raises(ZeroDivisionError) as raised:
        _Reader().stop()
    assert _frames(raised.value) == ["call", "stop"]


def _shown_by_worker(failing):
    """Return the text of an error in a worker as Spark shows it."""
    out = io.BytesIO()
    try:
        failing()
    except Exception as error:  # as Spark does
        handle_worker_exception(error, out)
    return out.getvalue()[8:].decode()  # after two integers


def test_spark_workers_show_our_errors_alone_and_bugs_with_a_traceback(monkeypatch):
    monkeypatch.setenv("SPARK_SIMPLIFIED_TRACEBACK", "1")
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    assert _shown_by_worker(lambda: RocketPollDataSource({"tpic": "orders"})).startswith(
        "rocketpoll.spark.OptionError: option tpic: "
    )
    assert _shown_by_worker(lambda: list(_Reader().read())).startswith(
        "rocketpoll.spark.DataLoss: a is gone"
    )
    assert "in stop\n" in _shown_by_worker(_Reader().stop)


def test_users_who_ask_spark_for_whole_tracebacks_get_those_of_our_errors(monkeypatch):
    monkeypatch.delenv("SPARK_SIMPLIFIED_TRACEBACK", raising=False)
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    shown = _shown_by_worker(lambda: RocketPollDataSource({"tpic": "orders"}))
    assert shown.startswith("Traceback (most recent call last):\n")
