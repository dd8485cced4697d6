"""DemoQuery: the demo's Spark stream, with figures about each batch. Needs pyspark and Java."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it
from pyspark.sql.streaming.listener import StreamingQueryListener

from rmq_spark.cli.demo.display import DemoBatch

_METRICS_NAME: Final = "demo"


class DemoQuery:
    """The demo's Spark session and its one query."""

    def __init__(
        self, address: str, topic: str, directory: Path, on_batch: Callable[[DemoBatch], None]
    ) -> None:
        """Start the query; ``on_batch`` gets each batch that had rows, on Spark's thread."""
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        self._session = (
            SparkSession.builder.master("local[2]")
            .appName("rocketpoll demo")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.local.dir", str(directory))
            .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
            .config("spark.sql.shuffle.partitions", "2")
            .getOrCreate()
        )
        self._session.streams.addListener(_BatchListener(on_batch))
        orders = (
            self._session.readStream.format("rocketpoll")
            .option("namesrvAddr", address)
            .option("topic", topic)
            .option("startingOffsets", "earliest")
            .option("consumerGroup", "demo-readers")
            .load()
        )
        born = F.col("bornTimestamp").cast("double")
        observed = orders.observe(
            _METRICS_NAME,
            F.percentile_approx(born, 0.5).alias("p50"),
            F.percentile_approx(born, 0.05).alias("p05"),
        )
        self._query = (
            observed.writeStream.format("noop")
            .queryName("demo")
            .option("checkpointLocation", str(directory / "checkpoint"))
            .start()
        )

    def fault(self) -> str | None:
        """Return the reason why the query has ended, or None while it runs."""
        return None if self._query.isActive else str(self._query.exception() or "it has stopped")

    def finish(self) -> None:
        """Read all available messages, and return when they have been read."""
        self._query.processAllAvailable()

    def stop(self) -> None:
        """Stop query and session."""
        self._query.stop()
        self._session.stop()


class _BatchListener(StreamingQueryListener):
    def __init__(self, on_batch: Callable[[DemoBatch], None]) -> None:
        self._on_batch = on_batch

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  # Spark's name
        """Do nothing: there are no figures yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802  # Spark's name
        progress = event.progress
        if not progress.numInputRows:
            return
        seconds = progress.batchDuration / 1000
        ended = (
            datetime.fromisoformat(progress.timestamp.replace("Z", "+00:00")).timestamp() + seconds
        )
        metrics = progress.observedMetrics[_METRICS_NAME]
        self._on_batch(
            DemoBatch(
                rows=progress.numInputRows,
                ended_at=ended - time.time() + time.monotonic(),
                seconds=seconds,
                latency_p50=ended - metrics.p50,
                latency_p95=ended - metrics.p05,
            )
        )

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802  # Spark's name
        """Do nothing: there is no new message."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802  # Spark's name
        """Do nothing when the query has been stopped or has failed."""
