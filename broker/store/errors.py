"""Errors of a store as a whole, sorted by what its operator can do.

    StoreError
    ├── StoreInUse        another process has it open: stop that one
    ├── ForeignFile       a file that is not of this store's making or settings: nothing was touched
    │   └── MissingFile   one between two that are there: put it back, if it holds messages
    ├── UnreadableFile    the disk does not give a part of a file: look after the disk; all else is
    │                     served
    ├── EndUnknown        a start is not finished, for lack of something: ask again later
    ├── DamagedTable      a small table and its backup cannot be read: restore one of them
    ├── BatchRefused      a staged batch cannot be committed: its sink has to stage it again
    ├── StoreFailed       the disk has failed: reads go on, writes need a restart
    ├── StartInterrupted        its start was told to end before it was done: start it again
    └── StoreClosed       it has been shut down

Expected outcomes, such as a queue without messages, are no errors but statuses: see `results`.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Hashable
from contextlib import suppress
from typing import Final, Generic, TypeVar

from rmq_spark.errors import RocketPollError

_RESTART: Final = "; restart the broker"


class StoreError(RocketPollError, page="troubleshooting.md#the-broker-and-its-store"):
    """The base of all errors that the store reports."""


class StoreInUse(StoreError):
    """Another process uses the same directory."""


class ForeignFile(StoreError):
    """A file's name or size does not belong here."""


class MissingFile(ForeignFile):
    """A file that should lie between two others is missing."""


class UnreadableFile(StoreError):
    """A part of a file cannot be read."""


class EndUnknown(StoreError):
    """Nobody knows yet where a queue ends."""


class DamagedTable(StoreError):
    """Neither a table's file nor its backup can be read."""


class BatchRefused(StoreError):
    """A batch cannot be made of what is staged, or is to be. Nobody sees anything of it."""


class StoreFailed(StoreError):
    """A flush has failed, or a write that cannot be undone; what is on the disk is uncertain."""

    def __init__(self, what: str, cause: BaseException | None = None) -> None:
        """Compose a message of what has failed, its cause, and once what an operator can do."""
        text = what if cause is None else f"{what}: {str(cause).removesuffix(_RESTART)}"
        super().__init__(f"{text}{_RESTART}")


class StoreClosed(StoreError):
    """The store was used after it was shut down."""


class StartInterrupted(StoreError):
    """A start was told to end before it was done; the next one goes on from there."""


# ---- The meaning of an error: something is lacking and may be there later, or the disk has
# failed.

Key = TypeVar("Key", bound=Hashable)
_log = logging.getLogger(__name__)
_DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
_DESCRIPTOR_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE})
_LOST_CONTENT_ERRNOS = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN})
_TRANSIENT_ERRNOS = _DISK_FULL_ERRNOS | _DESCRIPTOR_ERRNOS | {errno.ENOMEM, errno.EROFS}
_NO_THREAD_MESSAGE = "can't start new thread"
"""Python's message if the system starts no thread; the error has no class of its own."""


class FlushFailed(OSError):
    """A flush was begun and has failed."""


class TransientFailure(Exception):
    """Something was lacking. Nothing was changed."""


def is_transient(error: BaseException) -> bool:
    """Return whether an error says that something is lacking, so that a retry may succeed.

    A library that cannot be loaded is there, but lacks memory or descriptors; a module that is
    missing is a mistake.
    """
    if isinstance(error, OSError):
        return error.errno in _TRANSIENT_ERRNOS and not isinstance(error, FlushFailed)
    if isinstance(error, ImportError):
        return not isinstance(error, ModuleNotFoundError)
    return isinstance(error, (MemoryError, TransientFailure)) or _is_thread_shortage(error)


def is_retryable(error: BaseException) -> bool:
    """Return whether to try again: after all errors but failed flushes and programming mistakes."""
    if isinstance(error, (OSError, UnreadableFile)):
        return not isinstance(error, FlushFailed)
    return is_transient(error)


def has_lost_content(error: BaseException) -> bool:
    """Return whether a disk has lost what was to be read; all else is the operator's to mend."""
    cause = error.__cause__ if isinstance(error, UnreadableFile) else error
    return isinstance(cause, OSError) and cause.errno in _LOST_CONTENT_ERRNOS


def is_retryable_read(error: BaseException) -> bool:
    """Return whether a disk refuses to read what it may still hold: for now, or to this user."""
    return isinstance(error.__cause__, OSError) and not has_lost_content(error)


def is_resource_shortage(error: UnreadableFile) -> bool:
    """Return whether something is lacking to read with, so that nothing says what lies there."""
    return error.__cause__ is not None and is_transient(error.__cause__)


def is_disk_full(error: BaseException) -> bool:
    """Return whether the disk is full, so that less than what was refused may still fit."""
    return isinstance(error, OSError) and error.errno in _DISK_FULL_ERRNOS


def is_out_of_descriptors(error: OSError) -> bool:
    """Return whether closing another file may help."""
    return error.errno in _DESCRIPTOR_ERRNOS


def describe_error(error: BaseException) -> str:
    """Describe an error to a person, with its file if there is one."""
    number = error.errno if isinstance(error, OSError) else None
    if number in _DISK_FULL_ERRNOS:
        return f"the disk is full: {error}"
    if number in _DESCRIPTOR_ERRNOS:
        return f"too many files and connections are open: {error}"
    if number == errno.EROFS:
        return f"the disk is read-only: {error}"
    if number == errno.EFBIG:
        return f"the broker may not write as far into a file (ulimit -f): {error}"
    if number == errno.EPERM:
        return f"it is not permitted, perhaps by an attribute of the file (lsattr): {error}"
    if number == errno.ENOMEM:
        return f"the machine is short of memory: {error}"
    if isinstance(error, MemoryError):
        return f"the machine is short of memory: {str(error) or 'a request for some was refused'}"
    if isinstance(error, ImportError):
        return f"a library cannot be loaded: {error}"
    return f"no thread can be started: {error}" if _is_thread_shortage(error) else str(error)


def _is_thread_shortage(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and str(error) == _NO_THREAD_MESSAGE


class Degradation:
    """Something that cannot be done for now; its begin and end are logged once each."""

    def __init__(self, what: str) -> None:
        """Begin without a hindrance; ``what`` says what is not done."""
        self._what = what
        self.text: str | None = None
        """The text of what is not done, and why; None while nothing is in the way."""

    def begin(self, error: BaseException) -> None:
        """Note that something is in the way, or still is."""
        why = describe_error(error)
        is_new = self.text is None
        self.text = f"{self._what}: {why}"
        if is_new:
            _log_warning("%s: %s; it is tried again", self._what, why)

    def end(self) -> None:
        """Note that nothing is in the way, or not any more."""
        if self.text is not None:
            self.text = None
            _log_warning("it is over that %s", self._what)

    def clear(self) -> None:
        """Forget what was in the way, which nobody tries again any more."""
        self.text = None


class Degradations(Generic[Key]):
    """Things of one kind that cannot be done for now, by key.

    The begin and end of each are logged.
    """

    def __init__(self) -> None:
        """Begin without hindrances."""
        self._active: dict[Key, Degradation] = {}

    def begin(self, key: Key, what: str, error: BaseException) -> None:
        """Note that something is in the way of one, or still is; ``what`` says what is not done."""
        self._active.setdefault(key, Degradation(what)).begin(error)

    def end(self, key: Key) -> None:
        """Note that nothing is in the way of one, or not any more."""
        if key in self._active:
            self._active.pop(key).end()


def _log_warning(what: str, *values: str) -> None:
    with suppress(
        MemoryError
    ):  # what has been done is done, whether there is memory for a word on it or not
        _log.warning(what, *values)
