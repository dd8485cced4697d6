"""The longest that a client waits because of another's request, or of the broker's own work.

Everything of a broker happens on one thread. So the longest turn of its loop is measured, not how
long what the other wants takes. Each row says what it is about: requests by the names of their
codes, jobs that keep house by theirs, and what else the loop does. A request or a job without a row
fails a test.
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
    """Yield the longest turn that each kind of request makes on a broker that starts empty."""
    client = Client(broker)
    yield from message_rows(broker, client, scale)
    yield from batch_rows(broker, client, scale)
    yield from operator_rows(broker, client, scale)
    yield from member_rows(broker, client, scale)
    yield from job_rows(broker, client, scale)
