"""Findings: the results of checks, and their lines of output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def report_lines(findings: Sequence[Diagnosis]) -> Iterator[str]:
    """Yield the findings as lines for the terminal, and a summary."""
    width = max(len(each.subject) for each in findings)
    for each in findings:
        mark = "-   " if each.is_skipped else "ok  " if each.is_ok else "FAIL"
        yield f"{mark}  {each.subject:{width}}  {each.detail}"
        if each.remedy is not None:
            yield f"      {'':{width}}  to mend it: {each.remedy}"
    faults = sum(not each.is_ok for each in findings)
    yield ""
    yield "all is well" if not faults else f"{faults} of {len(findings)} to mend"
