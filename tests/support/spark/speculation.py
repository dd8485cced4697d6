"""A task that Spark runs a second copy of, as its first copy does not come to its end.

Only a cluster speculates, and a second copy runs on another host than the first:
`make cluster` has two.
"""

from __future__ import annotations

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
    """Skip the test, if Spark was not told to speculate."""
    if spark.sparkContext.getConf().get("spark.speculation") != "true":
        pytest.skip("this run is without spark.speculation: make cluster has one with it")


def waiting(directory):
    """What tasks call when their work is done: a first copy stays there,
    and a second leaves a file.

    It is a function within, so that workers, who do not know this file, get it by value.
    """

    def wait():
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
        time.sleep(_GIVEN_UP_SECONDS)  # until the second copy counts, and this one is ended

    return wait


class SecondCopies:
    """Those that have come to their end from now on."""

    def __init__(self, spark, directory):
        self._spark = spark
        self.directory = directory
        self._before = _beaten(spark)

    def assert_one(self):
        """There was one of the slow task, it was no retry, and it was done first.

        Spark hears a little later that the first copy has ended.
        """
        assert len(list(self.directory.iterdir())) == 1
        wait_until(
            "a first copy that was ended",
            lambda: SLOW in {at for _, at in _beaten(self._spark) - self._before},
        )


def _beaten(spark):
    """The tasks so far, as stage and partition, whose second copy was done first,
    by Spark's word."""
    store = spark.sparkContext._jsc.sc().statusStore().store()
    tasks = spark._jvm.java.lang.Class.forName("org.apache.spark.status.TaskDataWrapper")
    found = {}
    for task in store.view(tasks).iterator():
        ends = found.setdefault((task.stageId(), task.index()), set())
        ends.add((task.speculative(), task.status()))
    return {
        where for where, ends in found.items() if ends >= {(True, "SUCCESS"), (False, "KILLED")}
    }
