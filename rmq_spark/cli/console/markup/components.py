"""Page components: tables, facts, cards, badges, times, empty states, alerts.

Each component defines the look of one thing in one place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from typing import Final, NamedTuple

from rmq_spark.cli.console.markup.html import NOTHING, Child, Html, el, join, path
from rmq_spark.cli.shell.output import (
    ByteSize,
    format_age,
    format_cell,
    format_time_until,
    local_time,
)

PAGE_ROWS: Final = 50
"""Rows of a page of topics or groups."""

_FULL_RATIO: Final = 0.85
_NEARLY_FULL_RATIO: Final = 0.7


class HtmlTableRow(NamedTuple):
    """A row of a table; ``href`` is its link, if it has one."""

    cells: Sequence[Child]
    href: str | None = None


def table(columns: Sequence[str], rows: Iterable[HtmlTableRow]) -> Html:
    """Return a table in a card; keys move through its rows, and open their links.

    A column is its title and the classes of its cells, such as ``"Messages.number.wide"``:
    ``number`` for figures (None is shown as a dash), ``wide`` for a column that phones do not show,
    ``grow`` for the column that takes the remaining width, ``stamp`` for cells made by `timestamp`.
    """
    titles, kinds = zip(*(column.partition(".")[::2] for column in columns), strict=True)
    head = el(
        "tr",
        (
            el(f"th.{kind}", title, zone_name() if "stamp" in kind else None, scope="col")
            for title, kind in zip(titles, kinds, strict=True)
        ),
    )
    lines = [
        el(
            "tr",
            (
                el(f"td.{kind}", _value(each) if "number" in kind else each)
                for kind, each in zip(kinds, row.cells, strict=True)
            ),
            data_href=row.href,
        )
        for row in rows
    ]
    return el("div.card.scroll", el("table", el("thead", head), el("tbody", lines)))


def card(title: str, *children: Child, header_content: Child = None) -> Html:
    """Return a section with a heading."""
    return el("section", el("header.section-head", el("h2", title), header_content), children)


def live_region(name: str, *children: Child) -> Html:
    """Return a part of a page that the script reloads every few seconds."""
    return el("div", children, id=name, data_live=True)


def facts(pairs: Iterable[tuple[str, Child]]) -> Html:
    """Return names with their values, for one subject."""
    return el(
        "dl.facts", (el("div", el("dt", name), el("dd", _value(value))) for name, value in pairs)
    )


def figures(pairs: Iterable[tuple[str, Child]]) -> Html:
    """Return a few large figures side by side."""
    return el(
        "div.figures",
        (
            el("div.figure", el("span.figure-name", name), el("span.figure-value", _value(value)))
            for name, value in pairs
        ),
    )


def badge(text: str, tone: str = "plain") -> Html:
    """Return a short word in a tone: ``good``, ``warn``, ``bad`` or ``plain``."""
    return el(f"span.badge.{tone}", text)


def empty_state(title: str, *text: Child, command: Html | None = None) -> Html:
    """Return the text for an empty list: what would be here, and how to get it."""
    return el("div.card.empty", el("h3", title), el("p", text), command)


def command_box(line: str, note: str | None = None) -> Html:
    """Return a command line with a button that copies it, and a note on running it."""
    return join(
        el("div.command", el("pre", _command_code(line)), _copy_button("command")),
        None if note is None else el("p.hint", note),
    )


def inline_command(line: str) -> Html:
    """Return a command line within a sentence, with a button that copies it."""
    return el("span.command.inline", _command_code(line), _copy_button("command"))


def copied_value(name: str, text: str) -> Html:
    """Return a value, such as an id, with a button that copies it."""
    return el("span.command.value", el("code", text), _copy_button(name))


def _command_code(line: str) -> Html:
    """Return a command line that browsers break between words, not after the dashes of options."""
    words = [part for word in line.split(" ") for part in (" ", el("span.word", word))]
    return el("code", words[1:])


def _copy_button(what: str) -> Html:
    return join(
        el("button.small", "Copy", type="button", data_copy=what, aria_label=f"Copy {what}"),
        el("span.unseen", role="status"),
    )


def alert(problem: Child, *text: Child) -> Html:
    """Return the box that reports a problem and its remedy."""
    return el("div.card.trouble", el("h3", problem), (el("p", each) for each in text), role="alert")


def _value(value: Child) -> Child:
    """Return a number with thousands separators, a dash for None, anything else as it is."""
    if value is None:
        return NO_VALUE
    return f"{value:,.0f}" if isinstance(value, (int, float)) else value


def rate(value: float | None) -> str:
    """Return a number per second as text."""
    return "-" if value is None else f"{value:,.1f}/s"


def size(count: float) -> str:
    """Return a number of bytes with a unit."""
    return str(ByteSize(count))


def age(timestamp_ms: int | None) -> Html:
    """Return how long ago a time (ms) was, with the time as tooltip; a dash for none."""
    return _relative_time(timestamp_ms, lambda seconds: format_age(-seconds))


def time_until(timestamp_ms: int) -> Html:
    """Return how long it is until a time (ms), with the time as tooltip; a dash for none."""
    return _relative_time(timestamp_ms, format_time_until)


def _relative_time(timestamp_ms: int | None, describe: Callable[[float], str]) -> Html:
    found = local_time(timestamp_ms or 0)
    if found is None:
        return NO_VALUE
    return el(
        "time",
        describe(found.timestamp() - time.time()),
        datetime=found.isoformat(timespec="milliseconds"),
        title=f"{format_cell(found)} {found:%Z}",
    )


def timestamp(timestamp_ms: int) -> Html:
    """Return a time with its date and zone; a dash for 0 and below, which brokers use for no time.

    Tables have the zone in the heading, and no date if all their times are of today. Times are in
    this machine's zone; the script changes them to the browser's.
    """
    found = local_time(timestamp_ms)
    if found is None:
        return NO_VALUE
    day, _, clock = format_cell(found).partition(" ")
    is_today = found.date() == datetime.now(timezone.utc).astimezone().date()
    return el(
        "time.stamp" if is_today else "time.stamp.other-day",
        el("span.day", f"{day} "),
        el("span.clock", clock),
        zone_name(),
        datetime=found.isoformat(timespec="milliseconds"),
        title=f"{day} {clock} {found:%Z}",
    )


def zone_name() -> Html:
    """Return the zone of this machine; the script shows the browser's instead."""
    return el("span.zone", f" {datetime.now(timezone.utc).astimezone():%Z}")


def pagination(count: int, page_number: int, href: Callable[[int], str]) -> Html:
    """Return the footer of a table of ``count`` rows; ``href`` gives the path of a page."""
    if count <= PAGE_ROWS:
        return NOTHING
    first = (page_number - 1) * PAGE_ROWS + 1
    return el(
        "nav.pages",
        el("span", f"{first:,}-{min(first + PAGE_ROWS - 1, count):,} of {count:,}"),
        el(
            "span",
            el("a.button", "Previous", href=href(page_number - 1)) if page_number > 1 else None,
            el("a.button", "Next", href=href(page_number + 1))
            if page_number * PAGE_ROWS < count
            else None,
        ),
        aria_label="Pages",
    )


def name_filter(action: str, query: str, *fields: Child) -> Html:
    """Return the form that filters a list by name; ``fields`` are submitted with it."""
    return el(
        "form.filter",
        el(
            "input",
            type="search",
            name="q",
            value=query,
            placeholder="Filter by name",
            aria_label="Filter by name",
            autocomplete="off",
        ),
        fields,
        action=action,
    )


def tabs(links: Iterable[tuple[str, str]], chosen: str) -> Html:
    """Return tabs, by title and link."""
    return el(
        "nav.tabs",
        (
            el("a.tab", title, href=href, aria_current="page" if title == chosen else None)
            for title, href in links
        ),
        aria_label="Parts",
    )


def share_bar(ratio: float | None) -> Html:
    """Return a part of a whole, as a bar with its percentage; a dash if it is not known."""
    return NO_VALUE if ratio is None else _bar(ratio, "plain")


def fill_bar(ratio: float | None) -> Html:
    """Return a fill level, as a bar that warns when it is high; a dash if it is not known."""
    if ratio is None:
        return NO_VALUE
    return _bar(
        ratio, "bad" if ratio >= _FULL_RATIO else "warn" if ratio >= _NEARLY_FULL_RATIO else "plain"
    )


def truncated(text: str) -> Html:
    """Return a long name, cut if the table would become too wide; the tooltip shows all of it."""
    return el("span.clip", text, title=text)


def _bar(ratio: float, tone: str) -> Html:
    return el(
        "span.part",
        el(
            "svg.bar",
            el("rect.bar-back", width=100, height=6, rx=3),
            el(f"rect.bar-{tone}", width=round(max(min(ratio, 1), 0.01) * 100), height=6, rx=3),
            viewBox="0 0 100 6",
            aria_hidden="true",
        ),
        el("span.part-text", f"{ratio:.0%}"),
    )


def sign_in_path(next_path: str) -> str:
    """Return the path of the sign-in page that then leads to another path."""
    return path("sign-in", next="" if next_path == "/" else next_path)


def hidden_fields(pairs: Iterable[tuple[str, object]]) -> list[Html]:
    """Return hidden fields of a form."""
    return [el("input", type="hidden", name=name, value=str(value)) for name, value in pairs]


NO_VALUE: Final = el("span.none", "-")
