"""Diagnosis: the result of one check, and a report of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import NamedTuple


class Diagnosis(NamedTuple):
    """The result of one check; ``remedy`` says what to do if it is not good."""

    subject: str
    detail: str
    remedy: str | None = None
    is_skipped: bool = False

    @property
    def is_ok(self) -> bool:
        """True if there is nothing to fix, or nothing was checked."""
        return self.remedy is None


def report_lines(findings: Sequence[Diagnosis], columns: int | None = None) -> Iterator[str]:
    """Yield the findings as lines, wrapped to a number of columns if given, and a summary."""
    width = max(len(each.subject) for each in findings)
    indent = " " * (width + 8)
    for each in findings:
        mark = "-   " if each.is_skipped else "ok  " if each.is_ok else "FAIL"
        lines = [f"{mark}  {each.subject:{width}}  {each.detail}"]
        if each.remedy is not None:
            lines.append(f"{indent}fix: {each.remedy}")
        for line in lines:
            yield from (
                [line]
                if columns is None
                else wrap(
                    line,
                    max(columns, 2 * len(indent)),
                    subsequent_indent=indent,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )
    faults = sum(not each.is_ok for each in findings)
    yield ""
    yield "everything is ready" if not faults else f"{faults} of {len(findings)} checks failed"
