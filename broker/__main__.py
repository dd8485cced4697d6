"""Run one broker until it is told to stop: ``python -m rocketpoll.broker -c conf/broker.conf``.

It prints one line when the broker is ready, and logs to stderr. SIGTERM and SIGINT stop it in
order.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from rmq_spark.errors import RocketPollError
from rocketpoll.broker.controller import BrokerController
from rocketpoll.broker.server.descriptors import allow_descriptors
from rocketpoll.broker.server.event_loop import new_event_loop
from rocketpoll.broker.settings.config import BrokerConfig
from rocketpoll.broker.settings.settings import ConfigError, load_config, settings_of
from rocketpoll.broker.store.lacks import is_lack, what_is_wrong

_log = logging.getLogger(__name__)
_INPUT_BYTES = 4_096


def main(arguments: list[str] | None = None, program: str = "python -m rocketpoll.broker") -> int:
    """Run a broker from command-line arguments, and return the exit code of the process.

    Args:
        arguments: The arguments without the program's name; None takes those of the process.
        program: The name of the program in usage and error messages.

    Returns:
        0 if the broker was stopped in order, 1 if it could not run, 2 if its settings are wrong.
    """
    parser = argparse.ArgumentParser(prog=program, description="A RocketMQ broker and name server.")
    parser.add_argument(
        "-c", "--configFile", type=Path, metavar="FILE", help="settings, as conf/broker.conf"
    )
    parser.add_argument(
        "-p",
        "--printConfigItem",
        action="store_true",
        help="print all settings with their values, and end",
    )
    parser.add_argument(
        "settings", nargs="*", metavar="key=value", help="a setting; it beats the file's"
    )
    parser.add_argument(
        "--untilInputEnds",
        action="store_true",
        help="stop when stdin ends: for a program that runs a broker",
    )
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level=logging.INFO)
    try:
        config = load_config(given.configFile, given.settings)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if given.printConfigItem:
        sys.stdout.writelines(f"{name}={value}\n" for name, value in settings_of(config).items())
        return 0
    # Nothing here needs threads of numpy's; where the system starts none,
    # OpenBLAS would end the process.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    loop = new_event_loop()
    try:
        loop.run_until_complete(serve(config, until_input_ends=given.untilInputEnds))
    except Exception as error:
        if not isinstance(error, (RocketPollError, OSError)) and not is_lack(error):
            raise
        sys.stderr.write(f"the broker cannot run: {what_is_wrong(error)}\n")
        return 1
    finally:
        loop.close()
    return 0


async def serve(config: BrokerConfig, *, until_input_ends: bool = False) -> None:
    """Run a broker until SIGTERM or SIGINT arrives, or optionally until stdin ends.

    Args:
        config: The settings of the broker.
        until_input_ends: Whether to stop when stdin, which must be a pipe, reaches its end.
    """
    given = allow_descriptors(config.store.open_files_max, config.server.max_connections)
    config = replace(
        config,
        store=replace(config.store, open_files_max=given.open_files_max),
        server=replace(config.server, max_connections=given.connections_max),
    )
    controller = BrokerController(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_input_ends:
        loop.add_reader(sys.stdin.fileno(), _look_for_end, loop, sys.stdin.fileno(), stop)
    port = await controller.start()
    # What is here now is here to stay: no collection, in the way of requests, looks through it.
    gc.collect()
    gc.freeze()
    address = f"[{config.bind_address}]" if ":" in config.bind_address else config.bind_address
    sys.stdout.write(f"rocketpoll {config.broker_name} listens on {address}:{port}\n")
    sys.stdout.flush()
    await stop.wait()
    await controller.stop()


def _look_for_end(loop: asyncio.AbstractEventLoop, descriptor: int, stop: asyncio.Event) -> None:
    if not os.read(descriptor, _INPUT_BYTES):
        loop.remove_reader(descriptor)
        stop.set()


if __name__ == "__main__":
    sys.exit(main())
