"""``rocketpoll broker``: replaces this process by a broker's.

It names the broker's program by its path and imports nothing of the broker: `rmq_spark` never does.
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
