"""The columns of the sink: their names and types, and the check of a data frame's columns.

The check runs on the driver, before any row is read. It ignores columns that only the source has
(`IGNORED_COLUMNS`), so that a topic can be written as it was read. It refuses any other column,
because it may be a misspelled one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq_spark.errors import nearest_name
from rmq_spark.spark.errors import SchemaError
from rmq_spark.spark.options.bodies import BINARY_BODIES, BodyOptions
from rmq_spark.spark.options.values import BodyFormat
from rmq_spark.spark.schemas.columns import BROKER_NAME, DDL_TYPES

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BODY: Final = "body"
TOPIC: Final = "topic"
KEYS: Final = "keys"
TAGS: Final = "tags"
PROPERTIES: Final = "properties"
FLAG: Final = "flag"
DELAY_LEVEL: Final = "delayLevel"
DELIVER_AT: Final = "deliverAt"
QUEUE_ID: Final = "queueId"
SHARDING_KEY: Final = "shardingKey"


_NUMBER: Final = ("int", "smallint", "tinyint", "bigint")

SINK_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    BODY: ("binary", "string"),
    TOPIC: ("string",),
    KEYS: ("string", "array<string>"),
    TAGS: ("string",),
    PROPERTIES: ("map<string,string>",),
    FLAG: _NUMBER,
    DELAY_LEVEL: _NUMBER,
    DELIVER_AT: ("timestamp",),
    QUEUE_ID: _NUMBER,
    BROKER_NAME: ("string",),
    SHARDING_KEY: ("string",),
}
"""The types that a column may have, by its name."""

IGNORED_COLUMNS: Final = frozenset(DDL_TYPES) - SINK_COLUMNS.keys()
"""Columns of the source that a sink ignores, because the broker sets their values."""

_COLLATION: Final = re.compile(r" collate \w+")
_ADVICE: Final = (
    "drop it with .drop({0!r}), or move it into column properties, a map<string,string>"
)


class SinkColumn(NamedTuple):
    """A column that is sent: its position in a row, and which of the allowed types it has."""

    name: str
    position: int
    kind: str


def check_sink_columns(
    schema: StructType, *, has_topic: bool, body: BodyOptions = BINARY_BODIES
) -> tuple[SinkColumn, ...]:
    """Return the columns of a data frame that are sent, by their canonical names.

    Encoded bodies are one more column, after all others. ``has_topic`` means that all rows go to
    one topic; a column of that name is then ignored.
    """
    right_names = {name.lower(): name for name in (*SINK_COLUMNS, *IGNORED_COLUMNS)}
    wrong: list[str] = []
    found: dict[str, SinkColumn] = {}
    of_body = body_positions(schema, body)
    if body.format is not BodyFormat.BINARY:
        wrong += _body_faults(schema, body, of_body)
        is_encoded = body.has_fields or not of_body
        kind, last = ("binary", len(schema.fields)) if is_encoded else ("string", of_body[0])
        found[BODY] = SinkColumn(BODY, last, kind)
    for position, field in enumerate(schema.fields):
        if position in of_body:
            continue
        name = right_names.get(field.name.lower())
        if name is None:
            wrong.append(_unknown_column(field.name))
        elif name in found and not (name == BODY and of_body):
            wrong.append(f"column {name} occurs twice: keep one")
        elif name in found:
            continue  # reported already
        elif name in SINK_COLUMNS:
            kind = _COLLATION.sub("", field.dataType.simpleString())
            found[name] = SinkColumn(name, position, kind)
            wrong += _type_faults(name, kind)
    wrong += _combination_faults(found, has_topic=has_topic)
    if wrong:
        raise SchemaError(f"these rows cannot be written to rocketpoll: {'; '.join(wrong)}")
    if has_topic:
        found.pop(TOPIC, None)
    return tuple(found.values())


def body_positions(schema: StructType, body: BodyOptions) -> tuple[int, ...]:
    """Return the positions of the columns that a format encodes as bodies; often none."""
    if body.format is BodyFormat.BINARY:
        return ()
    names = [field.name.lower() for field in schema.fields]
    if body.column or not body.has_fields:
        name = (body.column or BODY).lower()
        return tuple(at for at, each in enumerate(names) if each == name)
    own = {name.lower() for name in (*SINK_COLUMNS, *IGNORED_COLUMNS)}
    return tuple(at for at, each in enumerate(names) if each not in own)


def _body_faults(schema: StructType, body: BodyOptions, of_body: Sequence[int]) -> list[str]:
    from pyspark.sql.types import StringType, StructType  # noqa: PLC0415  # not for binary bodies

    from rmq_spark.spark.schemas.avro_schema import avro_name_faults  # noqa: PLC0415  # brings pyspark
    from rmq_spark.spark.schemas.schema_text import type_mismatches, writable_schema_faults  # noqa: PLC0415  # brings pyspark

    fields = [schema.fields[at] for at in of_body]
    if not fields or (body.column and len(fields) > 1):
        count = "no" if not fields else "more than one"
        needed = f"column {body.column or BODY}" if body.column or not body.has_fields else "column"
        return [f"there is {count} {needed} for the bodies of bodyFormat={body.format.value}"]
    if not body.has_fields:
        return (
            []
            if isinstance(fields[0].dataType, StringType)
            else [f"column {fields[0].name} is {fields[0].dataType.simpleString()}, not string"]
        )
    kind = fields[0].dataType if body.column else StructType(fields)
    if not isinstance(kind, StructType):
        return [f"column {body.column} is {kind.simpleString()}, not a struct: use struct(...)"]
    wrong = (
        writable_schema_faults(kind) if body.schema is None else type_mismatches(kind, body.schema)
    )
    if body.format is BodyFormat.AVRO:
        wrong += avro_name_faults(kind)
    if any(field.name.lower() == BODY for field in schema.fields) and body.column != BODY:
        wrong.append(
            f"there is a column body, but bodyFormat={body.format.value} makes the body of "
            f"{', '.join(field.name for field in fields)}: drop it"
        )
    return wrong


def _type_faults(name: str, kind: str) -> list[str]:
    if kind in SINK_COLUMNS[name]:
        return []
    needed = " or ".join(SINK_COLUMNS[name])
    if name == BODY:
        return [f"column body is {kind}, not {needed}: use to_json(struct(...)), or cast it"]
    return [f"column {name} is {kind}, not {needed}: cast it"]


def _combination_faults(found: Mapping[str, SinkColumn], *, has_topic: bool) -> list[str]:
    wrong = []
    if BODY not in found:
        wrong.append("there is no column body (string or binary), the body of the messages")
    if TOPIC not in found and not has_topic:
        wrong.append("the destination is missing: set option topic, or add a column topic")
    if QUEUE_ID in found and SHARDING_KEY in found:
        wrong.append("columns queueId and shardingKey both choose the queue: drop one of them")
    if BROKER_NAME in found and QUEUE_ID not in found:
        wrong.append("column brokerName needs column queueId: add queueId, or drop brokerName")
    return wrong


def _unknown_column(name: str) -> str:
    nearest = nearest_name(name, SINK_COLUMNS)
    if nearest is not None:
        return f"there is no column {name} (is it {nearest}?): rename it, or {_ADVICE.format(name)}"
    if name.lower() in ("value", "key"):
        own_name = BODY if name.lower() == "value" else KEYS
        return (
            f"column {name} is Kafka's, and is named {own_name} here: rename it with "
            f".withColumnRenamed({name!r}, {own_name!r})"
        )
    return f"there is no column {name}, only {', '.join(SINK_COLUMNS)}: {_ADVICE.format(name)}"
