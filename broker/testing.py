"""Helpers for tests: waiting for what nobody tells of, and the rows that a stream of Spark makes of a topic.

The fixtures are in the plugin, ``rocketpoll.pytest_plugin``. Of Spark this knows the methods that it calls on
what it is given; it never imports it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Final, TypeVar

from rocketpoll.broker.embedded.helpers import LOOK_AGAIN_SECONDS, WAIT_SECONDS, BrokerHelpers, NotInTime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

STREAM_SECONDS: Final = 60
_ROWS_SHOWN: Final = 5

_Found = TypeVar("_Found")
_numbers = count(1)


def wait_until(
    condition: Callable[[], _Found], timeout: float = WAIT_SECONDS, what: str = "the condition"
) -> _Found:
    """Ask until the answer counts as true, and give it.

    For messages and groups there is better: `EmbeddedBroker.wait_until_arrived`, `wait_until_consumed`.

    Raises:
        NotInTime: It does not after ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise NotInTime(f"{what} was waited for, for {timeout} s: the last answer was {found!r}")
        time.sleep(min(LOOK_AGAIN_SECONDS, remaining))
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
    """The rows of a topic, as a stream of format ``rocketpoll`` reads them; ``bodies`` are sent before.

    With ``expected``, so many messages are waited for before the stream is started, and so many rows
    must come out.

    Raises:
        NotInTime: The messages have not arrived, or the stream has not ended, after ``timeout`` seconds.
        AssertionError: There are more or fewer rows than expected.
    """
    broker.send(topic, *bodies)
    if expected is not None:
        broker.wait_until_arrived(topic, expected, timeout)
    all_options = {
        "namesrvAddr": broker.address,
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
    """Run a stream over all that is there now, and give its rows.

    Raises:
        NotInTime: It has not ended after ``timeout`` seconds; it is stopped.
        AssertionError: There are more or fewer rows than expected.
    """
    name = f"rocketpoll_rows_{next(_numbers)}"
    spark = stream.sparkSession
    writer = stream.writeStream.format("memory").queryName(name).outputMode(output_mode)
    query = writer.trigger(availableNow=True).start()
    try:
        if not query.awaitTermination(timeout):  # it raises what has made the stream fail
            raise NotInTime(
                f"a stream over what was there was waited for, for {timeout} s: {query.status}, its last "
                f"progress was {query.lastProgress}"
            )
        rows = spark.table(name).collect()
    finally:
        query.stop()
        spark.catalog.dropTempView(name)
    if expected is not None and len(rows) != expected:
        raise AssertionError(f"needed {expected} rows, found {len(rows)}: {rows[:_ROWS_SHOWN]} ...")
    return rows
