"""Sinks whose tasks do something else beside their work, as Spark finds them: by a name.

Workers do not know this file: what they get is made within functions, and so comes by value.
"""

from __future__ import annotations

from functools import partial

from rmq_spark.spark.data_source import RocketPollDataSource


def registered_sink(spark, name, around):
    """Register a sink, and return its name.

    ``around`` is called in each task with the real write and the rows, and returns what the task
    reports.
    """

    def changed(writer):
        original = type(writer).write

        def write(self, rows):
            return around(partial(original, self), rows)

        writer.__class__ = type("ChangedWriter", (type(writer),), {"write": write})
        return writer

    class ChangedSink(RocketPollDataSource):
        @classmethod
        def name(cls):
            return name

        def writer(self, schema, overwrite):
            return changed(super().writer(schema, overwrite))

        def streamWriter(self, schema, overwrite):  # noqa: N802  # Spark's name
            return changed(super().streamWriter(schema, overwrite))

    spark.dataSource.register(ChangedSink)
    return name
