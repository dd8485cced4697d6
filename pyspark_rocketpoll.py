"""pyspark_rocketpoll: registers ``format("rocketpoll")`` with Spark.

Spark imports every module whose name starts with ``pyspark_``.
"""

from rmq_spark.spark.data_source import RocketPollDataSource as DefaultSource

__all__ = ["DefaultSource"]
