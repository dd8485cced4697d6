"""Test helpers: waiting for conditions, and reading the rows of a topic's stream."""

import shutil
import sys

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import count, lit

from rocketpoll.broker.embedded import NotInTime
from rocketpoll.broker.testing import collect_stream, stream_rows, wait_until

pytestmark = pytest.mark.deep

PATIENCE_SECONDS = 240
needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java 17")


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYSPARK_PYTHON", sys.executable)
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .getOrCreate()
        )
        yield session
        session.stop()


def test_wait_until_returns_the_first_true_result():
    answers = iter([0, None, "", "yes", "no"])
    assert wait_until(lambda: next(answers)) == "yes"


def test_wait_until_timeout_shows_the_last_result():
    with pytest.raises(
        NotInTime, match=r"timed out after 0.02 s waiting for a reply: the last value was \[\]"
    ):
        wait_until(list, 0.02, "a reply")


class _Batch:
    isStreaming = False  # noqa: N815  # name in Spark's interface


WRONG = {
    "condition": (lambda: wait_until(5), "condition: needed a function, found int 5"),
    "condition: its answer": (lambda: wait_until(True), "condition: .*found bool True"),
    "timeout": (lambda: wait_until(lambda: True, timeout="5"), "timeout: .*found str '5'"),
    "stream": (lambda: collect_stream(5), "stream: needed a streaming DataFrame, found int 5"),
    "stream: a batch": (lambda: collect_stream(_Batch()), "stream: .*found _Batch"),
}


@pytest.mark.parametrize(("ask", "why"), WRONG.values(), ids=WRONG)
def test_helper_arguments_of_wrong_type_are_refused_with_an_example(ask, why):
    with pytest.raises(TypeError, match=f"{why}.*; for example: "):
        ask()


@needs_java
def test_stream_rows_returns_the_rows_of_a_fed_topic(spark, rocketpoll_broker, rocketpoll_topic):
    rocketpoll_broker.send(rocketpoll_topic, "before", tags="old")
    rows = stream_rows(
        spark,
        rocketpoll_broker,
        rocketpoll_topic,
        "one",
        b"two",
        expected=3,
        timeout=PATIENCE_SECONDS,
    )
    assert sorted(bytes(row.body) for row in rows) == [b"before", b"one", b"two"]
    options = {"tags": "old", "columns": "body,queueId"}
    (row,) = stream_rows(
        spark, rocketpoll_broker, rocketpoll_topic, options=options, timeout=PATIENCE_SECONDS
    )
    assert row.asDict().keys() == {"body", "queueId"}
    assert not spark.streams.active
    assert not [table for table in spark.catalog.listTables() if table.isTemporary]


@needs_java
def test_stream_rows_with_the_wrong_row_count_shows_some_rows(
    spark, rocketpoll_broker, rocketpoll_topic
):
    rocketpoll_broker.send(rocketpoll_topic, "one", "two")
    with pytest.raises(AssertionError, match=r"needed 1 rows, found 2: \[Row\(topic="):
        stream_rows(
            spark, rocketpoll_broker, rocketpoll_topic, expected=1, timeout=PATIENCE_SECONDS
        )
    with pytest.raises(NotInTime, match="2 have arrived"):
        stream_rows(spark, rocketpoll_broker, rocketpoll_topic, expected=3, timeout=0)


@needs_java
def test_collect_stream_runs_a_given_stream_to_its_end(spark, rocketpoll_broker, rocketpoll_topic):
    rocketpoll_broker.send(rocketpoll_topic, "one", "two", "two")
    options = {"namesrvAddr": rocketpoll_broker.address, "topic": rocketpoll_topic}
    stream = (
        spark.readStream.format("rocketpoll").options(**options, startingOffsets="earliest").load()
    )
    counts = stream.groupBy("body").agg(count(lit(1)).alias("n"))
    rows = collect_stream(counts, output_mode="complete", expected=2, timeout=PATIENCE_SECONDS)
    assert {bytes(row.body): row.n for row in rows} == {b"one": 1, b"two": 2}


@needs_java
def test_collect_stream_stops_an_endless_stream_after_its_timeout(spark):
    endless = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    slow = endless.selectExpr("java_method('java.lang.Thread', 'sleep', 3000L)")
    with pytest.raises(NotInTime, match="its last progress was"):
        collect_stream(slow, timeout=1)
    assert not spark.streams.active
