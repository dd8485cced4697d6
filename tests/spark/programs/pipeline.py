"""A pipeline of two queries on Spark, which a test kills at random: child of `test_pipeline_kills`.

    payments ──> totals of a shop in ten seconds ──> totals ──> totals of a minute ──> sums

Both write exactly once: the first by manifests, which the second goes by, the second in batches
that every client sees as a whole. A body is a shop, a second and an amount with two decimals. A
query that ends, as somebody it needs was killed, is started again from its checkpoint.
"""

import sys
import time
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession, functions
from support.spark.sessions import PATIENT

_SETTINGS = {**PATIENT, "spark.sql.shuffle.partitions": "2"}
_LATE_SECONDS = 60
_POLL_SECONDS = 0.1


def totals(rows, seconds):
    """Sum up amounts by shop and time; each window becomes one row when it is closed."""
    word = functions.split(rows.body.cast("string"), " ")
    paid = rows.select(
        word[0].alias("shop"),
        functions.timestamp_seconds(word[1].cast("long")).alias("at"),
        word[2].cast("decimal(18,2)").alias("amount"),
    )
    window = functions.window("at", f"{seconds} seconds")
    added = paid.withWatermark("at", f"{_LATE_SECONDS} seconds").groupBy("shop", window)
    total = functions.sum("amount").cast("string")
    began = functions.unix_timestamp("window.start").cast("string")
    return added.agg(total.alias("total")).select(
        functions.concat_ws(" ", "shop", began, "total").alias("body")
    )


def main():
    """Run both queries until the process is killed."""
    address, directory = sys.argv[1], Path(sys.argv[2])
    builder = SparkSession.builder.master("local[2,4]")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.local.dir", str(directory / "local")).getOrCreate()

    def start(source, target, seconds, reading, writing):
        rows = spark.readStream.format("rocketpoll").options(
            namesrvAddr=address, topic=source, startingOffsets="earliest", columns="body", **reading
        )
        written = totals(rows.load(), seconds).writeStream.format("rocketpoll").outputMode("append")
        written = written.options(
            namesrvAddr=address, topic=target, delivery="exactly_once", **writing
        )
        return written.option("checkpointLocation", str(directory / target)).start()

    starts = [
        ("payments", "totals", 10, {}, {}),
        (
            "totals",
            "sums",
            60,
            {"isolation": "committed", "waitForTopic": "true"},
            {"visibleTo": "all"},
        ),
    ]
    queries = {}
    while True:
        for source, target, *told in starts:
            query = queries.get(target)
            if query is not None and query.isActive:
                continue
            if query is not None:
                sys.stderr.write(f"{target}: {query.exception()}\n")
            try:
                queries[target] = start(source, target, *told)
            except AnalysisException as error:  # the broker was just killed
                sys.stderr.write(f"{target}: {error}\n")
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    main()
