"""The columns of the source, as Spark has them.

Names are those of the old rocketmq-spark, and of `rmq_spark.wire.chunk`, which builds the columns;
only ``brokerName`` is not in the records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Final

from rmq_spark.spark.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

BROKER_NAME: Final = "brokerName"

DDL_TYPES: Final[Mapping[str, str]] = {
    "topic": "string",
    BROKER_NAME: "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "keys": "string",
    "tags": "string",
    "body": "binary",
    "bornTimestamp": "timestamp",
    "storeTimestamp": "timestamp",
    "msgId": "string",
    "offsetMsgId": "string",
    "properties": "map<string,string>",
    "flag": "int",
    "sysFlag": "int",
    "bornHost": "string",
    "storeHost": "string",
    "reconsumeTimes": "int",
    "commitLogOffset": "bigint",
    "preparedTransactionOffset": "bigint",
}
DEFAULT_COLUMNS: Final = tuple(DDL_TYPES)[:9]

SESSION_INDEPENDENT_TYPES: Final[Mapping[str, str]] = {"timestamp": "timestamp_ltz"}
"""The names of types in DDL that do not depend on ``spark.sql.timestampType``."""


def check_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of option ``columns`` by canonical name, by default `DEFAULT_COLUMNS`."""
    return resolve_columns(names, DDL_TYPES) if names else DEFAULT_COLUMNS


def resolve_columns(names: Sequence[str], known: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that option ``columns`` names, by canonical name, from those available."""
    right_names = {name.lower(): name for name in known}
    unknown = [name for name in names if name.lower() not in right_names]
    if unknown:
        listed = ", ".join(right_names.values())
        raise OptionError("columns", f"there is no {', '.join(unknown)}; the columns are {listed}")
    found = [right_names[name.lower()] for name in names]
    twice = sorted(duplicates(found))
    if twice:
        raise OptionError("columns", f"{', '.join(twice)} is named twice. Keep one of them")
    return tuple(found)


def ddl_of(names: Iterable[str]) -> str:
    """Return the schema of these columns as DDL."""
    types = {name: DDL_TYPES[name] for name in names}
    return ", ".join(
        f"{name} {SESSION_INDEPENDENT_TYPES.get(type_, type_)}" for name, type_ in types.items()
    )


def duplicates(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once, in order."""
    return [name for name, count in Counter(names).items() if count > 1]


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Return the exact Arrow types that record batches must have."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  # brings pyarrow: in tasks only

    if "timezone" not in signature(to_arrow_schema).parameters:  # Spark 4.0 and 4.1 always mean UTC
        return to_arrow_schema(schema)
    return to_arrow_schema(schema, timezone="UTC")
