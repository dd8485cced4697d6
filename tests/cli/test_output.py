"""Command output: tables for people, and formats for programs."""

import io
import json
import re
import sys
from datetime import datetime, timezone
from functools import partial

import pytest
import yaml
from support.programs.terminals import look_like_one

from rmq_spark.cli.shell.output import (
    ByteSize,
    TableLayout,
    escape_unprintable,
    format_cell,
    local_time,
    show_document,
    show_rows,
)

MOMENT = datetime(2026, 11, 23, 9, 0, 0, 123_000, tzinfo=timezone.utc)
ROWS = [
    {"name": "a", "count": 5, "size": ByteSize(2_048), "at": MOMENT, "tags": ("x", "y")},
    {"name": "longer", "count": None, "size": ByteSize(1), "at": None, "tags": ()},
]
COLUMNS = list(ROWS[0])


def shown(capsys, output):
    show_rows(ROWS, COLUMNS, output, empty_text="nothing")
    return capsys.readouterr().out


def test_table_without_a_terminal_is_aligned_text(capsys):
    assert shown(capsys, "table") == (
        "name    count     size  at                       tags\n"
        "a           5  2.0 KiB  2026-11-23 09:00:00.123  x, y\n"
        "longer      -      1 B  -                        -\n"
    )


def test_machine_readable_output_has_raw_values(capsys):
    first, second = json.loads(shown(capsys, "json"))
    assert first == {
        "name": "a", "count": 5, "size": 2_048,
        "at": "2026-11-23T09:00:00.123+00:00", "tags": ["x", "y"],
    }  # fmt: skip
    assert second["count"] is None
    assert yaml.safe_load(shown(capsys, "yaml")) == [first, second]
    assert shown(capsys, "csv").splitlines()[1:] == [
        "a,5,2048,2026-11-23T09:00:00.123+00:00,x y",
        "longer,,1,,",
    ]


def test_empty_table_shows_a_text_and_an_empty_list_in_json(capsys):
    show_rows([], COLUMNS, "table", empty_text="no topics")
    assert capsys.readouterr() == ("", "no topics\n")
    show_rows([], COLUMNS, "json", empty_text="no topics")
    assert capsys.readouterr().out == "[]\n"
    show_rows([], COLUMNS, "csv", empty_text="no topics")
    assert capsys.readouterr().out == "name,count,size,at,tags\n"


def test_document_is_shown_as_fields_and_tables(capsys):
    document = {"a_name": "T", "rows": ROWS, "others": []}
    show_document(document, "table")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a name  T"
    assert lines[2] == "rows"
    assert lines[-1] == "others: none"
    show_document(document, "csv")
    assert capsys.readouterr().out.splitlines()[0] == "name,count,size,at,tags"
    show_document(document, "json")
    assert json.loads(capsys.readouterr().out)["rows"][0]["size"] == 2_048


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_layout_rows_stay_on_one_line_each(monkeypatch):
    rows = [
        {"name": "n" * 50, "count": 12_345, "at": local_time(1_000), "tags": ["t" * 30]},
        {"name": "m", "count": 7, "at": None, "tags": []},
    ]
    layout = TableLayout(ages=("at",), optional_columns=("at",), flexible="name")
    shown = partial(show_rows, rows, ("name", "count", "at", "tags"), "table", empty_text="")
    lines = {}
    look_like_one(monkeypatch)
    for width in (200, 60):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys, "stdout", Terminal())
        shown(layout=layout)
        lines[width] = re.sub("\x1b[^m]*m", "", sys.stdout.getvalue()).splitlines()
        assert len(lines[width]) == 3
        assert max(map(len, lines[width])) <= width
    assert lines[200][1].split()[:2] == ["n" * 50, "12,345"]
    assert "d ago" in lines[200][1]
    assert lines[60][0].split() == ["name", "count", "tags"]
    assert "nnn…  12,345  ttt" in lines[60][1]
    # without a terminal, as if a program reads it
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    shown(layout=layout)
    assert sys.stdout.getvalue().splitlines()[1].split()[:2] == ["n" * 50, "12345"]


def test_terminal_table_escapes_markup_and_control_characters(monkeypatch):
    look_like_one(monkeypatch)
    monkeypatch.setattr(sys, "stdout", Terminal())
    show_rows([{"name": "[red]x[/red]\x1b[2J"}], ["name"], "table", empty_text="")
    assert "[red]x[/red]\\x1b[2J" in sys.stdout.getvalue()


WIDE = {f"column_{number}": f"value-{number}-of-a-row" for number in range(6)}


@pytest.mark.parametrize("width", [1, 20, 80])
def test_narrow_terminal_gets_a_line_per_value_instead_of_a_table(monkeypatch, width):
    look_like_one(monkeypatch)
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", str(width))
    show_rows([WIDE, WIDE], list(WIDE), "table", empty_text="")
    record = [f"column {number}  value-{number}-of-a-row" for number in range(6)]
    assert sys.stdout.getvalue().splitlines() == [*record, "", *record]


@pytest.mark.parametrize(("width", "shown"), [(90, "value-5-of-a"), (200, "value-5-of-a-row")])
def test_wide_terminal_shows_folded_columns(monkeypatch, width, shown):
    look_like_one(monkeypatch)
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", str(width))
    show_rows([WIDE], list(WIDE), "table", empty_text="")
    [row] = [line for line in sys.stdout.getvalue().splitlines() if "value-0" in line]
    assert shown in row


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (True, "yes"), (0.5, "0.50"), ({"a": 1}, "a=1"), ({}, "-"),
        (ByteSize(1536), "1.5 KiB"), (ByteSize(3 << 40), "3.0 TiB"), ("a\tb", "a\\tb"),
        ([], "-"), (["a", 1], "a, 1"), (list(range(10)), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"),
        (tuple(range(1_011)), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 1,001 more"),
    ],
)  # fmt: skip
def test_table_cell_is_one_line(value, text):
    assert format_cell(value) == text


def test_times_unknown_to_a_broker_are_shown_as_none():
    assert local_time(0) is local_time(-1) is local_time(1 << 62) is None
    assert local_time(1_795_424_400_000).timestamp() == 1_795_424_400


def test_printable_characters_are_not_escaped():
    assert escape_unprintable("ünï €") == "ünï €"
    assert escape_unprintable("\x07\u202e") == "\\x07\\u202e"
