"""RocketPollDataSource: the class that Spark finds as ``format("rocketpoll")``.

Spark imports this module in a separate process just to look for sources, and again for every query.
Therefore it imports only Spark's own interface until a reader, a writer or a schema is asked for.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from rmq_spark.spark.tracebacks import without_frames

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from rmq_spark.spark.plan.position_resolver import LoadSnapshot

FORMAT = "rocketpoll"


@without_frames
class RocketPollDataSource(DataSource):
    """The data source ``rocketpoll``: a RocketMQ broker's topics as tables and streams.

    Spark finds it by its name, and docs/options.md lists its options::

        orders = (
            spark.readStream.format("rocketpoll")
            .option("namesrvAddr", "localhost:9876")
            .option("topic", "orders")
            .load()
        )
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Refuse unknown option names; readers and writers refuse options that are not for them."""
        from rmq_spark.spark.options.table import check_names, is_table_definition  # noqa: PLC0415  # see the module's docstring

        super().__init__(options)
        if not is_table_definition(options):
            check_names(options)
        self._snapshot: LoadSnapshot | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``: ``rocketpoll``."""
        return FORMAT

    def schema(self) -> str | StructType:
        """Return the columns, after a check of all options: users expect errors at `load()`.

        Spark keeps the source as it is after this call, and makes all readers of a data frame from
        it: therefore they all read to the same ends. ``CREATE TABLE`` without columns calls this as
        well, and gets the default columns without a request to a broker.
        """
        from rmq_spark.spark.worker_python import check_worker_python  # noqa: PLC0415  # see the module's docstring

        check_worker_python()  # before imports that may be missing
        from rmq_spark.spark.bodies.columns import source_schema  # noqa: PLC0415  # after the check
        from rmq_spark.spark.options.options import read_options  # noqa: PLC0415  # after the check
        from rmq_spark.spark.options.table import check_table_definition, is_table_definition  # noqa: PLC0415  # after the check
        from rmq_spark.spark.preflight import check_with_brokers  # noqa: PLC0415  # after the check
        from rmq_spark.spark.schemas.columns import DEFAULT_COLUMNS, ddl_of  # noqa: PLC0415  # after the check

        if is_table_definition(self.options):
            check_table_definition(self.options)
            return ddl_of(DEFAULT_COLUMNS)
        options = read_options(self.options)
        schema = source_schema(options)
        self._snapshot = check_with_brokers(options)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query, ``spark.read``."""
        _check_this_python()
        from rmq_spark.spark.batch_reader import BatchReader  # noqa: PLC0415  # see the module's docstring

        return BatchReader(self.options, schema, self._snapshot)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Return the reader of a streaming query, ``spark.readStream``."""
        _check_this_python()
        from rmq_spark.spark.stream_reader import stream_reader  # noqa: PLC0415  # see the module's docstring

        return stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001  # Spark's signature
        """Return the writer of a batch query, ``df.write``; overwriting is refused."""
        _check_this_python()
        from rmq_spark.spark.writer import BatchWriter  # noqa: PLC0415  # see the module's docstring

        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802  # Spark's; complete mode overwrites, see stream_writer
        """Return the writer of a streaming query, ``df.writeStream``."""
        _check_this_python()
        from rmq_spark.spark.writer import stream_writer  # noqa: PLC0415  # see the module's docstring

        return stream_writer(self.options, schema, overwrite=overwrite)


def _check_this_python() -> None:
    """Refuse a Python without our libraries, before an import of one fails.

    Spark does not call `schema` if the user gives a schema, or if a table of the catalog has one.
    """
    from rmq_spark.spark.worker_python import check_this_python  # noqa: PLC0415  # see the module's docstring

    check_this_python()
