"""stream_test: runs a Spark stream step by step in a test, like Scala's `StreamTest`.

    with stream_test(spark, broker, "orders", totals) as stream:
        stream.add_data('{"id": 1, "total": 9.5}')
        stream.process_all()
        stream.check_answer((1, 9.5))

The query applies the user's function to a source that reads the topic. Its sink keeps the rows of
each batch by the batch's number: a batch that runs again replaces its earlier rows, as in an
idempotent sink.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rmq_spark.errors import RocketPollError, excerpt

from .common.threads import DaemonThreadPool
from .embedded.embedded_broker import EmbeddedBroker
from .embedded.helpers import STREAM_SECONDS, NotInTime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_SUSPEND_MS: Final = 50
"""The time that brokers hold the stream's pulls; `processAllAvailable` waits that long."""

_NOT_STARTED_HINT: Final = ("Initializing", "Getting offsets")
_POLL_SECONDS: Final = 0.02
_OUTPUT_MODES: Final = ("append", "update", "complete")
_ROWS_SHOWN: Final = 20
_ROW_EXAMPLE: Final = 'check_answer((1, "ada"), (2, "bob"))'


class StreamTestError(RocketPollError, page="troubleshooting.md#brokers-in-tests"):
    """The stream test cannot do this step now, or cannot run the pipeline."""

    __module__ = "rocketpoll"  # from which programs import it


def stream_test(
    spark: SparkSession,
    broker: EmbeddedBroker,
    topic: str,
    pipeline: Callable[[DataFrame], DataFrame],
    *,
    output_mode: str = "append",
    options: Mapping[str, str | int | bool] | None = None,
    timeout: float = STREAM_SECONDS,
) -> StreamTest:
    """Return a stream over a topic; a with statement starts it, and its methods are the steps.

    Args:
        spark: The session that runs the stream.
        broker: The broker that has the topic; `StreamTest.advance` moves its clock.
        topic: The topic to read; it is created if it does not exist.
        pipeline: The function to be tested: from the source's rows to those of the sink.
        output_mode: Spark's output mode of the query: append, update or complete.
        options: Further options of the source.
        timeout: The maximum time in seconds that a step may take.

    Raises:
        TypeError: The pipeline is not callable, or the broker is not an `EmbeddedBroker`.
        ValueError: The output mode is unknown, or the timeout is not a number of seconds.
        StreamTestError: The session is a Spark Connect session.
    """
    if not callable(pipeline):
        raise TypeError(
            f"pipeline: needed a function that maps a DataFrame to another, found "
            f"{excerpt(pipeline)}; for example: "
            'lambda source: source.selectExpr("CAST(body AS STRING)")'
        )
    if not isinstance(broker, EmbeddedBroker):
        found = f"{type(broker).__name__} {excerpt(broker)}"
        raise TypeError(f"broker: needed an EmbeddedBroker, as rocketpoll_broker, found {found}")
    _check_seconds(timeout)
    if output_mode not in _OUTPUT_MODES:
        raise ValueError(
            f"output_mode: needed {', '.join(_OUTPUT_MODES)}, found {excerpt(output_mode)}"
        )
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise StreamTestError(
            "a session of Spark Connect gives no rows of a stream to this process: use one of "
            'SparkSession.builder.master("local[2]")'
        )
    return StreamTest(spark, broker, topic, pipeline, output_mode, dict(options or {}), timeout)


def _check_seconds(timeout: object) -> None:
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not (is_number and timeout > 0):  # type: ignore[operator]  # the line above has checked the type
        raise ValueError(f"timeout: needed seconds, more than 0, found {excerpt(timeout)}")


class StreamTest:
    """One stream under test, from `stream_test`: its steps, and the rows that it has produced."""

    def __init__(
        self,
        spark: SparkSession,
        broker: EmbeddedBroker,
        topic: str,
        pipeline: Callable[[DataFrame], DataFrame],
        output_mode: str,
        options: dict[str, str | int | bool],
        timeout: float,
    ) -> None:
        self._spark = spark
        self._broker = broker
        self._topic = topic
        self._pipeline = pipeline
        self._output_mode = output_mode
        self._options = options
        self._timeout = timeout
        self._checkpoint: Path | None = None
        self._query: StreamingQuery | None = None
        self._batches: dict[int, list[Row]] = {}
        self._last_batch_rows: list[Row] = []

    def __enter__(self) -> StreamTest:
        self._checkpoint = Path(tempfile.mkdtemp(prefix="rocketpoll-stream-"))
        self._batches, self._last_batch_rows = {}, []  # the directory may have been used before
        try:
            if not self._broker.has_topic(self._topic):
                self._broker.create_topic(self._topic)
            self.start()
            self._wait_until_started()
        except BaseException:
            self._stop_query()
            self._remove_checkpoint()
            raise
        return self

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        try:
            failure = self._stop_query()
            if failure is not None and error is None:
                raise failure
        finally:
            self._remove_checkpoint()

    def _stop_query(self) -> BaseException | None:
        query, self._query = self._query, None
        if query is None:
            return None
        failure = query.exception()
        query.stop()
        return failure

    def _wait_until_started(self) -> None:
        """Wait until the query has asked the broker where its topic begins, which it does once.

        So a test can make the broker unavailable in its first line, and the stream is running.
        """
        query, until = self._running(), time.monotonic() + self._timeout
        while query.isActive and time.monotonic() < until:
            if not query.status["message"].startswith(_NOT_STARTED_HINT):
                return
            time.sleep(_POLL_SECONDS)

    # ---- steps

    def add_data(
        self, *bodies: bytes | str, tags: str | None = None, keys: str | Sequence[str] | None = None
    ) -> None:
        """Send messages to the topic, one by one; `process_all` makes the stream read them.

        Args:
            *bodies: The body of each message, at least one; texts are encoded as UTF-8.
            tags: The tags of every message.
            keys: The keys of every message, a sequence of them or separated by spaces.
        """
        self._broker.send(self._topic, *bodies, tags=tags, keys=keys)

    def process_all(self) -> None:
        """Wait until the stream has processed all messages now in its topic.

        Raises:
            NotInTime: The timeout has passed; the stream was stopped.
            StreamTestError: The stream does not run.
            pyspark.errors.StreamingQueryException: The stream has failed.
        """
        __tracebackhide__ = True
        query = self._running()
        workers = DaemonThreadPool("process_all", waits_at_exit=False)
        processing = workers.submit(query.processAllAvailable)
        processing.add_done_callback(lambda _: workers.shutdown())
        if not wait([processing], self._timeout).done:
            status, progress = query.status, query.lastProgress
            self.stop()
            raise NotInTime(
                f"the stream did not process all of topic {self._topic} within "
                f"{self._timeout} s: {status}, its last progress was {progress}"
            )
        processing.result()

    def check_answer(self, *expected: object) -> None:
        """Check the rows that the stream has produced so far, in any order.

        In complete mode these are the rows of the last batch, otherwise the rows of all batches.

        Args:
            *expected: The rows, each as a tuple, a Row, or a dict by column.

        Raises:
            AssertionError: Rows are missing or unexpected; the message shows which.
            TypeError: An expected row has another type.
        """
        __tracebackhide__ = True
        _check_rows(self.rows, expected)

    def check_last_batch(self, *expected: object) -> None:
        """Check the rows of the last batch, in any order.

        Raises:
            AssertionError: Rows are missing or unexpected; the message shows which.
            TypeError: An expected row has another type.
        """
        __tracebackhide__ = True
        _check_rows(self._last_batch_rows, expected)

    def stop(self) -> None:
        """Stop the stream cleanly; `start` resumes from its checkpoint.

        Raises:
            StreamTestError: The stream does not run.
        """
        self._running().stop()
        self._query = None

    def crash(self) -> None:
        """Stop the stream as if its driver had died after the last batch, before it was committed.

        The sink has the rows, but the checkpoint does not record the batch: `start` runs it again
        with the same messages.

        Raises:
            StreamTestError: The stream does not run.
        """
        self.stop()
        planned, committed = (self._last_batch_in(name) for name in ("offsets", "commits"))
        if planned is not None and committed == planned:
            commits = self._checkpoint_path() / "commits"
            (commits / str(committed)).unlink()
            (commits / f".{committed}.crc").unlink(missing_ok=True)

    def start(self) -> None:
        """Start the stream, or resume it from its checkpoint.

        Raises:
            StreamTestError: The stream runs already, or the pipeline does not return a streaming
                DataFrame.
        """
        if self._query is not None and self._query.isActive:
            raise StreamTestError("the stream is already running: stop() or crash() it first")
        if self._last_batch_in("offsets") is None:
            # A query that ended while Spark wrote its first offset leaves half a file, with which
            # Spark 4.1 and later start no query.
            shutil.rmtree(self._checkpoint_path() / "offsets", ignore_errors=True)
        options: dict[str, Any] = {
            "startingOffsets": "earliest",
            "suspendTimeoutMs": _SUSPEND_MS,
            **self._options,
            **self._broker.spark_options,
            "topic": self._topic,
        }
        source = self._spark.readStream.format("rocketpoll").options(**options).load()
        result = self._pipeline(source)
        if not getattr(result, "isStreaming", False):
            raise StreamTestError(
                "the pipeline must return a streaming DataFrame derived from its "
                f"argument, and returned {excerpt(result)}"
            )
        writer = result.writeStream.foreachBatch(self._collect_batch).outputMode(self._output_mode)
        writer = writer.option("checkpointLocation", str(self._checkpoint_path()))
        self._query = writer.start()

    def advance(self, by: timedelta | float) -> None:
        """Move the broker's clock forward with `BrokerClock.advance`.

        Args:
            by: How far, as a timedelta or in seconds.
        """
        self._broker.clock.advance(by)

    @contextmanager
    def expect_failure(self, match: str = "") -> Iterator[None]:
        """Return a context in which the stream has to fail; start it there, or earlier.

        Args:
            match: A regular expression to search for in the text of the failure.

        Raises:
            AssertionError: The stream has not failed, or for another reason.
            ValueError: ``match`` is not a regular expression.
        """
        __tracebackhide__ = True
        pattern, before = _pattern_of(match), self._query
        try:
            yield
        except Exception:
            query = self._query or before
            if query is None or query.exception() is None:
                raise
        query = self._query or before
        failure = None if query is None else query.exception()
        if failure is None:
            how = "is there a process_all() in the block?"
            if query is None:
                how = "it does not run: start() it, and process_all() in the block"
            raise AssertionError(f"the stream did not fail as expected; {how}")
        self._query = None
        if not pattern.search(str(failure)):
            raise AssertionError(
                f"the stream failed, but not with {match!r}: {failure}"
            ) from failure

    # ---- results

    @property
    def rows(self) -> list[Row]:
        """The rows so far, batch by batch; in complete mode those of the last batch."""
        if self._output_mode == "complete":
            return list(self._last_batch_rows)
        return [row for _, rows in sorted(self._batches.items()) for row in rows]

    @property
    def query(self) -> StreamingQuery:
        """Spark's query, while it runs.

        Raises:
            StreamTestError: The stream does not run.
        """
        return self._running()

    # ---- internals

    def _collect_batch(self, frame: DataFrame, batch_id: int) -> None:
        self._last_batch_rows = self._batches[batch_id] = frame.collect()

    def _running(self) -> StreamingQuery:
        __tracebackhide__ = True
        if self._checkpoint is None:
            raise StreamTestError(
                "the stream does not run yet: use stream_test(...) in a with statement"
            )
        if self._query is None:
            raise StreamTestError("the stream does not run: start() it")
        return self._query

    def _checkpoint_path(self) -> Path:
        if self._checkpoint is None:
            raise StreamTestError(
                "the stream has no checkpoint: use stream_test(...) in a with statement"
            )
        return self._checkpoint

    def _last_batch_in(self, name: str) -> int | None:
        """Return the last batch number in one of the checkpoint's logs, or None."""
        numbers: list[int] = []
        with suppress(FileNotFoundError):
            names = [each.name for each in (self._checkpoint_path() / name).iterdir()]
            numbers = [int(each) for each in names if each.isdigit()]
        return max(numbers, default=None)

    def _remove_checkpoint(self) -> None:
        if self._checkpoint is not None:
            shutil.rmtree(self._checkpoint, ignore_errors=True)
            self._checkpoint = None


def _pattern_of(match: str) -> re.Pattern[str]:
    try:
        return re.compile(match)
    except re.error as error:
        why = f"{error}; re.escape() makes one of any text"
        raise ValueError(f"match: needed a regular expression, found {match!r}: {why}") from error


def _check_rows(found: Sequence[Row], expected: Sequence[object]) -> None:
    __tracebackhide__ = True
    for row in expected:
        if not isinstance(row, (tuple, dict)):
            raise TypeError(
                f"row: needed a tuple, a Row or a dict, found {type(row).__name__} "
                f"{excerpt(row)}; for example: {_ROW_EXAMPLE}"
            )
    missing, more = list(expected), []
    for row in found:
        same = next((each for each in missing if _is_same(row, each)), None)
        if same is None:
            more.append(row)
        else:
            missing.remove(same)
    if missing or more:
        raise AssertionError(
            f"needed {len(expected)} rows, found {len(found)}\n"
            f"missing: {_format_rows(missing)}\nnot expected: "
            f"{_format_rows(more)}{_format_table(missing, more)}"
        )


def _is_same(found: Any, expected: Any) -> bool:
    """Return whether a value equals the expected one, as Spark compares them.

    NaN equals NaN. Rows with names are compared by their names; a tuple has no names, and a dict
    has no order.
    """
    names, needed = (getattr(each, "__fields__", None) for each in (found, expected))
    if isinstance(expected, dict) and names is not None:
        found = found.asDict()
    elif needed is not None and names is not None and list(names) != list(needed):
        return False
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            _is_same(value, expected[name]) for name, value in found.items()
        )
    for kind in (tuple, list):
        if isinstance(found, kind) and isinstance(expected, kind):
            return len(found) == len(expected) and all(map(_is_same, found, expected))
    return bool(found == expected or (found != found and expected != expected))  # noqa: PLR0124  # NaN


def _format_rows(rows: Sequence[object]) -> str:
    dots = ", ..." if len(rows) > _ROWS_SHOWN else ""
    return ", ".join(map(repr, rows[:_ROWS_SHOWN])) + dots if rows else "none"


def _format_table(missing: Sequence[Any], more: Sequence[Row]) -> str:
    """Format both sides as a table, with differences highlighted if chispa is installed."""
    try:
        from chispa.rows_comparer import assert_basic_rows_equality  # noqa: PLC0415  # optional
    except ImportError:
        return ""
    if not (missing and more) or any(isinstance(row, dict) for row in missing):
        return ""
    make = type(more[0])
    names = more[0].__fields__
    if any(len(row) != len(names) for row in missing):  # some row has another number of columns
        return f"\nits columns are {', '.join(names)}"
    needed = [make(**dict(zip(names, row, strict=False))) for row in missing]
    try:
        assert_basic_rows_equality(sorted(more, key=repr), sorted(needed, key=repr))
    except Exception as error:  # noqa: BLE001  # the error is the result
        return f"\n{error}"
    return ""
