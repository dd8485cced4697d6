"""The demo's screen: figures to lines of text. It knows no terminal, no clock and no Spark."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

_BARS: Final = "▁▂▃▄▅▆▇█"
_BARS_SHOWN: Final = 32
_RATE_BATCHES: Final = 8


@dataclass(frozen=True, slots=True)
class Batch:
    """The figures of one batch that has ended; times in seconds on the program's clock."""

    rows: int
    ended_at: float
    seconds: float
    latency_p50: float
    latency_p95: float
    lag_messages: int = 0
    lag_bytes: int | None = None
    lag_ms: int | None = None


@dataclass(slots=True)
class Figures:
    """The figures of all that was sent and read so far."""

    started_at: float
    seconds: float
    sent: int = 0
    batches: list[Batch] = field(default_factory=list)

    @property
    def read(self) -> int:
        """The number of rows of all batches."""
        return sum(batch.rows for batch in self.batches)

    @property
    def rows_per_second(self) -> float:
        """The speed of the last few batches, from the end of one to the end of the last."""
        last = self.batches[-_RATE_BATCHES:]
        seconds = last[-1].ended_at - last[0].ended_at if len(last) > 1 else 0.0
        return sum(batch.rows for batch in last[1:]) / seconds if seconds > 0 else 0.0


def screen(figures: Figures, title: str, now: float) -> list[str]:
    """Return the lines shown while the demo runs."""
    elapsed = min(now - figures.started_at, figures.seconds)
    rate = f"{figures.rows_per_second:>10,.0f} rows/s"
    lines = [
        f"{title}   {elapsed:3.0f} s of {figures.seconds:.0f}",
        f"  sent     {figures.sent:>12,}",
        f"  read     {figures.read:>12,}   {rate}  {_bars(figures.batches)}",
    ]
    if not figures.batches:
        return [
            *lines,
            "  lag                 -",
            "  latency             -   the first batch warms Spark up",
        ]
    last = figures.batches[-1]
    p95 = f"{last.latency_p95:.2f} s p95"
    return [
        *lines,
        f"  lag      {last.lag_messages:>12,}   messages{_lag_text(last)}",
        f"  latency  {last.latency_p50:>10.2f} s   p50, {p95}, from send to the end of its batch",
        (
            f"  batches  {len(figures.batches):>12,}   the last: {last.rows:,} rows in "
            f"{last.seconds:.2f} s"
        ),
    ]


def line(batch: Batch, number: int) -> str:
    """Return a batch as a line, for output that is not a terminal."""
    return (
        f"batch {number}: {batch.rows:,} rows in {batch.seconds:.2f} s, "
        f"latency p50 {batch.latency_p50:.2f} s, lag {batch.lag_messages:,} messages"
    )


def summary(figures: Figures) -> list[str]:
    """Return the closing lines; medians leave out the first batch, which warms Spark up."""
    warm = figures.batches[1:] or figures.batches
    if not warm:
        return [f"sent {figures.sent:,} messages; no batch has ended"]
    seconds = warm[-1].ended_at - figures.batches[0].ended_at
    is_timed = seconds > 0 and len(figures.batches) > 1
    rate = sum(batch.rows for batch in warm) / seconds if is_timed else 0.0
    verdict = "every one of them once" if figures.read == figures.sent else "NOT the same number"
    batches = f"{len(figures.batches)} batches"
    p50, p95, each = (_median(warm, name) for name in ("latency_p50", "latency_p95", "seconds"))
    return [
        f"sent {figures.sent:,} messages, read {figures.read:,} rows in {batches}: {verdict}",
        (
            f"rows per second {rate:,.0f}; medians: latency p50 {p50:.2f} s, p95 {p95:.2f} s, "
            f"batch {each:.2f} s"
        ),
    ]


def _median(batches: Sequence[Batch], name: str) -> float:
    values: list[float] = [getattr(batch, name) for batch in batches]
    return statistics.median(values)


def _bars(batches: Sequence[Batch]) -> str:
    rates = [
        batch.rows / batch.seconds if batch.seconds else 0.0 for batch in batches[-_BARS_SHOWN:]
    ]
    most = max(rates, default=0.0)
    return "".join(_BARS[int(rate / most * (len(_BARS) - 1))] for rate in rates) if most else ""


def _lag_text(batch: Batch) -> str:
    size = "" if batch.lag_bytes is None else f", {batch.lag_bytes / 1e6:.1f} MB"
    return size + ("" if batch.lag_ms is None else f", {batch.lag_ms} ms")
