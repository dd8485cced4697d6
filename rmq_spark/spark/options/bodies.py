"""BodyOptions: how bodies are read or written, from the options whose names begin with ``body``.

Contradictory options are refused here, before any column is checked; `rmq_spark.spark.bodies`
derives the columns. The file of option ``bodyDescriptor`` is read on the driver, and its content
goes to tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rmq_spark.spark.errors import OptionError, SetUpError
from rmq_spark.spark.options.table import OptionReader
from rmq_spark.spark.options.values import BodyFormat

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from rmq_spark.spark.schemas.protobuf_schema import MessageSchema

BODY: Final = "body"
_MODULES: Final[Mapping[BodyFormat, str]] = {
    BodyFormat.AVRO: "fastavro",
    BodyFormat.PROTOBUF: "google.protobuf",
}
"""The module that a format needs; the extra that brings it has the name of the format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyOptions:
    """The format of bodies, and the Spark columns that they become or are made from."""

    format: BodyFormat = BodyFormat.BINARY
    schema: StructType | None = None
    """The fields of a body, where options give them."""
    avro_schema: str | None = None
    """The JSON of the Avro schema, where option ``bodySchema`` is one."""
    message: MessageSchema | None = None
    """The message that a body is, with ``bodyFormat=protobuf``."""
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
    found = write_body(options)
    kind, text = found.format, options.text("bodySchema")
    if text is None:
        return found
    if kind in (BodyFormat.BINARY, BodyFormat.TEXT, BodyFormat.PROTOBUF):
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
    return replace(found, schema=schema, avro_schema=avro_schema)


def write_body(options: OptionReader) -> BodyOptions:
    """Parse and check the options for bodies of a sink, which a source has as well."""
    kind: BodyFormat = options["bodyFormat"]
    module, column = _MODULES.get(kind), options.text("bodyColumn")
    try:
        import_module(module or "rmq_spark")
    except ImportError as error:
        raise SetUpError(
            f"bodyFormat={kind.value} needs the module {module}, on the driver and on the workers: "
            f'pip install "rocketpoll[{kind.value}]"'
        ) from error
    if column is not None and kind is BodyFormat.BINARY:
        raise OptionError(
            "bodyColumn",
            "it does not apply to bodyFormat binary. Set bodyFormat, or remove this option",
        )
    found = BodyOptions(format=kind, column=None if column is None else column.strip())
    return _with_message(found, options)


def _with_message(body: BodyOptions, options: OptionReader) -> BodyOptions:
    """Return options with the message of Protobuf bodies."""
    path, name = options.text("bodyDescriptor"), options.text("bodyMessage")
    if body.format is not BodyFormat.PROTOBUF:
        for option, text in (("bodyDescriptor", path), ("bodyMessage", name)):
            if text is not None:
                raise OptionError(
                    option,
                    f"it applies to bodyFormat protobuf only, found {body.format.value}. Set "
                    "bodyFormat, or remove this option",
                )
        return body
    if path is None:
        raise OptionError(
            "bodyDescriptor",
            "bodyFormat=protobuf needs the descriptors of the bodies. Make a file with protoc "
            "--include_imports --descriptor_set_out=FILE, and give its path",
        )
    from rmq_spark.spark.schemas import protobuf_schema  # noqa: PLC0415  # brings pyarrow
    from rmq_spark.spark.schemas.schema_text import nesting_faults  # noqa: PLC0415  # brings pyspark

    try:
        files = Path(path.strip()).read_bytes()
        protobuf_schema.check_files(files)
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise OptionError(
            "bodyDescriptor",
            f"{path} cannot be used: {cause}. Give a file on the driver that protoc "
            "--include_imports --descriptor_set_out=FILE has made",
        ) from None
    try:
        message = protobuf_schema.find_message(files, name and name.strip())
        schema = protobuf_schema.protobuf_columns(message)
    except ValueError as error:
        raise OptionError("bodyMessage", str(error)) from None
    faults = nesting_faults(schema)
    if faults:
        raise OptionError("bodyMessage", "; ".join(faults))
    return replace(body, message=message, schema=schema)
