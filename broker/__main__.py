"""Run one broker until a signal stops it: ``python -m rocketpoll.broker -c conf/broker.conf``.

The broker prints one line when it is ready, and logs to stderr. SIGTERM and SIGINT stop it cleanly;
SIGHUP makes it reload its settings file.
"""

# set up the process before the slow imports
from __future__ import annotations

import sys

from .process.process_setup import set_up_process

if __name__ == "__main__":
    set_up_process(sys.argv[1:])

import argparse
import asyncio
import gc
import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TextIO

from rmq_spark.errors import RocketPollError

from .controller import BrokerController
from .process.operator_log import (
    LOG_FORMATS,
    format_host,
    log_reload,
    log_start,
    log_stopped,
    log_stopping,
    set_up_logging,
)
from .process.process_setup import block_pandas
from .process.service_manager import ServiceManager, StartProgress, name_process
from .server.descriptors import allow_descriptors
from .server.event_loop import new_event_loop
from .settings.config import BrokerConfig
from .settings.settings import ConfigError, load_config, settings_of
from .store.errors import StartInterrupted, describe_error, is_transient

_log = logging.getLogger(__name__)
_INPUT_BYTES = 4_096
_STOP_SIGNALS = signal.SIGTERM, signal.SIGINT


class _UncleanStop(RocketPollError):
    """A broker could not save everything when it stopped; the argument lists what was lost."""

    def __str__(self) -> str:
        return (
            f"the broker did not stop cleanly: {super().__str__()}. The next start "
            "recovers as after a crash"
        )


def main(arguments: list[str] | None = None, program: str = "python -m rocketpoll.broker") -> int:
    """Run a broker from command-line arguments, and return the exit code of the process.

    Args:
        arguments: The arguments without the program's name; None uses the process's arguments.
        program: The name of the program in usage and error messages.

    Returns:
        0 after a clean stop, or if a signal interrupted the start; 1 if the broker could not run,
        or could not save its state when it stopped; 2 if its settings are wrong.
    """
    given, unknown = _parser(program).parse_known_args(arguments)
    if unknown:
        _print_error(
            f"there is no option {unknown[0]}. Settings have the form key=value, for example "
            "listenPort=9876; -p prints all"
        )
        return 2
    set_up_logging(given.log_format)

    try:
        config = load_config(given.configFile, given.settings)
    except ConfigError as error:
        _print_error(str(error))
        return 2
    if given.printConfigItem:
        sys.stdout.writelines(f"{name}={value}\n" for name, value in settings_of(config).items())
        return 0
    if given.configFile is not None:  # a SIGHUP during the start does not end the broker
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # The broker does not need numpy's threads; where the system refuses threads, OpenBLAS would end
    # the process.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Arrow's own pool would keep 4 MiB more, and save only a hundredth of a message's cost.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    try:
        config = _limit_to_descriptors(config)
        loop = new_event_loop()
    except (RocketPollError, OSError) as error:
        return _startup_failure(error)
    try:
        with block_pandas():
            loop.run_until_complete(
                serve(
                    config,
                    partial(_reload_config, given) if given.configFile else None,
                    until_input_ends=given.untilInputEnds,
                )
            )
    except Exception as error:
        if not isinstance(error, (RocketPollError, OSError)) and not is_transient(error):
            raise
        return _startup_failure(error)
    finally:
        _close(loop, given)
    return 0


def _close(loop: asyncio.AbstractEventLoop, given: argparse.Namespace) -> None:
    """Close the loop without restoring SIGHUP's default action, which would end the process."""
    if given.configFile is None:
        loop.close()
    else:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
        loop.close()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
    for stream in (sys.stdout, sys.stderr):
        _write(stream, "")  # flush what is left in their buffers, if possible


def _write(stream: TextIO, text: str) -> OSError | None:
    """Write to a standard stream; if that fails, discard all further output to it.

    A full disk, or a pipe that nobody reads, must not stop a broker. Text left in a buffer would
    change the exit code.
    """
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        with suppress(OSError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
        return error
    return None


def _print_error(text: str) -> None:
    _write(sys.stderr, f"{text}\n")


def _reload_config(given: argparse.Namespace) -> BrokerConfig:
    if not given.configFile.is_file():
        raise ConfigError(
            f"{given.configFile} is not a regular file, or no longer exists: settings can "
            "be reloaded only from a file"
        )
    return load_config(given.configFile, given.settings)


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description="A RocketMQ broker and name server.",
        epilog=f"example: {program} -c conf/broker.conf flushDiskType=ASYNC_FLUSH",
    )
    parser.add_argument(
        "-c",
        "--configFile",
        type=Path,
        metavar="FILE",
        help="file of settings, for example conf/broker.conf",
    )
    parser.add_argument(
        "-p",
        "--printConfigItem",
        action="store_true",
        help="print all settings with their values, and exit",
    )
    parser.add_argument(
        "settings", nargs="*", metavar="key=value", help="setting that overrides the file"
    )
    parser.add_argument(
        "--untilInputEnds",
        action="store_true",
        help="stop when stdin closes, as when the parent program ends",
    )
    parser.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default=LOG_FORMATS[0],
        help="format of log lines: plain text or JSON [default: %(default)s]",
    )
    return parser


def _startup_failure(error: Exception) -> int:
    if isinstance(error, _UncleanStop):
        _print_error(str(error))
    else:
        why = describe_error(error)
        if isinstance(error, OSError) and error.filename and why == str(error):
            why = (
                f"{error.filename}: {error.strerror}. Set storePathRootDir to a directory that "
                "this user can create and write to"
            )
        _print_error(f"the broker cannot run: {why}")
    return 1


async def serve(
    config: BrokerConfig,
    load: Callable[[], BrokerConfig] | None = None,
    *,
    until_input_ends: bool = False,
) -> None:
    """Run a broker until SIGTERM or SIGINT arrives, or optionally until stdin ends.

    Args:
        config: The settings of the broker.
        load: A function that reads the settings again at SIGHUP; it may raise a `ConfigError`.
            Without it, SIGHUP ends the process at once, for example when its terminal is closed.
        until_input_ends: Whether to stop when stdin, which must be a pipe, reaches its end.
    """
    manager = ServiceManager()
    name_process()
    watch = StartProgress(manager)
    controller = BrokerController(config, watch_opening=watch)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    if until_input_ends:
        loop.add_reader(sys.stdin.fileno(), _watch_input, loop, sys.stdin.fileno(), stop)
    if load is not None:
        loop.add_signal_handler(
            signal.SIGHUP,
            _log.warning,
            "SIGHUP is ignored while the broker starts: send it again when it is ready",
        )
    port = await _start(controller, watch, stop)
    if port is None:
        return
    # All objects that exist now are permanent: exclude them from garbage collections during
    # requests.
    gc.collect()
    gc.freeze()
    if load is not None:
        loop.add_signal_handler(signal.SIGHUP, _reload, controller, load)
    log_start(config, controller)
    address = f"{format_host(config.bind_address)}:{port}"
    line = f"rocketpoll {config.broker_name} listens on {address}"
    error = _write(sys.stdout, f"{line}\n")
    if error is not None:
        _log.warning("cannot write the line %r to stdout: %s", line, error)
    manager.notify("READY=1", f"STATUS=listens on {address}")
    manager.start_watchdog(loop)
    await stop.wait()
    manager.notify("STOPPING=1", "STATUS=stopping: answers open requests and saves its state")
    log_stopping(controller)
    started_at = time.perf_counter()
    try:
        unsaved = await controller.stop()
    except (RocketPollError, OSError) as error:
        raise _UncleanStop(describe_error(error)) from error
    if unsaved is not None:
        raise _UncleanStop(unsaved)
    manager.stop()
    log_stopped(time.perf_counter() - started_at)


async def _start(
    controller: BrokerController, watch: StartProgress, stop: asyncio.Event
) -> int | None:
    """Start a broker; return its port, or None if a signal interrupted the start.

    The loop processes signals only after the store is open, which may take long.
    """
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda *_: watch.request_stop())
    try:
        port = await controller.start()
    except StartInterrupted as error:
        _log.warning("%s", error)
        return None
    for number in _STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if watch.is_stop_requested:
        stop.set()
    return port


def _limit_to_descriptors(config: BrokerConfig) -> BrokerConfig:
    given = allow_descriptors(config.store.open_files_max, config.server.max_connections)
    return replace(
        config,
        store=replace(config.store, open_files_max=given.open_files_max),
        server=replace(config.server, max_connections=given.connections_max),
    )


def _reload(controller: BrokerController, load: Callable[[], BrokerConfig]) -> None:
    try:
        config = _limit_to_descriptors(load())
    except RocketPollError as error:
        _log.error("settings are not reloaded: %s", error)
        return
    reload = controller.reload(config)
    log_reload(reload.reloaded, reload.need_restart)


def _watch_input(loop: asyncio.AbstractEventLoop, descriptor: int, stop: asyncio.Event) -> None:
    if not os.read(descriptor, _INPUT_BYTES):
        loop.remove_reader(descriptor)
        stop.set()


if __name__ == "__main__":
    sys.exit(main())
