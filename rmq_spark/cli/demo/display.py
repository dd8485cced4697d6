"""Display: the demo's figures as lines, on a terminal, in a file, or as a picture."""

from __future__ import annotations

import io
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rmq_spark.errors import format_count

if TYPE_CHECKING:
    from rich.live import Live

_PICTURE_COLUMNS: Final = 92
_FONT: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_BARS: Final = "▁▂▃▄▅▆▇█"
_BARS_SHOWN: Final = 20
_RATE_WINDOW_BATCHES: Final = 8


@dataclass(frozen=True, slots=True)
class DemoBatch:
    """The figures of one batch that has ended; times in seconds on the program's clock."""

    rows: int
    ended_at: float
    seconds: float
    latency_p50: float
    latency_p95: float


@dataclass(slots=True)
class DemoFigures:
    """The figures of everything that was sent and read so far."""

    seconds: float
    started_at: float = 0.0
    sent: int = 0
    batches: list[DemoBatch] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Lines to show beside the figures, for example that the rate was lowered."""

    def set_note(self, text: str) -> None:
        """Show a note from now on, in place of the previous one."""
        self.notes[:] = [text]

    def reset(self, now: float) -> None:
        """Discard the warm-up, and count from now on."""
        self.started_at = now
        self.sent = 0
        self.batches.clear()

    @property
    def read(self) -> int:
        """The number of rows of all batches."""
        return sum(batch.rows for batch in self.batches)

    @property
    def rows_per_second(self) -> float:
        """The throughput of the last few batches, from the first one's end to the last one's."""
        last = self.batches[-_RATE_WINDOW_BATCHES:]
        seconds = last[-1].ended_at - last[0].ended_at if len(last) > 1 else 0.0
        return sum(batch.rows for batch in last[1:]) / seconds if seconds > 0 else 0.0


def screen_lines(figures: DemoFigures, now: float) -> list[str]:
    """Return the lines shown while the demo runs."""
    elapsed = min(now - figures.started_at, figures.seconds)
    batches = figures.batches
    rates = [batch.rows / batch.seconds if batch.seconds else 0.0 for batch in batches]
    lines = [
        f"time      {elapsed:>10.0f} s   of {figures.seconds:.0f}",
        f"sent      {figures.sent:>12,}",
        f"read      {figures.read:>12,}   {figures.rows_per_second:,.0f} rows/s {_bars(rates)}",
        f"behind    {max(figures.sent - figures.read, 0):>12,}   messages, sent and not read yet",
    ]
    if batches:
        last = batches[-1]
        p95, since = _time(last.latency_p95), _bars([batch.latency_p50 for batch in batches])
        last_batch = f"{format_count(last.rows, 'row')} in {last.seconds:.2f} s"
        lines += [
            f"latency   {_time(last.latency_p50):>12}   p50, {p95} p95, from send to here {since}",
            f"batches   {len(batches):>12,}   the last: {last_batch}",
        ]
    return [*lines, *figures.notes]


def batch_line(batch: DemoBatch, number: int) -> str:
    """Return a batch as a line, for output that is not a terminal."""
    return (
        f"batch {number}: {format_count(batch.rows, 'row')} in {batch.seconds:.2f} s, "
        f"latency p50 {_time(batch.latency_p50)}, p95 {_time(batch.latency_p95)}"
    )


def summary(figures: DemoFigures) -> list[str]:
    """Return the closing lines."""
    batches = figures.batches
    if not batches:
        return [f"sent {format_count(figures.sent, 'message')}; no batch has ended"]
    rate = figures.read / max(batches[-1].ended_at - figures.started_at, 0.001)
    result = "every one of them once" if figures.read == figures.sent else "NOT the same number"
    p50, p95 = (_median(batches, name) for name in ("latency_p50", "latency_p95"))
    each = _median(batches, "seconds")
    medians = f"latency p50 {_time(p50)}, p95 {_time(p95)}, batch {each:.2f} s"
    sent, read = format_count(figures.sent, "message"), format_count(figures.read, "row")
    return [
        f"sent {sent}, read {read} in {format_count(len(batches), 'batch', 'batches')}: {result}",
        f"rows per second {rate:,.0f}; medians: {medians}",
    ]


def _median(batches: Sequence[DemoBatch], name: str) -> float:
    values: list[float] = [getattr(batch, name) for batch in batches]
    return statistics.median(values)


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _bars(values: Sequence[float]) -> str:
    shown = values[-_BARS_SHOWN:]
    most = max(shown, default=0.0)
    if most <= 0:
        return ""
    return "".join(_BARS[int(max(value, 0) / most * (len(_BARS) - 1))] for value in shown)


class LineDisplay:
    """A file or a pipe: a line for each batch and each event."""

    def __init__(self) -> None:
        self._batches = 0
        self._notes: list[str] = []

    @contextmanager
    def show_status(self, text: str) -> Iterator[None]:
        """Print what the demo waits for."""
        _write([text])
        yield

    def show(self, figures: DemoFigures, title: str, now: float) -> None:  # noqa: ARG002  # the signature of TerminalDisplay
        """Print new batches and events."""
        batches = figures.batches[self._batches :]
        notes = [note for note in figures.notes if note not in self._notes]
        _write(
            [*(batch_line(batch, self._batches + at) for at, batch in enumerate(batches)), *notes]
        )
        self._batches += len(batches)
        self._notes += notes

    def end(self, lines: Sequence[str]) -> None:
        """Print the closing lines."""
        _write(["", *lines])


class TerminalDisplay:
    """A terminal: one panel that is redrawn."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415  # only on a terminal

        self._console = Console(highlight=False)
        self._live: Live | None = None

    def show_status(self, text: str) -> AbstractContextManager[object]:
        """Show a spinner."""
        return self._console.status(text)

    def show(self, figures: DemoFigures, title: str, now: float) -> None:
        """Redraw the panel."""
        from rich.live import Live  # noqa: PLC0415  # only on a terminal

        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(_panel(screen_lines(figures, now), title), refresh=True)

    def end(self, lines: Sequence[str]) -> None:
        """Leave the panel as it is, and print the closing lines below it."""
        if self._live is not None:
            self._live.stop()
        _write(lines)


Display: TypeAlias = "LineDisplay | TerminalDisplay"


def save_picture(path: Path, lines: Sequence[str], title: str, closing: Sequence[str]) -> None:
    """Save a screen and its closing lines as an SVG."""
    from rich.console import Console  # noqa: PLC0415  # only for a picture

    console = Console(
        record=True,
        file=io.StringIO(),
        width=_PICTURE_COLUMNS,
        force_terminal=True,
        highlight=False,
    )
    console.print(_panel(lines, title))
    console.print(*closing, sep="\n")
    drawn = console.export_svg(title="rocketpoll demo")
    path.write_text(_FONT.sub("", drawn), encoding="utf-8")  # a picture loads nothing from the net


def _panel(lines: Sequence[str], title: str) -> Any:
    from rich.panel import Panel  # noqa: PLC0415  # only on a terminal, or for a picture
    from rich.text import Text  # noqa: PLC0415  # rich loads slowly

    text = Text("\n".join(lines))
    text.highlight_regex(r"(?m)^(time|sent|read|behind|latency|batches) ", "dim")
    text.highlight_regex(r"[▁▂▃▄▅▆▇█]+", "cyan")
    return Panel(text, title=title, title_align="left", border_style="dim", padding=(0, 1))


def _write(lines: Sequence[str]) -> None:
    sys.stdout.writelines(f"{text}\n" for text in lines)
    sys.stdout.flush()
