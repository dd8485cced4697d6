"""A declarative pipeline: orders of a topic as tables, and a bill for each into another topic.

    topic orders ──> orders (streaming table) ──> totals (materialized view)
                                              └─> bills (sink) ──> topic bills, exactly once

A message's body is JSON: {"id": 1, "customer": "ada", "total": 9.5}.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

spark = SparkSession.active()
NAMESRV = spark.conf.get("orders.namesrv")


@dp.table
def orders() -> DataFrame:
    """Return the orders of the topic, each once."""
    return (
        spark.readStream.format("rocketpoll")
        .option("namesrvAddr", NAMESRV)
        .option("topic", "orders")
        .option("startingOffsets", "earliest")
        .option("bodyFormat", "json")
        .option("bodySchema", "id BIGINT, customer STRING, total DOUBLE")
        .load()
    )


@dp.materialized_view
def totals() -> DataFrame:
    """Return number and sum of the orders of each customer."""
    by_customer = spark.read.table("orders").groupBy("customer")
    return by_customer.agg(F.count("id").alias("orders"), F.sum("total").alias("total"))


dp.create_sink(
    name="bills",
    format="rocketpoll",
    options={"namesrvAddr": NAMESRV, "topic": "bills", "delivery": "exactly_once"},
)


@dp.append_flow(target="bills")
def bill_orders() -> DataFrame:
    """Return a bill for each order, as a message whose key is the order's id."""
    bill = F.to_json(F.struct("id", "customer", "total"))
    return spark.readStream.table("orders").select(
        bill.cast("binary").alias("body"), F.col("id").cast("string").alias("keys")
    )
