"""Executors are killed in a task of the sink while speculative copies run: each row counts once,
and ids derived from keys stay the same."""

import os
import signal
import time

import pytest
from support.spark.sink_fixture import registered_sink
from support.spark.speculation import ON_A_CLUSTER, SLOW
from support.suite.selection import count

from rmq_spark.spark.write.reports import ROW_ID

# Longer campaigns: ROCKETPOLL_EXECUTOR_KILLS=60
ROUNDS = count("ROCKETPOLL_EXECUTOR_KILLS", 3, wide=12)
POINTS = ("before", "within", "behind")
"""Points at which the executor is killed: before, during or after the task's sends."""
ROWS, PARTITIONS = 40, 4
ONCE = {"delivery": "exactly_once"}

pytestmark = ON_A_CLUSTER


def death(given):
    """Return a function that a task calls at each point: if a file says so, it kills its executor.

    The function is nested and so pickled by value, because workers cannot import this file.
    """

    def die(point):
        """Kill the JVM that started this worker's parent, once."""
        from pathlib import Path  # noqa: PLC0415  # runs in a worker

        from pyspark import TaskContext  # noqa: PLC0415  # runs in a worker

        if TaskContext.get().partitionId() != SLOW:
            return
        try:
            (Path(given) / point).unlink()
        except FileNotFoundError:
            return
        daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
        executor = int(daemon.rpartition(") ")[2].split()[1])
        assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_bytes()
        (Path(given) / "killed").touch()
        os.kill(executor, signal.SIGKILL)
        time.sleep(60)

    return die


def killing(spark, directory):
    """Return the name of a sink whose task kills its executor if a file says so."""
    die = death(str(directory))

    def within(rows):
        for each in rows:
            yield each
            die("within")

    def around(write, rows):
        die("before")
        sent = write(within(rows))
        die("behind")
        return sent

    return registered_sink(spark, "rocketpoll_dying", around)


@pytest.fixture
def deaths(tmp_path):
    directory = tmp_path / "deaths"
    directory.mkdir()
    return directory


def seen_by_all(sink, expected):
    return sorted(int(message.body) for message in sink.messages(expected))


def counting(sink, expected):
    """Check the committed rows; a consumer without isolation sees at least these."""
    found = sorted(map(int, sink.bodies(topic=sink.topic, isolation="committed")))
    assert len(found) == expected
    return found


@pytest.mark.parametrize(
    ("way", "look"),
    [(ONCE, counting), ({**ONCE, "visibleTo": "all"}, seen_by_all)],
    ids=["manifests", "staged"],
)
def test_stream_with_killed_executors_has_each_row_once(sink, kind, deaths, way, look):
    if "visibleTo" in way and kind != "rocketpoll":
        pytest.skip("a RocketMQ broker knows no staged batches")
    into, topic = killing(sink.spark, deaths), sink.filled()
    for number in range(ROUNDS):
        sent = (number + 1) * ROWS
        sink.cluster.send(topic, *range(sent - ROWS, sent), queues=PARTITIONS)
        (deaths / POINTS[number % len(POINTS)]).touch()
        rows = sink.stream(topic=topic, columns="body", startingOffsets="earliest")
        sink.copy(rows, into=into, **way)
        (deaths / "killed").unlink()
        assert look(sink, sent) == list(range(sent))


@pytest.mark.parametrize("ids", ["keys", "true"])
def test_row_ids_by_keys_survive_a_retry_in_another_order_and_positions_do_not(sink, deaths, ids):
    """Ids from keys stay the same; ids from positions then belong to other rows."""

    def turned(rows):
        from pyspark import TaskContext  # noqa: PLC0415  # runs in a worker

        return iter(list(rows)[:: -1 if TaskContext.get().attemptNumber() else 1])

    (deaths / "behind").touch()
    numbers = sink.spark.sparkContext.range(0, ROWS, 1, PARTITIONS)
    rows = numbers.mapPartitions(turned).map(lambda number: (str(number), f"k{number}"))
    rows = sink.spark.createDataFrame(rows, "body string, keys string")
    sink.write(rows, into=killing(sink.spark, deaths), rowIds=ids)
    (deaths / "killed").unlink()
    bodies = {}
    for row in sink.load(topic=sink.topic, columns="body,properties").collect():
        bodies.setdefault(row.properties[ROW_ID], set()).add(bytes(row.body))
    assert max(map(len, bodies.values())) == (1 if ids == "keys" else 2)
