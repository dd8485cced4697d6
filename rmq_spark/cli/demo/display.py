"""Display: shows the demo's figures on a terminal, line by line in a file, or as a picture.

`view` makes the lines.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from rmq_spark.cli.demo.view import DemoFigures, batch_line, screen_lines

if TYPE_CHECKING:
    from rich.live import Live

_PICTURE_COLUMNS: Final = 92
_FONT: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


class Display(Protocol):
    """An output of the demo."""

    def show_status(self, text: str) -> AbstractContextManager[object]:
        """Enter a context in which the demo waits for something slow."""

    def show(self, figures: DemoFigures, title: str, now: float) -> None:
        """Show the present figures."""

    def end(self, lines: Sequence[str]) -> None:
        """Show closing lines after the figures."""


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

    def show(self, figures: DemoFigures, title: str, now: float) -> None:  # noqa: ARG002  # of a `Display`
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
    from rich.text import Text  # noqa: PLC0415

    text = Text("\n".join(lines))
    text.highlight_regex(r"(?m)^(time|sent|read|behind|latency|batches) ", "dim")
    text.highlight_regex(r"[▁▂▃▄▅▆▇█]+", "cyan")
    return Panel(text, title=title, title_align="left", border_style="dim", padding=(0, 1))


def _write(lines: Sequence[str]) -> None:
    sys.stdout.writelines(f"{text}\n" for text in lines)
    sys.stdout.flush()
