"""Output of commands: tables for people, JSON, YAML and CSV for programs.

    rows of values ──> a table (rich in a terminal, aligned text elsewhere), or -o json|yaml|csv
                       in a terminal without room for it, a line for each value
                       `fitted_lines`: one line for each row, whatever the width

In a terminal, numbers have thousands separators; elsewhere they do not, because programs read them.

Times are in this machine's zone (TZ), which the formats for programs state. Text may come from
other users: tables, JSON and all output in a terminal escape control characters.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

import click
import orjson

from rmq_spark.errors import format_bytes
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rich.table import Table

    from rmq_spark.client.message import MessageExt

FORMATS: Final = ("table", "json", "yaml", "csv")

Row = Mapping[str, object]


class TableLayout(NamedTuple):
    """The columns of a table that stays on one line for each row, see `fitted_lines`.

    Attributes:
        ages: Columns with times, which a table shows as ages.
        optional_columns: Columns that are left out if the table does not fit.
        flexible: Column that is shortened if the table does not fit.
    """

    ages: tuple[str, ...] = ()
    optional_columns: tuple[str, ...] = ()
    flexible: str | None = None


_FOLDED_WIDTH: Final = 12
"""A column of a table may be folded to this width: a word or two, or half of a time."""
_COLUMN_GAP: Final = 3
_GAP: Final = 2
_LIST_ITEMS_MAX: Final = 10
"""Tables show this many items of a list, such as the topics of a group; programs get all."""
_NOT_ASCII: Final = re.compile(r"[^\n -~]")
_ESCAPED_BLANKS: Final = "\x85\xa0\u2028\u2029"
_AGE_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_Function = TypeVar("_Function", bound=Callable[..., Any])


class ByteSize(int):
    """A number of bytes, which a table shows with a unit."""

    def __str__(self) -> str:
        return format_bytes(self)


def queue_fields(queue: MessageQueue) -> dict[str, object]:
    """Return the columns that name a queue."""
    return {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id}


def describe_location(message: MessageExt) -> str:
    """Return the place and the id of a message, in words."""
    queue = message.queue
    return (
        f"the message of {queue.topic} at {queue.broker_name}:{queue.queue_id}"
        f"@{message.queue_offset} ({message.message_id})"
    )


def output_option(function: _Function) -> _Function:
    """Add ``-o``, which a command passes to `show_rows` or `show_document`."""
    return click.option(
        "-o", "--output", type=click.Choice(FORMATS), default=FORMATS[0], show_default=True,
        help="Output format.",
    )(function)  # fmt: skip


def local_time(timestamp_ms: int) -> datetime | None:
    """Return a time in this machine's zone; None for 0 and below, which brokers use for no time."""
    if timestamp_ms <= 0:
        return None
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, timezone.utc).astimezone()
    except (OverflowError, ValueError, OSError):
        return None


def format_age(seconds: float) -> str:
    """Return in words how long ago something was."""
    for unit, text in _AGE_UNITS:
        if seconds >= unit:
            return f"{seconds / unit:.0f} {text} ago"
    return "just now" if seconds > -1 else "in the future"


def format_time_until(seconds: float) -> str:
    """Return in words how long it is until something."""
    for unit, text in _AGE_UNITS:
        if seconds >= unit:
            return f"in {seconds / unit:.0f} {text}"
    return "now"


def escape_unprintable(text: str) -> str:
    """Return a text on one line, with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def show_rows(
    rows: Iterable[Row],
    columns: Sequence[str],
    output: str,
    *,
    empty_text: str,
    layout: TableLayout | None = None,
) -> None:
    """Print rows, which need not have all columns; without rows, ``empty_text`` goes to stderr."""
    rows = [{**dict.fromkeys(columns), **row} for row in rows]
    if output == "table":
        if rows and layout is not None:
            aged = [{**row, **{name: _age(row[name]) for name in layout.ages}} for row in rows]
            lines = fitted_lines(
                aged, columns, optional_columns=layout.optional_columns, flexible=layout.flexible
            )
            sys.stdout.writelines(f"{line}\n" for line in lines)
        elif rows:
            _show_table(rows, columns)
        else:
            sys.stderr.write(f"{empty_text}\n")
    elif output == "csv":
        _show_csv(rows, columns)
    else:
        _show_serialized([_plain_value(row) for row in rows], output)


def show_document(document: Row, output: str) -> None:
    """Print one object: its fields, then the tables among them; CSV is the first table alone."""
    tables = {
        name: value
        for name, value in document.items()
        if isinstance(value, list) and all(isinstance(row, Mapping) for row in value)
    }
    if output == "table":
        fields = {name: value for name, value in document.items() if name not in tables}
        width = max((len(_title(name)) for name in fields), default=0)
        for name, value in fields.items():
            cell = format_cell(value, with_separators=sys.stdout.isatty())
            sys.stdout.write(f"{_title(name):{width}}  {cell}\n")
        for name, rows in tables.items():
            sys.stdout.write(f"\n{_title(name)}{'' if rows else ': none'}\n")
            if rows:
                _show_table(rows, list(rows[0]))
    elif output == "csv":
        rows = next(iter(tables.values()), [document])
        _show_csv(rows, list(rows[0]) if rows else [])
    else:
        _show_serialized(_plain_value(document), output)


def rich_table(rows: Sequence[Row], columns: Sequence[str], title: str | None = None) -> Table:
    """Return a table for a terminal."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415  # only in a terminal
    from rich.table import Table  # noqa: PLC0415  # rich loads slowly
    from rich.text import Text  # noqa: PLC0415  # rich loads slowly

    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    numeric = _numeric(rows, columns)
    for name in columns:
        justify: Literal["left", "right"] = "right" if name in numeric else "left"
        table.add_column(_title(name), justify=justify, overflow="fold")
    for row in rows:
        cells = (format_cell(row[name], with_separators=True) for name in columns)
        table.add_row(*map(Text, cells))  # names must not be read as markup
    return table


def text_lines(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """Return rows as aligned text, below the names of their columns."""
    numeric = _numeric(rows, columns)
    lines, widths = _layout(rows, columns)
    return [
        "  ".join(
            text.rjust(width) if name in numeric else text.ljust(width)
            for name, text, width in zip(columns, line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]


def record_lines(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """Return rows one after the other, each with a line for each of its columns."""
    width = max(len(_title(name)) for name in columns)
    return [
        line
        for number, row in enumerate(rows)
        for line in (
            *([""] if number else []),
            *(
                f"{_title(name):{width}}  {format_cell(row[name], with_separators=True)}"
                for name in columns
            ),
        )
    ]


def fitted_lines(
    rows: Sequence[Row],
    columns: Sequence[str],
    *,
    optional_columns: Sequence[str] = (),
    flexible: str | None = None,
) -> list[str]:
    """Return rows as aligned text, one line each, that fits the terminal if stdout is one.

    Args:
        rows: The rows.
        columns: The columns of the rows.
        optional_columns: Columns that are left out, in this order, as long as the rows do not fit.
        flexible: Column that is shortened if the rows still do not fit.
    """
    is_terminal = sys.stdout.isatty()
    lines, natural = _layout(rows, columns, with_separators=is_terminal)
    widths = dict(zip(columns, natural, strict=True))
    if is_terminal:
        widths = _fitted_widths(widths, terminal_width(), optional_columns, flexible)
    numeric = _numeric(rows, columns)
    texts = []
    for line in lines:
        cells = []
        for name, text in zip(columns, line, strict=True):
            width = widths.get(name)
            if width is not None:
                cut = text if len(text) <= width else f"{text[: width - 1]}…"
                cells.append(cut.rjust(width) if name in numeric else cut.ljust(width))
        texts.append("  ".join(cells).rstrip())
    return [click.style(texts[0], bold=True), *texts[1:]] if is_terminal else texts


def _fitted_widths(
    widths: Mapping[str, int], room: int, optional_columns: Sequence[str], flexible: str | None
) -> dict[str, int]:
    shown = dict(widths)

    def excess() -> int:
        return sum(shown.values()) + _GAP * (len(shown) - 1) - room

    for name in optional_columns:
        if excess() <= max(shown.get(flexible or "", 0) - _FOLDED_WIDTH, 0):
            break
        shown.pop(name, None)
    if flexible in shown and excess() > 0:
        shown[flexible] = max(shown[flexible] - excess(), 1)
    return shown


def terminal_width() -> int:
    """Return the number of columns of the terminal."""
    return shutil.get_terminal_size().columns


def common_values(rows: Sequence[Row], columns: Sequence[str]) -> dict[str, object]:
    """Return the values that all rows have in common, by column; none for fewer than two rows."""
    if len(rows) < 2:
        return {}
    first = rows[0]
    return {name: first[name] for name in columns if all(row[name] == first[name] for row in rows)}


def wrap_text(text: str) -> str:
    """Return a text on lines that fit the terminal, if stdout is one."""
    if not sys.stdout.isatty():
        return text
    return textwrap.fill(
        text,
        terminal_width(),
        break_long_words=False,
        break_on_hyphens=False,
    )


def format_cell(value: object, *, with_separators: bool = False) -> str:
    """Return a value as a table shows it."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    if isinstance(value, float):
        return f"{value:,.2f}" if with_separators else f"{value:.2f}"
    if with_separators and isinstance(value, int) and not isinstance(value, ByteSize):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return (
            ", ".join(
                f"{escape_unprintable(str(name))}={format_cell(each)}"
                for name, each in value.items()
            )
            or "-"
        )
    if isinstance(value, (list, tuple, frozenset)):
        more = f" and {len(value) - _LIST_ITEMS_MAX:,} more" if len(value) > _LIST_ITEMS_MAX else ""
        return ", ".join(map(format_cell, islice(value, _LIST_ITEMS_MAX))) + more or "-"
    return escape_unprintable(str(value))


def json_line(row: Row) -> bytes:
    """Return a row as one line of JSON."""
    return _json_text(orjson.dumps(_plain_value(row))).encode() + b"\n"


def _age(time_of_day: object) -> str | None:
    if not isinstance(time_of_day, datetime):
        return None
    return format_age(time.time() - time_of_day.timestamp())


def _title(name: str) -> str:
    return escape_unprintable(name.replace("_", " "))


def _numeric(rows: Sequence[Row], columns: Sequence[str]) -> set[str]:
    return {name for name in columns if all(_is_number(row[name]) for row in rows)}


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _show_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    if not sys.stdout.isatty():
        sys.stdout.writelines(f"{line}\n" for line in text_lines(rows, columns))
        return
    from rich.console import Console  # noqa: PLC0415  # only in a terminal

    console = Console()
    if _fits(rows, columns, console.width):
        console.print(rich_table(rows, columns))
    else:
        sys.stdout.writelines(f"{line}\n" for line in record_lines(rows, columns))


def _fits(rows: Sequence[Row], columns: Sequence[str], width: int) -> bool:
    """Return whether a terminal is so wide that folded columns are readable."""
    _, widths = _layout(rows, columns)
    return sum(min(each, _FOLDED_WIDTH) + _COLUMN_GAP for each in widths) <= width


def _layout(
    rows: Sequence[Row], columns: Sequence[str], *, with_separators: bool = False
) -> tuple[list[list[str]], list[int]]:
    """Return the texts of a table, its titles first, and the width of each column."""
    lines = [[_title(name) for name in columns]]
    lines += [
        [format_cell(row[name], with_separators=with_separators) for name in columns]
        for row in rows
    ]
    return lines, [max(map(len, each)) for each in zip(*lines, strict=True)]


def _show_csv(rows: Sequence[Row], columns: Sequence[str]) -> None:
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_csv_cell(row[name]) for name in columns])
    write_text(lines.getvalue())


def _csv_cell(value: object) -> object:
    plain = _plain_value(value)
    if isinstance(plain, list):
        return " ".join(map(str, plain))
    if isinstance(plain, dict):
        return orjson.dumps(plain).decode()
    return "" if plain is None else plain


def _show_serialized(plain: object, output: str) -> None:
    if output == "json":
        write_text(_json_text(orjson.dumps(plain, option=orjson.OPT_INDENT_2)) + "\n")
        return
    import yaml  # noqa: PLC0415  # only for -o yaml

    write_text(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def write_text(text: str) -> None:
    """Write text to stdout; in a terminal, escape control characters, except tabs."""
    if sys.stdout.isatty():
        lines = text.split("\n")
        text = "\n".join("\t".join(map(escape_unprintable, line.split("\t"))) for line in lines)
    sys.stdout.write(text)


def _json_text(document: bytes) -> str:
    """Return JSON with further control characters escaped, without a change of meaning.

    JSON itself escapes the controls up to U+001F and no others.
    """
    return _NOT_ASCII.sub(lambda found: _json_character(found[0]), document.decode())


def _json_character(character: str) -> str:
    if character.isprintable() or character.isspace():
        return character if character not in _ESCAPED_BLANKS else f"\\u{ord(character):04x}"
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _plain_value(value: object) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    if isinstance(value, ByteSize):
        return int(value)
    if isinstance(value, Mapping):
        return {str(name): _plain_value(each) for name, each in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(_plain_value, value))
    if isinstance(value, (list, tuple)):
        return [_plain_value(each) for each in value]
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()  # a lone surrogate is no JSON
    return value
