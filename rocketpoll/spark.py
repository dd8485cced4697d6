"""rocketpoll.spark: lag, checkpoints and lineage of Spark queries, and the errors of the source.

    from rocketpoll.spark import lag_of, read_checkpoint

    print(lag_of(query.lastProgress))

A query itself needs no import: ``spark.readStream.format("rocketpoll")``. This module maps names to
the modules of `rmq_spark.spark` that define them, imports each on first use, and must not define
anything else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rmq_spark.spark.errors import (
        BrokersAway,
        BrokersGone,
        CheckpointError,
        DataLoss,
        OptionError,
        RecordFault,
        RowError,
        SchemaError,
        SetUpError,
        SparkError,
        WriteError,
    )
    from rmq_spark.spark.monitoring.checkpoint import (
        CheckpointedBatch,
        read_checkpoint,
        starting_offsets,
    )
    from rmq_spark.spark.monitoring.lag import LagListener, QueryLag, QueueLag, lag_now, lag_of
    from rmq_spark.spark.monitoring.lineage import LineageListener

_NAMES: Final = {
    "errors": (
        "BrokersAway",
        "BrokersGone",
        "CheckpointError",
        "DataLoss",
        "OptionError",
        "RecordFault",
        "RowError",
        "SchemaError",
        "SetUpError",
        "SparkError",
        "WriteError",
    ),
    "monitoring.checkpoint": ("CheckpointedBatch", "read_checkpoint", "starting_offsets"),
    "monitoring.lag": ("LagListener", "QueryLag", "QueueLag", "lag_now", "lag_of"),
    "monitoring.lineage": ("LineageListener",),
}
_MODULES: Final = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "BrokersAway",
    "BrokersGone",
    "CheckpointError",
    "CheckpointedBatch",
    "DataLoss",
    "LagListener",
    "LineageListener",
    "OptionError",
    "QueryLag",
    "QueueLag",
    "RecordFault",
    "RowError",
    "SchemaError",
    "SetUpError",
    "SparkError",
    "WriteError",
    "lag_now",
    "lag_of",
    "read_checkpoint",
    "starting_offsets",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"rmq_spark.spark.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
