"""``rocketpoll sql init``: the SQL statements with which Spark reads topics as tables.

    CREATE TABLE messages USING rocketpoll          one for all topics without columns of their own
    CREATE TABLE orders_rows (id BIGINT, ...)       one for each topic with columns
    CREATE VIEW orders AS SELECT * FROM ... WITH    one for each topic; it keeps address and topic

Spark passes no options of a table to a source in Python; therefore queries and views have them.
Names in a catalog consist of letters, digits and underscores, and ignore case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import click

from rmq_spark.cli.shell.command_tree import CommandGroup
from rmq_spark.cli.shell.connection import ClusterAccess, full_name_options
from rmq_spark.cli.shell.failures import Failure
from rmq_spark.cli.shell.output import write_text
from rmq_spark.spark.schemas.columns import DDL_TYPES
from rmq_spark.wire.names import is_internal_topic

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_spark.client.admin.admin import Admin

_UNFIT_IN_NAMES: Final = re.compile(r"[^0-9A-Za-z_]")
_POSITION_COLUMNS: Final = (
    *("keys", "tags", "brokerName", "queueId", "queueOffset", "bornTimestamp", "storeTimestamp"),
)
"""The columns of messages that a table has beside those of bodies."""

_MESSAGE_COLUMNS: Final = frozenset(name.lower() for name in DDL_TYPES)


@click.group(cls=CommandGroup)
def sql() -> None:
    """Use topics as tables of Spark SQL."""


@sql.command(
    example="rocketpoll sql init > topics.sql\n"
    "rocketpoll sql init orders bills --infer 100\n"
    "rocketpoll sql init orders --columns 'orders=id BIGINT, total DOUBLE'"
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--columns", "texts", multiple=True, metavar="TOPIC=COLUMNS",
              help="Columns of a topic whose bodies are JSON objects. Repeatable.")  # fmt: skip
@click.option("--infer", "sample", type=click.IntRange(0), default=0, show_default=True,
              metavar="N", help="Derive the columns of JSON bodies from the N newest messages of "
              "each queue.")  # fmt: skip
@click.option("--prefix", default="", help="Begin all names with this, for example a schema and a "
              "dot.")  # fmt: skip
@full_name_options
def init(
    topics: tuple[str, ...],
    texts: tuple[str, ...],
    sample: int,
    prefix: str,
    *,
    access: ClusterAccess,
) -> None:
    """Print CREATE TABLE and CREATE VIEW statements for topics, by default for all.

    Run them with spark-sql -f FILE, or each with spark.sql(). The text has no credentials: queries
    take them from the environment of the driver.
    """
    columns = dict(_parse_columns(text) for text in texts)
    with access.admin() as admin:
        for topic in dict.fromkeys((*topics, *columns)):
            admin.topic_offsets(topic)  # an unknown topic raises an error
        chosen = tuple(dict.fromkeys(topics)) or _user_topics(admin)
        inferred: dict[str, str] = {}
        for topic in chosen if sample else ():
            if topic not in columns:
                found = infer_columns(_newest_bodies(admin, topic, sample))
                if found:
                    inferred[topic] = found
    for line in statements(chosen, {**inferred, **columns}, access.name_servers, prefix):
        write_text(line)


def statements(
    topics: tuple[str, ...], columns: Mapping[str, str], name_servers: str, prefix: str = ""
) -> Iterator[str]:
    """Yield the statements for these topics; those with ``columns`` have JSON bodies."""
    used: set[str] = set()
    views = {topic: _free_name(topic, used) for topic in topics}
    messages = _free_name("messages", used)
    if any(topic not in columns for topic in topics):
        yield f"CREATE TABLE IF NOT EXISTS {prefix}{messages} USING rocketpoll;\n"
    for topic, view in views.items():
        options = {"namesrvAddr": name_servers, "topic": topic}
        table = messages
        if topic in columns:
            options["bodyFormat"] = "json"
            table = _free_name(f"{topic}_rows", used)
            position_columns = ", ".join(
                f"{name} {DDL_TYPES[name].upper()}" for name in _POSITION_COLUMNS
            )
            yield f"\nCREATE TABLE IF NOT EXISTS {prefix}{table} (\n"
            yield f"  {columns[topic]},\n  {position_columns}\n) USING rocketpoll;\n"
        clause = ", ".join(f"'{name}' = {_quote(text)}" for name, text in options.items())
        yield f"\nCREATE OR REPLACE VIEW {prefix}{view} AS\n"
        yield f"SELECT * FROM {prefix}{table} WITH ({clause});\n"  # noqa: S608  # text for the user to run


def column_names(columns: str) -> list[str]:
    """Return the names of the outermost columns of a DDL text."""
    names, depth, is_quoted, start = [], 0, False, 0
    for at, character in enumerate(f"{columns},"):
        if character == "`":
            is_quoted = not is_quoted
        elif is_quoted:
            continue
        elif character in "<(":
            depth += 1
        elif character in ">)":
            depth -= 1
        elif character == "," and not depth:
            text = columns[start:at].strip()
            start = at + 1
            if text.startswith("`"):
                names.append(text[1:].partition("`")[0])
            elif text:
                names.append(text.split()[0].rstrip(":"))
    return names


def infer_columns(bodies: list[bytes]) -> str | None:
    """Return the columns of JSON objects as DDL; None if bodies are not objects of one type.

    Fields with the name of a column of messages are left out.
    """
    import pyarrow as pa  # noqa: PLC0415  # --help does not need it
    import pyarrow.json as pa_json  # noqa: PLC0415  # --help needs no pyarrow

    lines = b"\n".join(body.replace(b"\n", b" ") for body in bodies)
    options = pa_json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    try:
        found = pa_json.read_json(pa.py_buffer(lines), read_options=options) if bodies else None
    except pa.ArrowInvalid:
        return None
    if found is None or not found.num_columns or found.num_rows != len(bodies):
        return None
    fields = [field for field in found.schema if field.name.lower() not in _MESSAGE_COLUMNS]
    if not fields or len({field.name.lower() for field in fields}) < len(fields):
        return None
    return ", ".join(f"{_identifier(field.name)} {_sql_type(field.type)}" for field in fields)


def _sql_type(kind: pa.DataType) -> str:
    """Return the SQL type for what a JSON parser has found; STRING for dates and nulls."""
    import pyarrow as pa  # noqa: PLC0415  # --help does not need it

    if pa.types.is_boolean(kind):
        return "BOOLEAN"
    if pa.types.is_integer(kind):
        return "BIGINT"
    if pa.types.is_floating(kind):
        return "DOUBLE"
    if pa.types.is_list(kind):
        return f"ARRAY<{_sql_type(kind.value_type)}>"
    if pa.types.is_struct(kind) and kind.num_fields:
        fields = (kind.field(at) for at in range(kind.num_fields))
        inner = (f"{_identifier(field.name)}: {_sql_type(field.type)}" for field in fields)
        return f"STRUCT<{', '.join(inner)}>"
    return "STRING"


def _user_topics(admin: Admin) -> tuple[str, ...]:
    tables = admin.all_topic_configs()
    own = {*tables, *admin.cluster_info().cluster_addr_table}
    names = sorted({name for table in tables.values() for name in table})
    found = tuple(name for name in names if not is_internal_topic(name, own))
    if not found:
        raise Failure("the cluster has no topics", "Create one: rocketpoll topic create orders")
    return found


def _newest_bodies(admin: Admin, topic: str, count: int) -> list[bytes]:
    """Return the bodies of the newest messages of each queue that can be read."""
    start = {
        queue: max(bounds.min_offset, bounds.max_offset - count)
        for queue, bounds in admin.topic_offsets(topic).items()
    }
    table = admin.read_table(topic, start=start, columns=["body"], on_bad_record="skip")
    bodies: list[bytes] = table.column("body").to_pylist()
    return bodies


def _parse_columns(text: str) -> tuple[str, str]:
    topic, separator, columns = text.partition("=")
    names = column_names(columns)
    if not separator or not names:
        raise click.UsageError(
            f"--columns {text!r}: no columns. Write TOPIC=COLUMNS, for example "
            "'orders=id BIGINT, name STRING'"
        )
    reserved = [name for name in names if name.lower() in _MESSAGE_COLUMNS]
    if reserved:
        raise click.UsageError(
            f"--columns {text!r}: {', '.join(reserved)} is a column of messages. Leave it out"
        )
    return topic.strip(), columns.strip()


def _free_name(text: str, used: set[str]) -> str:
    """Return a name for a table or view that is not used yet, and remember it."""
    plain = _UNFIT_IN_NAMES.sub("_", text)
    name, number = plain, 2
    while name.lower() in used:
        name, number = f"{plain}_{number}", number + 1
    used.add(name.lower())
    return f"`{name}`"


def _identifier(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
