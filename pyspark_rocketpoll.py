"""How Spark finds ``format("rocketpoll")`` by itself.

It imports every module named ``pyspark_*``.
"""

from rmq_spark.spark.data_source import RocketPollDataSource as DefaultSource

__all__ = ["DefaultSource"]
