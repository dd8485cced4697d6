"""What an error means: something is lacking and may be there later, or the disk has failed.

Lacking are room, descriptors, memory, threads, and leave to write to a disk that is read-only. Nothing was
lost then, and to try again is right. So it is whenever the disk refuses anything but a flush: what was asked
for has changed nothing, or is done anew. A flush that has failed is another matter, whatever its error says:
what it was for may be lost, and the next one may report success.
"""

from __future__ import annotations

import errno
import logging
from contextlib import suppress

from rocketpoll.broker.store.errors import UnreadableFile

_log = logging.getLogger(__name__)
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
_LACKS = _NO_ROOM | _NO_DESCRIPTOR | {errno.ENOMEM, errno.EROFS}
_NO_THREAD = "can't start new thread"
"""What Python says of a thread that the system does not start; the error has no class of its own."""


class FlushFailed(OSError):
    """A flush that was begun and has failed."""


class Lacking(Exception):
    """Something was lacking. Nothing was changed."""


def is_lack(error: BaseException) -> bool:
    """Tell whether an error says that something is lacking, so that the same may succeed later.

    A library that cannot be loaded is there, but lacks memory or descriptors; a module that is not there is
    a mistake.
    """
    if isinstance(error, OSError):
        return error.errno in _LACKS and not isinstance(error, FlushFailed)
    if isinstance(error, ImportError):
        return not isinstance(error, ModuleNotFoundError)
    return isinstance(error, (MemoryError, Lacking)) or _lacks_thread(error)


def may_succeed_later(error: BaseException) -> bool:
    """Tell whether what has failed is to be tried again: all but flushes, and mistakes of the program."""
    if isinstance(error, (OSError, UnreadableFile)):
        return not isinstance(error, FlushFailed)
    return is_lack(error)


def lacks_descriptor(error: OSError) -> bool:
    """Tell whether closing another file may help."""
    return error.errno in _NO_DESCRIPTOR


def what_is_wrong(error: BaseException) -> str:
    """Describe to a person what keeps something from being done, with its file if there is one."""
    number = error.errno if isinstance(error, OSError) else None
    if number in _NO_ROOM:
        return f"the disk is full: {error}"
    if number in _NO_DESCRIPTOR:
        return f"too many files and connections are open: {error}"
    if number == errno.EROFS:
        return f"the disk is read-only: {error}"
    if number == errno.ENOMEM:
        return f"the machine is short of memory: {error}"
    if isinstance(error, MemoryError):
        return f"the machine is short of memory: {str(error) or 'a request for some was refused'}"
    if isinstance(error, ImportError):
        return f"a library cannot be loaded: {error}"
    return f"no thread can be started: {error}" if _lacks_thread(error) else str(error)


def _lacks_thread(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and str(error) == _NO_THREAD


class Hindrance:
    """One thing that is kept from being done for now; told of when that begins, and when it is over."""

    def __init__(self, what: str) -> None:
        """``what`` says what is not done."""
        self._what = what
        self.text: str | None = None
        """What is not done, and why; None while nothing is in the way."""

    def begin(self, error: BaseException) -> None:
        """Something is in the way, or still is."""
        why = what_is_wrong(error)
        is_new = self.text is None
        self.text = f"{self._what}: {why}"
        if is_new:
            _tell("%s: %s; it is tried again", self._what, why)

    def end(self) -> None:
        """Nothing is in the way, or not any more."""
        if self.text is not None:
            self.text = None
            _tell("it is over that %s", self._what)


def _tell(what: str, *values: str) -> None:
    with suppress(MemoryError):  # what has been done is done, whether there is memory for a word on it or not
        _log.warning(what, *values)
