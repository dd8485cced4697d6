"""BodyOptions: how bodies are read or written, from ``bodyFormat``, ``bodySchema``, ``bodyColumn``.

Contradictory options are refused here, before any column is checked; `rmq_spark.spark.bodies`
derives the columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from rmq_spark.spark.errors import OptionError, SetUpError
from rmq_spark.spark.options.table import OptionReader
from rmq_spark.spark.options.values import BodyFormat

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BODY: Final = "body"


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyOptions:
    """The format of bodies, and the Spark columns that they become or are made from."""

    format: BodyFormat = BodyFormat.BINARY
    schema: StructType | None = None
    """The fields of a body, where option ``bodySchema`` gives them."""
    avro_schema: str | None = None
    """The JSON of the Avro schema, where option ``bodySchema`` is one."""
    column: str | None = None
    """The one column that holds a body, as a struct, or as a text."""

    @property
    def has_fields(self) -> bool:
        """True if a body is an object with fields."""
        return self.format not in (BodyFormat.BINARY, BodyFormat.TEXT)


BINARY_BODIES: Final = BodyOptions()
"""Bodies as they are: bytes, in the column of that name."""


def read_body(options: OptionReader) -> BodyOptions:
    """Parse and check the options for bodies of a source."""
    kind, column = _format_and_column(options)
    text = options.text("bodySchema")
    if text is None:
        return BodyOptions(format=kind, column=column)
    if kind in (BodyFormat.BINARY, BodyFormat.TEXT):
        raise OptionError(
            "bodySchema",
            f"it applies to bodyFormat json, avro and msgpack only, found {kind.value}. Set "
            "bodyFormat, or remove this option",
        )
    from rmq_spark.spark.schemas.schema_text import parse_schema, schema_faults  # noqa: PLC0415  # brings pyspark

    avro_schema: str | None = None
    try:
        if kind is BodyFormat.AVRO and '"record"' in text:
            from rmq_spark.spark.schemas.avro_schema import check_avro_schema, spark_schema_of  # noqa: PLC0415  # brings pyarrow

            schema, avro_schema = spark_schema_of(text), text
            check_avro_schema(text)
        else:
            schema = parse_schema(text)
    except ValueError as error:
        raise OptionError("bodySchema", f"{error}: {text!r}") from None
    faults = schema_faults(schema)
    if kind is BodyFormat.AVRO and avro_schema is None:
        from rmq_spark.spark.schemas.avro_schema import avro_name_faults  # noqa: PLC0415  # the same

        faults += avro_name_faults(schema)
    if faults:
        raise OptionError("bodySchema", "; ".join(faults))
    return BodyOptions(format=kind, schema=schema, avro_schema=avro_schema, column=column)


def write_body(options: OptionReader) -> BodyOptions:
    """Parse and check the options for bodies of a sink."""
    kind, column = _format_and_column(options)
    return BodyOptions(format=kind, column=column)


def _format_and_column(options: OptionReader) -> tuple[BodyFormat, str | None]:
    kind: BodyFormat = options["bodyFormat"]
    if kind is BodyFormat.AVRO:
        try:
            import_module("fastavro")
        except ImportError as error:
            raise SetUpError(
                "bodyFormat=avro needs the module fastavro, on the driver and on the workers: pip "
                'install "rocketpoll[avro]"'
            ) from error
    column = options.text("bodyColumn")
    if column is not None and kind is BodyFormat.BINARY:
        raise OptionError(
            "bodyColumn",
            "it does not apply to bodyFormat binary. Set bodyFormat, or remove this option",
        )
    return kind, None if column is None else column.strip()
