"""Health check: the result of one check, and the report of many for people.

    ok       name server 127.0.0.1:9876  answers, knows 1 broker
    FAIL     group ledger                stuck in payments broker-a:0
                                         fix: run rocketpoll group describe ledger

``rocketpoll cluster health`` and ``rocketpoll doctor`` print such reports; the console shows checks
of brokers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Final, NamedTuple

from rmq_spark.cli.shell.output import Row, escape_unprintable

_SUBJECT_WIDTH_MAX: Final = 28
_TEXT_WIDTH_MIN: Final = 30


class HealthCheck(NamedTuple):
    """The result of one check.

    Attributes:
        subject: What was checked.
        detail: What was found.
        remedy: What to do, as an imperative; None if all is well.
        is_warning: Whether the report counts as healthy in spite of this problem.
        is_skipped: Whether nothing was checked; ``detail`` says why.
    """

    subject: str
    detail: str
    remedy: str | None = None
    is_warning: bool = False
    is_skipped: bool = False

    @property
    def is_ok(self) -> bool:
        """True if there is nothing to fix, or only a warning."""
        return self.remedy is None or self.is_warning

    @property
    def state(self) -> str:
        """The result in a word."""
        if self.is_skipped:
            return "-"
        if not self.is_ok:
            return "FAIL"
        return "ok" if self.remedy is None else "warning"

    @property
    def row(self) -> Row:
        """The check as a row of output."""
        return {
            "check": self.subject, "state": self.state, "found": self.detail, "fix": self.remedy,
        }  # fmt: skip


def report_lines(
    checks: Sequence[HealthCheck],
    well_text: str = "everything is ready",
    columns: int | None = None,
) -> Iterator[str]:
    """Yield checks as lines, wrapped to a number of columns if given, and a summary.

    ``well_text`` is the summary if there is nothing to fix.
    """
    mark_width = max(len(each.state) for each in checks)
    width = min(max(len(each.subject) for each in checks), _SUBJECT_WIDTH_MAX)
    indent = " " * (mark_width + width + 4)
    for each in checks:
        subject = escape_unprintable(each.subject)
        lines = [f"{each.state:{mark_width}}  {subject:{width}}  {escape_unprintable(each.detail)}"]
        if each.remedy is not None:
            lines.append(f"{indent}fix: {each.remedy}")
        for line in lines:
            yield from (
                [line]
                if columns is None
                else wrap(
                    line,
                    max(columns, len(indent) + _TEXT_WIDTH_MIN),
                    subsequent_indent=indent,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )
    failures = sum(not each.is_ok for each in checks)
    warnings = sum(each.state == "warning" for each in checks)
    yield ""
    if failures:
        yield f"{failures} of {len(checks)} checks failed"
    elif warnings:
        yield f"no check failed, {warnings} warned"
    else:
        yield well_text
