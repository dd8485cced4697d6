"""Helpers for tests: polling for a condition, and the rows that a Spark stream reads from a topic.

The fixtures are in the plugin, `rocketpoll.pytest_plugin`. This module never imports Spark; it only
calls methods of the objects passed in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Final, TypeVar

from .embedded.errors import type_error
from .embedded.helpers import (
    POLL_SECONDS,
    STREAM_SECONDS,
    WAIT_SECONDS,
    BrokerHelpers,
    NotInTime,
    checked_seconds,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_ROWS_SHOWN: Final = 5

_Found = TypeVar("_Found")
_numbers = count(1)


def wait_until(
    condition: Callable[[], _Found], timeout: float = WAIT_SECONDS, what: str = "the condition"
) -> _Found:
    """Call ``condition`` until it returns a true value, and return that value.

    For messages and groups, `EmbeddedBroker.wait_until_arrived` and `wait_until_consumed` are
    better.

    Args:
        condition: The function to call repeatedly, with short pauses.
        timeout: The maximum time to wait, in seconds.
        what: The name of the condition in the error message.

    Raises:
        NotInTime: The value is still false after ``timeout`` seconds.
        TypeError: ``condition`` is not callable, or ``timeout`` is not a number.
    """
    __tracebackhide__ = True
    if not callable(condition):
        raise type_error("condition", "a function", condition, "wait_until(lambda: done)")
    deadline = time.monotonic() + checked_seconds(timeout)
    while not (found := condition()):
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise NotInTime(
                f"timed out after {timeout} s waiting for {what}: the last value was {found!r}"
            )
        time.sleep(min(POLL_SECONDS, remaining))
    return found


def stream_rows(
    spark: SparkSession,
    broker: BrokerHelpers,
    topic: str,
    *bodies: bytes | str,
    expected: int | None = None,
    timeout: int = STREAM_SECONDS,
    options: Mapping[str, str | int | bool] | None = None,
) -> list[Row]:
    """Send messages to a topic, and return its rows as a ``rocketpoll`` stream reads them.

    Args:
        spark: The session that runs the stream.
        broker: The broker that has the topic.
        topic: The topic to read.
        *bodies: The bodies of messages to send before the stream is started.
        expected: If given, this many messages must have arrived before the stream is started, and
            the stream must return as many rows.
        timeout: The maximum time in seconds for each of the two waits.
        options: Further options of the stream.

    Raises:
        NotInTime: The messages have not arrived, or the stream has not ended, after ``timeout``
            seconds.
        AssertionError: There are more or fewer rows than expected.
    """
    if bodies:
        broker.send(topic, *bodies)
    if expected is not None:
        broker.wait_until_arrived(topic, expected, timeout)
    all_options = {
        **broker.spark_options,
        "topic": topic,
        "startingOffsets": "earliest",
        "availableNow": True,
        **(options or {}),
    }
    stream = spark.readStream.format("rocketpoll").options(**all_options).load()
    return collect_stream(stream, expected=expected, timeout=timeout)


def collect_stream(
    stream: DataFrame,
    *,
    expected: int | None = None,
    output_mode: str = "append",
    timeout: int = STREAM_SECONDS,
) -> list[Row]:
    """Run a stream over all available data, and return its rows.

    Args:
        stream: The stream to run.
        expected: If given, the number of rows that the stream must return.
        output_mode: Spark's output mode of the query.
        timeout: The maximum time to wait for the end of the query, in seconds.

    Raises:
        NotInTime: The query has not ended after ``timeout`` seconds, and was stopped.
        AssertionError: There are more or fewer rows than expected.
        TypeError: ``stream`` is not a streaming DataFrame, or ``timeout`` is not a number.
    """
    __tracebackhide__ = True
    if not getattr(stream, "isStreaming", False):
        example = 'spark.readStream.format("rocketpoll").options(...).load()'
        raise type_error("stream", "a streaming DataFrame", stream, example)
    checked_seconds(timeout)
    name = f"rocketpoll_rows_{next(_numbers)}"
    spark = stream.sparkSession
    writer = stream.writeStream.format("memory").queryName(name).outputMode(output_mode)
    query = writer.trigger(availableNow=True).start()
    try:
        if not query.awaitTermination(timeout):  # raises the error that has made the stream fail
            raise NotInTime(
                f"the stream did not process all available data within {timeout} s: "
                f"{query.status}, its last progress was {query.lastProgress}"
            )
        rows = spark.table(name).collect()
    finally:
        query.stop()
        spark.catalog.dropTempView(name)
    if expected is not None and len(rows) != expected:
        raise AssertionError(f"needed {expected} rows, found {len(rows)}: {rows[:_ROWS_SHOWN]} ...")
    return rows
