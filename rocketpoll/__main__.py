"""The command line: ``rocketpoll COMMAND``, or ``python -m rocketpoll`` if that is not on PATH.

Signals are set up before the commands are loaded, which takes a second on a slow machine: from then
on Ctrl-C exits without a traceback, and SIGHUP does not end a broker that has a settings file.
"""

from __future__ import annotations

import os
import signal
import sys

from rocketpoll import restore_worker_python

_INTERRUPTED_EXIT_CODE = 130
"""Exit code of a command that Ctrl-C has ended, as in shells."""


def main() -> int:
    """Run the command that this process's arguments name, and return its exit code."""
    restore_worker_python()
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # a shell's background job ignores it
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED_EXIT_CODE))
    if sys.platform != "win32" and _is_broker_with_settings(sys.argv[1:]):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the broker handles it later
    from rmq_spark.cli.main import main as run  # noqa: PLC0415  # after the handler is set

    signal.signal(signal.SIGINT, handler)
    return run()


def _is_broker_with_settings(arguments: list[str]) -> bool:
    return arguments[:1] == ["broker"] and any(
        each.startswith(("-c", "--c")) for each in arguments[1:]
    )


if __name__ == "__main__":
    sys.exit(main())
