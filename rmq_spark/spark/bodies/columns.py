"""The columns of a source with typed bodies: those of messages, and those of bodies.

By default the columns of bodies take the position of ``body``. If the user chooses columns, the
source has only these, and decodes bodies only if one of their columns is among them. A name belongs
either to messages or to bodies, never to both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final

from rmq_spark.spark.errors import OptionError, SchemaError
from rmq_spark.spark.options.bodies import BODY, BodyOptions
from rmq_spark.spark.options.values import BodyFormat
from rmq_spark.spark.schemas.columns import (
    DDL_TYPES,
    DEFAULT_COLUMNS,
    SESSION_INDEPENDENT_TYPES,
    check_columns,
    ddl_of,
    duplicates,
    resolve_columns,
)

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

    from rmq_spark.spark.options.options import ReadOptions


_BINARY_ADVICE: Final = (
    f".schema(...) selects columns of the source: {ddl_of(DDL_TYPES)}. Remove it, and parse the "
    'body with from_json(CAST(body AS STRING), "id BIGINT, name STRING")'
)
_TYPED_ADVICE: Final = (
    ".schema(...) names columns of messages (docs/options.md) and fields of bodies. If both have "
    "the same name, put the body into one struct with option bodyColumn"
)


def source_schema(options: ReadOptions) -> str | StructType:
    """Return the columns of a source without a user-specified schema."""
    if options.body.format is BodyFormat.BINARY:
        return ddl_of(check_columns(options.columns))
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415  # not for binary bodies

    of_body = _body_fields(options.body)
    if not of_body:
        body = options.body
        fault = f": subject {body.subject} gives no columns, because {body.schema_fault}"
        raise OptionError(
            "bodySchema",
            f"bodyFormat={body.format.value} needs the schema of the bodies"
            f"{fault if body.schema_fault else ''}. Give it as "
            '"id BIGINT, name STRING", or with .schema(...)',
        )
    by_name: dict[str, StructField] = {
        name: StructField(name, message_types()[name])
        for name in DDL_TYPES
        if name not in {field.name for field in of_body}
    }
    by_name |= {field.name: field for field in of_body}
    usual: list[str] = []
    for name in DEFAULT_COLUMNS:
        usual += [field.name for field in of_body] if name == BODY else [name]
    chosen = resolve_columns(options.columns, by_name) or usual
    return StructType([by_name[name] for name in chosen])


def check_schema(schema: StructType, options: ReadOptions) -> None:
    """Check the schema that Spark passes, the user's own or that of `source_schema`."""
    body = options.body
    is_binary = body.format is BodyFormat.BINARY
    known = {field.name: field.dataType for field in _body_fields(body)}
    wrong = [] if schema.fields else ["it has no columns"]  # Spark 4.0 loses such rows
    has_body = bool(known)
    for field in schema.fields:
        if field.name in known:
            wrong += _type_faults(field, known[field.name])
        elif field.name in DDL_TYPES and field.name != body.column:
            wrong += _type_faults(field, message_types()[field.name], is_message=not is_binary)
        elif is_binary:
            wrong.append(f"there is no column {field.name}")
        elif has_body and not (body.column and body.schema is None):
            wrong.append(f"there is no column {field.name}, of messages or of bodies")
        elif body.column not in (None, field.name):
            wrong.append(f"there is no column {field.name}: bodies are in column {body.column}")
        else:
            wrong += _body_field_faults(field, body)
            continue
    own = [field for field in schema.fields if is_body_column(field.name, body)]
    if body.schema is None and body.has_fields and not own:
        wrong.append(f"it has no column for the bodies of bodyFormat={body.format.value}")
    names = schema.fieldNames()
    wrong += [f"it names {name} twice" for name in duplicates(names)]
    if wrong:
        advice = _BINARY_ADVICE if is_binary else _TYPED_ADVICE
        raise SchemaError(
            f"the schema given to the source does not fit: {'; '.join(wrong)}. {advice}"
        )
    known_names = DDL_TYPES if is_binary else names
    if options.columns and resolve_columns(options.columns, known_names) != tuple(names):
        raise OptionError(
            "columns",
            f"it names {', '.join(options.columns)}, but the schema given to the source "
            f"{', '.join(names)}. Keep one of the two",
        )


def with_body_schema(options: ReadOptions, schema: StructType) -> ReadOptions:
    """Return options that describe the bodies, even if only the user's schema does so."""
    body = options.body
    if not body.has_fields or body.schema is not None:
        return options
    from pyspark.sql.types import StructType  # noqa: PLC0415  # not for binary bodies

    fields = [field for field in schema.fields if is_body_column(field.name, body)]
    kind = fields[0].dataType if body.column and fields else StructType(fields)
    found = kind if isinstance(kind, StructType) else None
    return replace(options, body=replace(body, schema=found))


def is_body_column(name: str, body: BodyOptions) -> bool:
    """Return whether a column of a checked schema belongs to bodies, not to messages."""
    if body.format is BodyFormat.BINARY:
        return False
    if body.format is BodyFormat.TEXT:
        return name == (body.column or BODY)
    return name == body.column if body.column else name not in DDL_TYPES


@cache
def message_types() -> Mapping[str, DataType]:
    """Return the type of each column of messages."""
    from rmq_spark.spark.schemas.schema_text import parse_schema  # noqa: PLC0415  # brings pyspark

    return {field.name: field.dataType for field in parse_schema(ddl_of(DDL_TYPES)).fields}


def _body_fields(body: BodyOptions) -> list[StructField]:
    from pyspark.sql.types import StringType, StructField  # noqa: PLC0415  # not for binary bodies

    if body.format is BodyFormat.TEXT:
        found = [StructField(body.column or BODY, StringType())]
    elif body.schema is None:
        found = []
    elif body.column:
        found = [StructField(body.column, body.schema)]
    else:
        found = body.schema.fields
    reserved = {name.lower() for name in DDL_TYPES}
    if body.column is None or body.column == BODY:
        reserved -= {BODY} if body.column or body.format is BodyFormat.TEXT else set()
    clashes = [field.name for field in found if field.name.lower() in reserved]
    if body.column and body.column.lower() in reserved:
        raise OptionError(
            "bodyColumn", f"messages have a column {body.column}. Choose another name"
        )
    if clashes:
        raise OptionError(
            "bodySchema",
            f"messages have columns {', '.join(clashes)}, too. Name one column for the whole body "
            "in option bodyColumn, for example bodyColumn=value",
        )
    return found


def _body_field_faults(field: StructField, body: BodyOptions) -> list[str]:
    from pyspark.sql.types import StructType  # noqa: PLC0415  # not for binary bodies

    from rmq_spark.spark.schemas.schema_text import schema_faults  # noqa: PLC0415  # brings pyspark

    if not body.column:
        return _name_clashes(field.name) + schema_faults(StructType([field]))
    if not isinstance(field.dataType, StructType):
        return [f"column {field.name} is {field.dataType.simpleString()}, not a struct"]
    return schema_faults(StructType([field]))


def _name_clashes(name: str) -> list[str]:
    if name.lower() not in {each.lower() for each in DDL_TYPES}:
        return []
    return [f"column {name} is a column of messages: write it in the same case, or set bodyColumn"]


def _type_faults(field: StructField, needed: DataType, *, is_message: bool = False) -> list[str]:
    kind, right = field.dataType.simpleString(), needed.simpleString()
    if kind != right:
        whose = "of messages " if is_message else ""
        right = SESSION_INDEPENDENT_TYPES.get(right, right)
        return [f"column {field.name} {whose}is {right}, not {kind}"]
    if not field.nullable:  # Spark would believe it, and drop rows or fail on the first null
        return [f"column {field.name} can be null: declare it without NOT NULL"]
    return []
