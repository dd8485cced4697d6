"""Speculation: the first copy of a task hangs, so that Spark starts a second one.

Only a cluster speculates, and a second copy runs on another host than the first: `make cluster` has
two.
"""

import time

import pytest
from pyspark import TaskContext
from support.brokers.broker_kinds import wait_until
from support.spark.sessions import is_submitted

SLOW = 1
"""The partition whose first copy waits."""

_GIVEN_UP_SECONDS = 120
_POLL_SECONDS = 0.02

ON_A_CLUSTER = pytest.mark.skipif(
    not is_submitted(), reason="only a cluster speculates: make cluster"
)


def need_speculation(spark):
    """Skip the test unless Spark has speculation enabled."""
    if spark.sparkContext.getConf().get("spark.speculation") != "true":
        pytest.skip("this run is without spark.speculation: make cluster has one with it")


def waiting(directory):
    """Return a function for tasks to call at their end: the first copy blocks there, the second one
    creates a file.

    The function is nested and so pickled by value, because workers cannot import this file.
    """

    def wait():
        __tracebackhide__ = True
        context = TaskContext.get()
        if context.partitionId() != SLOW:
            return
        if context.attemptNumber():
            (directory / f"of stage {context.stageId()}").touch()
            return
        given_up = time.monotonic() + _GIVEN_UP_SECONDS
        while not any(directory.iterdir()):
            assert time.monotonic() < given_up, "there was no second copy"
            time.sleep(_POLL_SECONDS)
        # until Spark has accepted the second copy and killed this one
        time.sleep(_GIVEN_UP_SECONDS)

    return wait


class SecondCopies:
    """The second copies that have ended since this object was created."""

    def __init__(self, spark, directory):
        self._spark = spark
        self.directory = directory
        self._before = _beaten(spark)

    def assert_one(self):
        """Check that the slow task had one second copy, which was no retry and ended first.

        Waits: Spark notices the end of the first copy later.
        """
        __tracebackhide__ = True
        assert len(list(self.directory.iterdir())) == 1
        wait_until(
            "a first copy that was ended",
            lambda: SLOW in {at for _, at in _beaten(self._spark) - self._before},
        )


def _beaten(spark):
    """Return stage and partition of the tasks whose second copy ended first according to Spark."""
    store = spark.sparkContext._jsc.sc().statusStore().store()
    tasks = spark._jvm.java.lang.Class.forName("org.apache.spark.status.TaskDataWrapper")
    found = {}
    for task in store.view(tasks).iterator():
        ends = found.setdefault((task.stageId(), task.index()), set())
        ends.add((task.speculative(), task.status()))
    return {
        where for where, ends in found.items() if ends >= {(True, "SUCCESS"), (False, "KILLED")}
    }
