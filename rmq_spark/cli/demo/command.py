"""``rocketpoll demo``: checks for missing parts, then runs all parts, and ends them in order.

What Spark's JVM writes to stderr goes to a file, and is shown if something fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from rmq_spark.cli.broker_command import broker_command
from rmq_spark.cli.demo.view import Figures, line, screen, summary
from rmq_spark.cli.java import java_fault
from rmq_spark.cli.spark import INSTALL, has_pyspark
from rmq_spark.cli.tree import HELP_SETTINGS, Verb

if TYPE_CHECKING:
    from rmq_spark.cli.demo.query import DemoQuery
    from rmq_spark.cli.demo.sender import Sender

TOPIC: Final = "demo-orders"
_QUEUES: Final = 4
_REFRESH_SECONDS: Final = 0.25
_LAST_WORDS: Final = 4_000


class DemoFault(Exception):
    """A reason to stop the demo, worded for the user."""


class Wish(NamedTuple):
    """The size of the demo: seconds, messages per second, bytes of a body."""

    seconds: float
    rate: int
    body_bytes: int


class _Parts(NamedTuple):
    address: str
    sender: Sender
    query: DemoQuery
    figures: Figures


@click.command(
    cls=Verb,
    context_settings=HELP_SETTINGS,
    example="rocketpoll demo --seconds 10",
)
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=30.0,
              show_default=True, help="How long it sends.")  # fmt: skip
@click.option("--rate", type=click.IntRange(1), default=50_000, show_default=True,
              help="Messages per second.")  # fmt: skip
@click.option("--bytes", "body_bytes", type=click.IntRange(1), default=100, show_default=True,
              help="Bytes of a message's body.")  # fmt: skip
def demo(seconds: float, rate: int, body_bytes: int) -> int:
    """Show a broker, a producer and a Spark stream at work, in this terminal.

    The exit code is 0 if all that was sent was read.
    """
    fault = _missing()
    if fault is not None:
        return _failed(fault)
    with tempfile.TemporaryDirectory(prefix="rocketpoll-demo-") as name:
        directory = Path(name)
        with _stderr_to(directory / "spark.log") as stderr:
            try:
                figures = _run(Wish(seconds, rate, body_bytes), directory)
            except KeyboardInterrupt:
                sys.stdout.write("\ninterrupted; everything was stopped\n")
                return 130
            except Exception as error:  # noqa: BLE001  # the user has to see any of them
                words = (directory / "spark.log").read_text(encoding="utf-8", errors="replace")
                os.write(stderr, words[-_LAST_WORDS:].encode())
                return _failed(f"{type(error).__name__}: {error}", stderr)
    sys.stdout.write("\n".join(["", *summary(figures), ""]))
    return 0 if figures.read == figures.sent else 1


def _missing() -> str | None:
    if not has_pyspark():
        return f"pyspark is not installed for {sys.executable}: {INSTALL}"
    return java_fault()


def _run(wish: Wish, directory: Path) -> Figures:
    with _running_broker(directory) as address:
        from rmq_spark.cli.demo.query import DemoQuery  # noqa: PLC0415  # it imports pyspark
        from rmq_spark.cli.demo.sender import Sender  # noqa: PLC0415  # it imports pyarrow
        from rmq_spark.client.admin.admin import Admin  # noqa: PLC0415  # not before it is needed

        with Admin(address) as admin:
            admin.create_topic(TOPIC, _QUEUES)
        sys.stdout.write(f"a broker listens on {address}; Spark starts, which takes some seconds\n")
        sys.stdout.flush()
        figures = Figures(time.monotonic(), wish.seconds)
        query = DemoQuery(address, TOPIC, directory, figures.batches.append)
        sender = Sender(address, TOPIC, wish.rate, wish.body_bytes)
        try:
            figures.started_at = time.monotonic()
            sender.start()
            _watch(_Parts(address, sender, query, figures))
        finally:
            sender.stop()
            query.stop()
        return figures


def _watch(parts: _Parts) -> None:
    """Show figures while it sends, and until all was read."""
    is_terminal = sys.stdout.isatty()
    figures, shown = parts.figures, 0
    title = f"rocketpoll demo: {TOPIC}, {_QUEUES} queues, {parts.address}"
    while time.monotonic() < figures.started_at + figures.seconds:
        time.sleep(_REFRESH_SECONDS)
        figures.sent = parts.sender.sent
        _check(parts)
        shown = _show(figures, title, shown, is_terminal=is_terminal)
    parts.sender.stop()
    figures.sent = parts.sender.sent
    parts.query.finish()
    _check(parts)
    deadline = time.monotonic() + figures.seconds
    while figures.read < figures.sent and time.monotonic() < deadline:
        time.sleep(_REFRESH_SECONDS)  # Spark tells listeners of a batch a little after it has ended
    _show(figures, title, shown, is_terminal=is_terminal)


def _check(parts: _Parts) -> None:
    if parts.sender.fault is not None:
        raise DemoFault(f"the producer has stopped: {parts.sender.fault}")
    fault = parts.query.fault()
    if fault is not None:
        raise DemoFault(f"the query has stopped: {fault}")


def _show(figures: Figures, title: str, shown: int, *, is_terminal: bool) -> int:
    """Redraw the screen, or write the new batches; return the number of lines or batches shown."""
    if not is_terminal:
        batches = figures.batches[shown:]
        sys.stdout.writelines(f"{line(batch, shown + at)}\n" for at, batch in enumerate(batches))
        sys.stdout.flush()
        return shown + len(batches)
    lines = screen(figures, title, time.monotonic())
    up = f"\x1b[{shown}F" if shown else ""
    sys.stdout.write(up + "".join(f"\x1b[2K{text}\n" for text in lines))
    sys.stdout.flush()
    return len(lines)


@contextmanager
def _running_broker(directory: Path) -> Iterator[str]:
    """Start a broker, yield its address, and stop it at the end."""
    settings = [
        f"storePathRootDir={directory / 'store'}",
        "listenPort=0",
        "flushDiskType=ASYNC_FLUSH",
    ]
    with subprocess.Popen(  # noqa: S603  # our own broker
        broker_command([*settings, "--untilInputEnds"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as broker:
        if broker.stdout is None or broker.stdin is None:
            raise AssertionError("pipes were asked for")
        said = broker.stdout.readline()
        if not said:
            raise DemoFault("the broker does not start; what it says stands above")
        try:
            yield said.rpartition(" ")[2].strip()
        finally:
            broker.stdin.close()


@contextmanager
def _stderr_to(path: Path) -> Iterator[int]:
    """Redirect stderr, also of children, to a file; yield the terminal's descriptor."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield terminal
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)
        os.close(terminal)


def _failed(why: str, descriptor: int = 2) -> int:
    os.write(descriptor, f"rocketpoll demo: {why}\n".encode())
    return 1
