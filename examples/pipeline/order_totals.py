"""Orders from a topic to totals per minute and region: into Parquet, then into another topic.

    spark-submit --properties-file conf/spark-defaults.conf examples/pipeline/order_totals.py \
        --namesrv localhost:9876 --directory /data/order-totals

A message's body is JSON: {"region": "EU", "amount": 12.5, "at": "2026-01-31T12:00:00Z"}. A minute
is complete when orders two minutes later have arrived; later orders for it are dropped. Two queries
run:

    orders  -> totals    windows with a watermark; a complete minute is appended to Parquet
    totals  -> topic     the appended rows, one message per total; its key is minute and region

Parquet gets each total once. The topic gets it at least once: readers drop repeats by key. With
--once both read the existing messages and end. When restarted, both continue from their
checkpoints.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

ORDER = "region STRING, amount DOUBLE, at TIMESTAMP"
TOTAL = "minute TIMESTAMP, region STRING, orders BIGINT, amount DOUBLE"


def orders_of(spark: SparkSession, namesrv: str, topic: str) -> DataFrame:
    """Return the stream of orders, without messages that are not orders (null in all columns)."""
    messages = (
        spark.readStream.format("rocketpoll")
        .option("namesrvAddr", namesrv)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .option("consumerGroup", "order-totals")
        .option("columns", "body")
        .load()
    )
    orders = messages.select(
        F.from_json(F.col("body").cast("string"), ORDER).alias("order")
    ).select("order.*")
    return orders.where("region IS NOT NULL AND amount IS NOT NULL AND at IS NOT NULL")


def totals_of(orders: DataFrame) -> DataFrame:
    """Return totals per minute and region."""
    grouped = orders.withWatermark("at", "2 minutes").groupBy(F.window("at", "1 minute"), "region")
    totals = grouped.agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
    return totals.select(F.col("window.start").alias("minute"), "region", "orders", "amount")


def into_parquet(totals: DataFrame, directory: Path, *, once: bool) -> StreamingQuery:
    """Start the query that appends totals to Parquet."""
    writer = totals.writeStream.format("parquet").queryName("orders to totals").outputMode("append")
    writer = writer.option("checkpointLocation", str(directory / "checkpoints" / "totals"))
    return _triggered(writer, once=once).start(str(directory / "totals"))


def into_topic(
    spark: SparkSession, directory: Path, namesrv: str, topic: str, *, once: bool
) -> StreamingQuery:
    """Start the query that sends the appended totals to a topic."""
    totals = spark.readStream.schema(TOTAL).parquet(str(directory / "totals"))
    messages = totals.select(
        F.to_json(F.struct("minute", "region", "orders", "amount")).alias("body"),
        F.concat_ws("/", F.date_format("minute", "yyyy-MM-dd'T'HH:mm"), "region").alias("keys"),
    )
    writer = messages.writeStream.format("rocketpoll").queryName("totals to topic")
    writer = writer.option("namesrvAddr", namesrv).option("topic", topic)
    writer = writer.option("checkpointLocation", str(directory / "checkpoints" / "topic"))
    return _triggered(writer, once=once).start()


def _triggered(writer: DataStreamWriter, *, once: bool) -> DataStreamWriter:
    return writer.trigger(availableNow=True) if once else writer.trigger(processingTime="1 second")


def main() -> None:
    """Run both queries until one ends."""
    parser = argparse.ArgumentParser(description="totals of orders, per minute and region")
    parser.add_argument("--namesrv", required=True, help="name server, for example localhost:9876")
    parser.add_argument(
        "--directory", required=True, type=Path, help="directory for totals and checkpoints"
    )
    parser.add_argument("--orders", default="orders", help="topic to read (orders)")
    parser.add_argument("--totals", default="order-totals", help="topic to write (order-totals)")
    parser.add_argument("--once", action="store_true", help="read the existing messages and end")
    given = parser.parse_args()
    (given.directory / "totals").mkdir(
        parents=True, exist_ok=True
    )  # the second query needs it at its start

    spark = SparkSession.builder.appName("order totals").getOrCreate()
    totals = totals_of(orders_of(spark, given.namesrv, given.orders))
    first = into_parquet(totals, given.directory, once=given.once)
    if given.once:
        first.awaitTermination()
    second = into_topic(spark, given.directory, given.namesrv, given.totals, once=given.once)
    if given.once:
        second.awaitTermination()
    else:
        spark.streams.awaitAnyTermination()  # raises the error of a failed query
    spark.stop()


if __name__ == "__main__":
    main()
