"""Process setup: the first steps of a broker's process, before the imports that take a second.

A daemon may be started with standard descriptors closed. The first files that the process opens
would then get their numbers, and some libraries abort the process in that case. SIGHUP asks a
broker with a settings file to reload it; until the broker can do that, the signal must not end it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def set_up_process(arguments: Sequence[str]) -> None:
    """Open /dev/null where a standard descriptor is closed; ignore SIGHUP if settings have a file.

    Args:
        arguments: The arguments of the broker, without the program's name.
    """
    if any(each.startswith(("-c", "--c")) for each in arguments):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    opened = os.open(os.devnull, os.O_RDWR)
    while opened < 3:  # the system returns the lowest free number
        opened = os.open(os.devnull, os.O_RDWR)
    os.close(opened)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # open while the process runs
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # open while the process runs
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  # open while the process runs


# ---- Pandas blocker: keeps pandas out of the process of a broker, which does not need it.

_NAME = "pandas"


class _PandasBlocker(MetaPathFinder):
    """Reports pandas as not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ModuleNotFoundError for pandas; otherwise return None."""
        del path, target
        if fullname == _NAME:
            raise ModuleNotFoundError("a broker needs no pandas", name=_NAME)
        return None


@contextmanager
def block_pandas() -> Iterator[None]:
    """Return a context in which pandas cannot be imported, unless it is loaded already.

    pyarrow loads pandas, where it is installed, to check whether its arguments are pandas objects.
    That takes 28 MiB, and as long as the start of a broker. If the import fails, pyarrow treats
    pandas as not installed. Use it only in the broker's own process: others may need pandas.
    """
    finder = _PandasBlocker()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
