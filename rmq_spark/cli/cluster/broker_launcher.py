"""Broker launcher: replaces this process by a broker's.

It runs the broker's start script by its path, because `rmq_spark` never imports the broker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_PROGRAM: Final = Path(__file__).resolve().parents[3] / "rocketpoll" / "start_broker.py"


def broker_command(arguments: Sequence[str]) -> list[str]:
    """Return the command line of this installation's broker, in any working directory."""
    return [sys.executable, str(_PROGRAM), *arguments]


def run_broker(arguments: Sequence[str]) -> int:
    """Replace this process by a broker's; never returns."""
    sys.stdout.flush()
    command = broker_command(arguments)
    os.execv(command[0], command)  # noqa: S606  # no shell is wanted
