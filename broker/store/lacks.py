"""What an error of the disk means: something is lacking and may be there later, or the disk has failed.

Lacking are room, descriptors, memory, and leave to write to a disk that is read-only. Nothing was lost then,
and to try again is right. A flush that has failed is another matter, whatever its error says: what it was
for may be lost, and the next one may report success.
"""

from __future__ import annotations

import errno
import logging

_log = logging.getLogger(__name__)
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
_LACKS = _NO_ROOM | _NO_DESCRIPTOR | {errno.ENOMEM, errno.EROFS}


class FlushFailed(OSError):
    """A flush that was begun and has failed."""


class Lacking(Exception):
    """Something was lacking. Nothing was changed."""


def is_lack(error: BaseException) -> bool:
    """Tell whether an error says that something is lacking, so that the same may succeed later."""
    return isinstance(error, OSError) and error.errno in _LACKS and not isinstance(error, FlushFailed)


def lacks_descriptor(error: OSError) -> bool:
    """Tell whether closing another file may help."""
    return error.errno in _NO_DESCRIPTOR


def what_is_lacking(error: OSError) -> str:
    """Describe a lack to a person, with its file."""
    if error.errno in _NO_ROOM:
        return f"the disk is full: {error}"
    if error.errno in _NO_DESCRIPTOR:
        return f"too many files and connections are open: {error}"
    if error.errno == errno.EROFS:
        return f"the disk is read-only: {error}"
    return f"the machine is short of memory: {error}"


class Hindrance:
    """One thing that is kept from being done for now; told of when that begins, and when it is over."""

    def __init__(self, what: str) -> None:
        """``what`` says what is not done."""
        self._what = what
        self.text: str | None = None
        """What is not done, and why; None while nothing is in the way."""

    def begin(self, error: Exception) -> None:
        """Something is in the way, or still is."""
        why = what_is_lacking(error) if isinstance(error, OSError) else str(error)
        if self.text is None:
            _log.warning("%s: %s; it is tried again", self._what, why)
        self.text = f"{self._what}: {why}"

    def end(self) -> None:
        """Nothing is in the way, or not any more."""
        if self.text is not None:
            _log.warning("it is over that %s", self._what)
            self.text = None
