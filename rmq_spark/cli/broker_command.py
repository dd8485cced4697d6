"""``rocketpoll broker``: replaces this process by a broker's.

``broker`` is a name that a file in somebody's working directory may have as well. So the broker is taken from
beside this package, wherever the command was called; where something else comes first on the path of modules,
it says so instead of running that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_HERE = Path(__file__).resolve().parents[2]

START: Final = """
import sys
from pathlib import Path
here = Path(sys.argv.pop(1))
sys.path[:] = [place for place in sys.path if place]
if str(here) not in sys.path:
    sys.path.append(str(here))
import broker
found = Path(broker.__file__ or ".").resolve().parent
if found != here / "broker":
    sys.exit(f"rocketpoll's broker is in {here / 'broker'}, but 'import broker' finds {found}: "
             "rename that, or take its directory out of PYTHONPATH")
from broker.__main__ import main
sys.exit(main(program="rocketpoll broker"))
"""


def broker_command(arguments: Sequence[str]) -> list[str]:
    """The command line of a broker's process."""
    return [sys.executable, "-c", START, str(_HERE), *arguments]


def run_broker(arguments: Sequence[str]) -> int:
    """Become a broker; does not return."""
    sys.stdout.flush()
    command = broker_command(arguments)
    os.execv(command[0], command)  # noqa: S606  # no shell is wanted
