"""The cost of decoding bodies in the source, by format, with Spark's from_json for comparison.

    .venv/bin/python -m benchmarks.spark.typed_bodies
    .venv/bin/python -m benchmarks.spark.typed_bodies --rows 1000000 --rounds 5

All read the same rows in turn, and pass the same columns to a sink that writes nothing. A ratio of
1.50 means that it takes half as long again as bodyFormat=json. Protobuf, which has neither dates
nor decimals, has text for these. The broker has a process of its own.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from rocketpoll import EmbeddedBroker

_PARTITIONS = 2
_JSON, _FROM_JSON = "json", "from_json"
_FORMATS = (_JSON, "avro", "msgpack", "protobuf")
_TEXT_IN_PROTOBUF = ("day", "price")
_PROTOBUF_TYPES = {
    "id": 3,
    "total": 1,
    "paid": 8,
    "at": ".google.protobuf.Timestamp",
    "inner": ".Inner",
    "items": 5,
}
"""The types of fields by their numbers, or the messages that they are; all others are text."""

_SCHEMAS = {
    "four fields": "id BIGINT, customer STRING, total DOUBLE, paid BOOLEAN",
    "ten fields, nested": (
        "id BIGINT, customer STRING, total DOUBLE, paid BOOLEAN, at TIMESTAMP, day DATE, "
        "price DECIMAL(9,2), city STRING, inner STRUCT<a: INT, b: STRING>, items ARRAY<INT>"
    ),
}
_ROW = """
    id, concat('customer ', id) AS customer, id * 1.25D AS total, id % 2 = 0 AS paid,
    timestamp_micros(1700000000000000 + id * 1000001) AS at, date_from_unix_date(id % 20000) AS day,
    CAST(id % 100000 AS DECIMAL(9,2)) AS price, 'Lübeck' AS city,
    named_struct('a', CAST(id % 7 AS INT), 'b', 'x') AS inner, array(1, 2, 3) AS items
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the medians of all ways, and their ratios to JSON, for each schema."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.typed_bodies")
    parser.add_argument("--rows", type=int, default=1_000_000, help="messages that are read")
    parser.add_argument("--rounds", type=int, default=5, help="counted; one more goes before them")
    options = parser.parse_args(arguments)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    try:
        with TemporaryDirectory() as room, EmbeddedBroker(own_process=True) as broker:
            for name, schema in _SCHEMAS.items():
                source = _Source(session, broker.address, schema, Path(room) / "rows.desc")
                ids = session.range(0, options.rows, 1, _PARTITIONS)
                rows = ids.selectExpr(f"struct({_ROW}) AS v").select("v.*")
                for form in _FORMATS:
                    source.write(rows, form)
                sys.stdout.write(f"{name}, {options.rows} rows:")
                medians = _measured(source, options.rounds)
                for way, seconds in medians.items():
                    ratio = seconds / medians[_JSON]
                    sys.stdout.write(f" {way} {seconds * 1e3:.0f} ms, ratio {ratio:.2f};")
                sys.stdout.write("\n")
    finally:
        session.stop()


class _Source:
    """The topics with the rows of one schema, one of each format."""

    def __init__(self, spark: SparkSession, address: str, schema: str, descriptor: Path) -> None:
        self._spark = spark
        self._address = address
        self._schema = schema
        self._names = [field.split(" ", 1)[0] for field in re.split(r", (?=\w+ [A-Z])", schema)]
        self._protobuf = {"bodyDescriptor": str(descriptor), "bodyMessage": "Row"}
        descriptor.write_bytes(_descriptors(self._names))

    def write(self, rows: DataFrame, form: str) -> None:
        """Write the rows to the topic of a format."""
        columns: list[Column] = [f.col(name) for name in self._names]
        if form == "protobuf":
            columns = [
                f.col(name).cast("string") if name in _TEXT_IN_PROTOBUF else f.col(name)
                for name in self._names
            ]
        writer = rows.select(columns).write.format("rocketpoll").mode("append")
        writer.options(**self._options(form)).save()

    def read(self, way: str) -> DataFrame:
        """Return the rows, read in one way."""
        if way == _FROM_JSON:
            raw = self._spark.read.format("rocketpoll").options(
                namesrvAddr=self._address, topic=self._topic(_JSON), columns="body"
            )
            parsed = f.from_json(f.col("body").cast("string"), self._schema)
            return raw.load().select(parsed.alias("v")).select("v.*")
        options = {**self._options(way), "columns": ",".join(self._names)}
        if way != "protobuf":
            options["bodySchema"] = self._schema
        return self._spark.read.format("rocketpoll").options(**options).load()

    def _options(self, form: str) -> dict[str, str]:
        more = self._protobuf if form == "protobuf" else {}
        at = {"namesrvAddr": self._address, "topic": self._topic(form), "bodyFormat": form}
        return {**at, **more}

    def _topic(self, form: str) -> str:
        return f"{form}-{len(self._names)}"


def _descriptors(names: Sequence[str]) -> bytes:
    """Return the descriptors of a message with some fields, of which each has its number."""
    library: Any = import_module("google.protobuf.descriptor_pb2")
    file = library.FileDescriptorProto(name="rows.proto", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    inner, row = file.message_type.add(name="Inner"), file.message_type.add(name="Row")
    one, many = library.FieldDescriptorProto.LABEL_OPTIONAL, 3
    inner.field.add(name="a", number=1, type=5, label=one)
    inner.field.add(name="b", number=2, type=9, label=one)
    for number, name in enumerate(names, 1):
        kind = _PROTOBUF_TYPES.get(name, 9)
        field = row.field.add(name=name, number=number, label=many if name == "items" else one)
        if isinstance(kind, str):
            field.type, field.type_name = 11, kind
        else:
            field.type = kind
    return bytes(library.FileDescriptorSet(file=[file]).SerializeToString())


def _measured(source: _Source, rounds: int) -> dict[str, float]:
    """Return the median seconds of each way."""
    found: dict[str, list[float]] = {way: [] for way in (_JSON, _FROM_JSON, *_FORMATS[1:])}
    for number in range(rounds + 1):
        for way in found if number % 2 else reversed(found):
            frame = source.read(way)
            began = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            if number:  # the first one compiles what the others run
                found[way].append(time.perf_counter() - began)
    return {way: statistics.median(seconds) for way, seconds in found.items()}


if __name__ == "__main__":
    main()
