"""Temporary files of tests: in memory if there is enough.

Tests of the store create and remove directories by the ten thousand, which takes a disk as long as
all other work. Power losses, failures and shortages are simulated, and a kill leaves the same files
in memory. Tests of ``make wide``, and all tests if TMPDIR is set, use a real disk.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from support.suite.selection import WIDE

_IN_MEMORY = Path("/dev/shm")  # noqa: S108  # a file system, not a temporary name that others could guess
# Six concurrent files held 90 MB at the most
_ROOM = 1 << 30
_MEMORY = 4 << 30


def choose_scratch() -> None:
    """Put temporary files of tests and their programs in memory if it has room."""
    if not WIDE and "TMPDIR" not in os.environ and _has_room():
        os.environ["TMPDIR"] = str(_IN_MEMORY)
        tempfile.tempdir = None


def _has_room() -> bool:
    if not _IN_MEMORY.is_mount() or not os.access(_IN_MEMORY, os.W_OK):
        return False
    held = os.statvfs(_IN_MEMORY)
    available = re.search(
        r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE
    )
    free = held.f_bavail * held.f_frsize
    return free >= _ROOM and available is not None and int(available[1]) << 10 >= _MEMORY
