"""Benchmark of the longest wait of a client because of other requests or the broker's own work.

A broker does all its work on one thread. So the benchmark measures the longest turn of its loop,
not the total time of a request. Rows are named for what they measure: request codes, housekeeping
jobs, and other work of the loop. A request or a job without a row fails a test.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gaps.asked import Scale
from benchmarks.gaps.batches import batch_rows
from benchmarks.gaps.jobs import job_rows
from benchmarks.gaps.measured import Client, MeasuredBroker
from benchmarks.gaps.members import member_rows
from benchmarks.gaps.messages import message_rows
from benchmarks.gaps.operators import operator_rows
from benchmarks.gaps.row import Row

LIBRARIES = ("numpy", "orjson", "pyarrow", "uvloop")


def gaps(broker: MeasuredBroker, scale: Scale) -> Iterator[Row]:
    """Yield the longest turn of each kind of request, on a broker that starts empty."""
    client = Client(broker)
    yield from message_rows(broker, client, scale)
    yield from batch_rows(broker, client, scale)
    yield from operator_rows(broker, client, scale)
    yield from member_rows(broker, client, scale)
    yield from job_rows(broker, client, scale)
