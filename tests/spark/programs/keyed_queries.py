"""Spark queries that get their access keys in one of three ways; run by `test_source_secrets`.

The program reads and writes in a batch and in a stream, and prints plans and progress. All files
that Spark writes, such as its event log and checkpoints, are in the directory of the first
argument.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from support.spark.sessions import LOCAL

_SETTINGS = {
    **LOCAL,
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.sql.shuffle.partitions": "1",
}


def main():
    """Run the queries with the options ``name=value`` that follow the directory."""
    directory = Path(sys.argv[1])
    keyed = dict(each.split("=", 1) for each in sys.argv[2:])
    builder = SparkSession.builder.master("local[2]")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    (directory / "events").mkdir()
    builder = builder.config("spark.eventLog.dir", f"file://{directory / 'events'}")
    builder = builder.config("spark.local.dir", str(directory / "local"))
    spark = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse")).getOrCreate()
    said = sys.stdout
    frame = spark.read.format("rocketpoll").options(topic="orders", **keyed).load()
    frame.explain(extended=True)
    said.write(f"{frame.count()} rows were read\n")
    frame.select("body").write.format("rocketpoll").options(topic="copies", **keyed).mode(
        "append"
    ).save()
    stream = spark.readStream.format("rocketpoll").options(
        topic="orders", startingOffsets="earliest", **keyed
    )
    writer = stream.load().select("body").writeStream.format("rocketpoll")
    query = (
        writer.options(topic="copies", **keyed)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query.explain(extended=True)
    said.writelines(f"{progress.json}\n" for progress in query.recentProgress)
    for wrong in ({"topic": "no-such-topic"}, {"maxOffsetsPerTrigger": "1"}):
        try:
            options = {"topic": "orders", **keyed, **wrong}
            spark.read.format("rocketpoll").options(**options).load().collect()
        except Exception as error:  # noqa: PERF203  # the test checks the output, whatever the error
            said.write(f"{error}\n")
    spark.stop()


if __name__ == "__main__":
    main()
