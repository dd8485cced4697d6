"""``rocketpoll demo``: checks for missing parts, then runs all parts, and stops them in order.

What Spark's JVM writes to stderr goes to a file, and is shown if something fails.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from rmq_spark.cli.cluster.broker_launcher import broker_command
from rmq_spark.cli.demo.display import (
    DemoFigures,
    Display,
    LineDisplay,
    TerminalDisplay,
    save_picture,
    screen_lines,
    summary,
)
from rmq_spark.cli.shell.command_tree import CommandWithExample
from rmq_spark.cli.shell.parameter_types import PositiveFloat
from rmq_spark.cli.spark.spark_runtime import INSTALL_PYSPARK, has_pyspark, java_fault

if TYPE_CHECKING:
    from rmq_spark.cli.demo.clients import DemoConsumer, DemoSender
    from rmq_spark.cli.demo.query import DemoQuery


_ADJUST_SECONDS: Final = 3.0
"""The time between two checks: a batch or two."""
_BACKLOG_SECONDS_MAX: Final = 3.0
"""The backlog, in seconds, that is usual while a batch runs and messages gather for the next."""
_CATCH_UP_RATIO: Final = 0.7
"""The new send rate, as a share of the rows read per second; the rest is for catching up. A sender
below this share of the rate does not keep up."""
_RATE_MIN: Final = 200


class AdaptiveRate:
    """The number of messages to send per second, lowered if the reader does not keep up."""

    def __init__(self, rate: int, now: float) -> None:
        self.requested = self.rate = rate
        self._adjusted_at = now
        self._sent = self._read = 0

    def adjust(self, now: float, sent: int, read: int) -> bool:
        """Adjust to the numbers sent and read so far; return whether the rate was lowered."""
        seconds = now - self._adjusted_at
        if seconds < _ADJUST_SECONDS:
            return False
        behind, behind_before = sent - read, self._sent - self._read
        read_per_second = (read - self._read) / seconds
        sent_per_second = (sent - self._sent) / seconds
        self._adjusted_at, self._sent, self._read = now, sent, read
        if sent_per_second < self.rate * _CATCH_UP_RATIO:
            return self._lower(int(sent_per_second))
        if behind <= behind_before or behind <= self.rate * _BACKLOG_SECONDS_MAX:
            return False
        return self._lower(
            max(int(min(read_per_second, self.rate) * _CATCH_UP_RATIO), self.rate // 4)
        )

    def _lower(self, rate: int) -> bool:
        before, self.rate = self.rate, min(max(rate, _RATE_MIN), self.rate)
        return self.rate < before


TOPIC: Final = "demo-orders"
_QUEUES: Final = 4
_RATES: Final = {True: 50_000, False: 5_000}
"""The default rates: a stream reads messages by columns, a consumer without Spark one by one."""
_WARM_UP_MESSAGES: Final = 2_000
_STALL_SECONDS_MAX: Final = 60.0
_REFRESH_SECONDS: Final = 0.25
_LOG_TAIL_CHARACTERS: Final = 4_000


class DemoError(Exception):
    """A reason to stop the demo, worded for the user."""


class _DemoParts(NamedTuple):
    title: str
    sender: DemoSender
    reader: DemoQuery | DemoConsumer
    figures: DemoFigures
    display: Display


@click.command(cls=CommandWithExample, example="rocketpoll demo --no-spark --seconds 3")
@click.option("--seconds", type=PositiveFloat(), default=30.0, metavar="SECONDS",
              show_default=True, help="How long to send.")  # fmt: skip
@click.option("--rate", type=click.IntRange(1), metavar="N",
              help="Messages per second; fewer if this machine cannot keep up. "
                   "[default: 50000, without Spark 5000]")  # fmt: skip
@click.option("--bytes", "body_bytes", type=click.IntRange(1), default=100, show_default=True,
              metavar="N", help="Size of a message body.")  # fmt: skip
@click.option("--spark/--no-spark", "with_spark", default=True, show_default=True,
              help="Read with a Spark stream, or with a pull consumer.")  # fmt: skip
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Save the final screen as this SVG file.")  # fmt: skip
def demo(
    seconds: float, rate: int | None, body_bytes: int, *, with_spark: bool, picture: Path | None
) -> int:
    """Run a broker, a producer and a Spark stream, and show their figures in this terminal.

    Counting starts after Spark has warmed up. Exits 0 if every message sent was read.
    """
    if with_spark and not has_pyspark():
        missing = f"{sys.executable} has no pyspark. Run {INSTALL_PYSPARK}, or use --no-spark"
        return _print_failure(missing)
    if with_spark and (fault := java_fault()) is not None:
        return _print_failure(f"{fault}. Or use --no-spark")
    with _interrupt_on_signals(), tempfile.TemporaryDirectory(prefix="rocketpoll-demo-") as name:
        directory = Path(name)
        with _redirect_stderr(directory / "spark.log") as stderr:
            try:
                return _run(
                    directory,
                    seconds,
                    rate or _RATES[with_spark],
                    body_bytes,
                    with_spark=with_spark,
                    picture=picture,
                )
            except KeyboardInterrupt:
                sys.stdout.write("\ninterrupted: all parts are stopped\n")
                return 130
            except BrokenPipeError:  # a reader such as `head` has closed the pipe
                raise
            except Exception as error:  # noqa: BLE001  # any error is shown to the user
                words = (directory / "spark.log").read_text(encoding="utf-8", errors="replace")
                os.write(stderr, words[-_LOG_TAIL_CHARACTERS:].encode())
                return _print_failure(f"{type(error).__name__}: {error}", stderr)


@contextmanager
def _interrupt_on_signals() -> Iterator[None]:
    """Make SIGTERM and a closed terminal stop the demo as Ctrl-C does, with all cleanup."""
    signals = [signal.SIGTERM]
    if sys.platform != "win32":
        signals.append(signal.SIGHUP)
    before = [signal.signal(number, signal.default_int_handler) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def _run(
    directory: Path,
    seconds: float,
    rate: int,
    body_bytes: int,
    *,
    with_spark: bool,
    picture: Path | None,
) -> int:
    figures = DemoFigures(seconds)
    with ExitStack() as running:
        listening = running.enter_context(_running_broker(directory))
        # Loading the other modules takes as long as starting the broker, so both happen together.
        from rmq_spark.cli.demo.clients import DemoSender  # noqa: PLC0415  # --help needs no client
        from rmq_spark.client.admin.admin import Admin  # noqa: PLC0415  # --help needs no client

        if with_spark:
            from rmq_spark.cli.demo.query import DemoQuery  # noqa: PLC0415  # imports pyspark
        else:
            from rmq_spark.cli.demo.clients import DemoConsumer  # noqa: PLC0415  # not with Spark
        display: Display = TerminalDisplay() if sys.stdout.isatty() else LineDisplay()
        address = listening()
        with Admin(address) as admin:
            admin.create_topic(TOPIC, _QUEUES)
        title = f"rocketpoll demo: {TOPIC}, {_QUEUES} queues, {address}"
        what = "Spark (a JVM and a session, some seconds)" if with_spark else "a consumer"
        with display.show_status(f"the broker is listening; starting {what}"):
            reader: DemoQuery | DemoConsumer = (
                DemoQuery(address, TOPIC, directory, figures.batches.append)
                if with_spark
                else DemoConsumer(address, TOPIC, figures.batches.append)
            )
        running.callback(reader.stop)
        sender = running.enter_context(DemoSender(address, TOPIC, body_bytes, by_table=with_spark))
        parts = _DemoParts(title, sender, reader, figures, display)
        if with_spark:
            _warm_up(parts)
        figures.reset(time.monotonic())
        _run_display(parts, rate)
    closing = summary(figures)
    display.end(closing)
    if picture is not None:
        lines = screen_lines(figures, figures.started_at + figures.seconds)
        save_picture(picture, lines, title, closing)
    return 0 if figures.read == figures.sent else 1


def _warm_up(parts: _DemoParts) -> None:
    """Let Spark read some messages: a first batch loads classes and starts Python."""
    figures = parts.figures
    with parts.display.show_status("warming up with a first batch; counting starts after it"):
        parts.sender.send(_WARM_UP_MESSAGES)
        figures.sent = parts.sender.sent
        _wait_until_read(parts)
        if figures.read < figures.sent:
            raise DemoError(
                f"{figures.sent - figures.read} of {figures.sent} messages were not read: none "
                f"arrived for {_STALL_SECONDS_MAX:.0f} s"
            )


def _run_display(parts: _DemoParts, rate: int) -> None:
    figures, sender, before = parts.figures, parts.sender, parts.sender.sent
    pace = AdaptiveRate(rate, figures.started_at)
    sender.start(rate)
    while time.monotonic() < figures.started_at + figures.seconds:
        time.sleep(_REFRESH_SECONDS)
        figures.sent = sender.sent - before
        if pace.adjust(time.monotonic(), figures.sent, figures.read):
            sender.per_second = pace.rate
            figures.set_note(
                f"this machine cannot send and read {pace.requested:,} messages per second: "
                f"sending {pace.rate:,}"
            )
        _check_faults(parts)
        parts.display.show(figures, parts.title, time.monotonic())
    sender.stop()
    figures.sent = sender.sent - before
    _check_faults(parts)
    _wait_until_read(parts, lambda: parts.display.show(figures, parts.title, time.monotonic()))
    parts.display.show(figures, parts.title, time.monotonic())


def _wait_until_read(parts: _DemoParts, on_wait: Callable[[], None] = lambda: None) -> None:
    """Wait until all sent messages are read, or none has arrived for too long.

    ``on_wait`` is called repeatedly: working off a backlog takes time, and should be visible.
    """
    parts.reader.finish()
    figures, seen, seen_at = parts.figures, -1, 0.0
    while figures.read < figures.sent:
        if figures.read != seen:
            seen, seen_at = figures.read, time.monotonic()
        if time.monotonic() > seen_at + _STALL_SECONDS_MAX:
            return
        _check_faults(parts)
        on_wait()
        time.sleep(_REFRESH_SECONDS)  # Spark notifies listeners shortly after a batch has ended


def _check_faults(parts: _DemoParts) -> None:
    if parts.sender.fault is not None:
        raise DemoError(f"the producer failed: {parts.sender.fault}")
    fault = parts.reader.fault()
    if fault is not None:
        raise DemoError(f"the reader failed: {fault}")


@contextmanager
def _running_broker(directory: Path) -> Iterator[Callable[[], str]]:
    """Start a broker, yield the function that waits for its address, and stop it at the end."""
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
            raise AssertionError("the broker's process has no pipes")
        stdout = broker.stdout

        def listening() -> str:
            line = stdout.readline()
            if not line:
                raise DemoError("the broker did not start. See its message above")
            return line.rpartition(" ")[2].strip()

        try:
            yield listening
        finally:
            broker.stdin.close()


@contextmanager
def _redirect_stderr(path: Path) -> Iterator[int]:
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


def _print_failure(reason: str, descriptor: int = 2) -> int:
    os.write(descriptor, f"rocketpoll demo: {reason}\n".encode())
    return 1
