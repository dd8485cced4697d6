"""Whether a path still leads to what is open, by the numbers of its device and its file.

A file system in a program may make up another number at each look. So a difference is believed only
where two looks at the path find the same; else the numbers say nothing, which is logged once, and
what somebody replaces is not noticed.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

_log = logging.getLogger(__name__)
_told: set[int] = set()
"""The devices of which it was logged that their numbers say nothing."""


def leads_to(path: Path, opened: int) -> bool:
    """Return whether a path leads to the file, or directory, that a descriptor has open.

    Raises:
        OSError: It leads nowhere.
    """
    found = path.stat()
    if os.path.samestat(found, os.fstat(opened)):
        return True
    if os.path.samestat(found, path.stat()):
        return False
    if found.st_dev not in _told:
        _told.add(found.st_dev)
        _log.warning(
            "the file system of %s has another number for a file at each look: nobody notices here "
            "when files are moved away or replaced while they are in use",
            path,
        )
    return True
