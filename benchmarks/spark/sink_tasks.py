"""CPU of the sink without Spark: a task from Arrow batches to stored rows, and a broker.

    .venv/bin/python -m benchmarks.spark.sink_tasks
    .venv/bin/python -m benchmarks.spark.sink_tasks --rows 400000 --rounds 9 --only varied

The tasks run in this process, one after the other; the broker has a process of its own. The CPU of
both counts, the broker's until it has dispatched and indexed the rows; Spark is not involved. The
result is the least CPU of all rounds, because other programs can only add to it.

Varied rows are as services send them: log-normal bodies of 50 B to 8 KB, one of three tags, one to
three keys, two to five properties, 50 tenants.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from benchmarks.spark.process_tree import embedded_broker, process_cpu_seconds
from rmq_spark.spark.options.options import write_options
from rmq_spark.spark.options.sink_columns import SinkColumn
from rmq_spark.spark.write.reports import WriteTask
from rmq_spark.spark.write.sender import send_rows
from rocketpoll import EmbeddedBroker

_BATCH_ROWS: Final = 10_000
"""The rows of an Arrow batch, as Spark passes them by default."""
_SEED: Final = 2026
_BODY_BYTES: Final = (50, 8_192)
_BODY_BYTES_MEDIAN, _BODY_BYTES_SIGMA = 400, 1.2
_TAGS: Final = ("created", "paid", "refunded")
_TENANTS: Final = 50
_PROPERTY_NAMES: Final = ("source", "version", "region", "trace")
_SETTLED_SECONDS: Final = 0.2
_SETTLED_CPU_SECONDS: Final = 0.002


def uniform_rows(rows: int, body_bytes: int) -> pa.Table:
    """Return rows of bodies alone, which are numbers with leading zeros."""
    return pa.table({"body": pa.array([b"%0*d" % (body_bytes, row) for row in range(rows)])})


def varied_rows(rows: int) -> pa.Table:
    """Return rows that look like messages of services, the same in each run."""
    random = np.random.default_rng(_SEED)
    sizes = random.lognormal(np.log(_BODY_BYTES_MEDIAN), _BODY_BYTES_SIGMA, rows)
    sizes = np.clip(sizes.astype(np.int64), *_BODY_BYTES)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    bodies = pa.Array.from_buffers(
        pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(random.bytes(offsets[-1]))]
    )
    orders = random.integers(10**6, size=(rows, 3))
    keys = [
        " ".join(f"order-{order}" for order in own[:count])
        for own, count in zip(orders.tolist(), random.integers(1, 4, rows).tolist(), strict=True)
    ]
    tenants = random.integers(_TENANTS, size=rows).tolist()
    values = random.integers(1 << 40, size=(rows, len(_PROPERTY_NAMES))).tolist()
    counts = random.integers(1, len(_PROPERTY_NAMES) + 1, rows).tolist()
    properties = [
        [
            ("tenant", f"tenant-{tenant}"),
            *(
                (name, f"{value:x}")
                for name, value in zip(_PROPERTY_NAMES, own[:count], strict=False)
            ),
        ]
        for tenant, own, count in zip(tenants, values, counts, strict=True)
    ]
    return pa.table(
        {
            "body": bodies,
            "keys": keys,
            "tags": random.choice(_TAGS, rows).tolist(),
            "properties": pa.array(properties, pa.map_(pa.string(), pa.string())),
        }
    )


_KINDS: Final[dict[str, Callable[[int], pa.Table]]] = {
    "100 B": lambda rows: uniform_rows(rows, 100),
    "1 KB": lambda rows: uniform_rows(rows // 4, 1_000),
    "varied": lambda rows: varied_rows(rows // 4),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the CPU for a million rows of each kind."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.sink_tasks")
    parser.add_argument(
        "--rows", type=int, default=200_000, help="of 100 B; of the others a fourth as many"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="kinds with this in their names")
    options = parser.parse_args(arguments)
    for name, make in _KINDS.items():
        if options.only in name:
            rows = make(options.rows)
            task, broker = _least_cpu_seconds(rows, options.rounds)
            sys.stdout.write(
                f"{name}: {task:.3f} s of CPU of the task and {broker:.3f} s of the broker for "
                "1,000,000 rows\n"
            )
            sys.stdout.flush()


def _least_cpu_seconds(rows: pa.Table, rounds: int) -> Sequence[float]:
    """Send the rows as tasks do; return the least CPU of a task and of the broker, per million."""
    took = []
    with EmbeddedBroker(own_process=True) as broker:
        processes = (os.getpid(), embedded_broker())
        broker.create_topic("written", 4)
        options = write_options({"namesrvAddr": broker.address, "topic": "written"})
        columns = [
            SinkColumn(field.name, number, str(field.type))
            for number, field in enumerate(rows.schema)
        ]
        for number in range(rounds + 1):
            began = [process_cpu_seconds(each) for each in processes]
            report = send_rows(
                options, columns, WriteTask("query", number, 0), rows.to_batches(_BATCH_ROWS)
            )
            task = process_cpu_seconds(processes[0]) - began[0]
            _wait_until_idle(processes[1])
            if report.row_count != rows.num_rows:
                raise AssertionError(f"{report.row_count} of {rows.num_rows} rows were sent")
            if number:  # the first one loads what the others use
                took.append((task, process_cpu_seconds(processes[1]) - began[1]))
    return [min(each) / rows.num_rows * 1e6 for each in zip(*took, strict=True)]


def _wait_until_idle(process: int) -> None:
    before = process_cpu_seconds(process)
    while True:
        time.sleep(_SETTLED_SECONDS)
        now = process_cpu_seconds(process)
        if now - before < _SETTLED_CPU_SECONDS:
            return
        before = now


if __name__ == "__main__":
    main()
