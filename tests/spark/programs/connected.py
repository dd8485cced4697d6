"""A Spark Connect query that copies a topic in foreachBatch, each batch once.

connected.py ADDRESS CHECKPOINT all|readers
"""

import sys

from pyspark.sql import SparkSession


def main(address, checkpoint, seen_by):
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    assert type(spark).__module__.startswith("pyspark.sql.connect"), type(spark)

    def write(rows, batch_id):
        once = {"namesrvAddr": address, "topic": "out", "delivery": "exactly_once"}
        if seen_by == "all":
            once |= {"visibleTo": "all", "txnAppId": "copies", "txnVersion": str(batch_id)}
        else:
            once["writeName"] = f"copy-{batch_id}"
        rows.select("body").write.format("rocketpoll").mode("append").options(**once).save()

    orders = spark.readStream.format("rocketpoll").option("namesrvAddr", address)
    orders = orders.options(topic="in", startingOffsets="earliest").load()
    query = orders.writeStream.foreachBatch(write).trigger(availableNow=True)
    query.option("checkpointLocation", checkpoint).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
