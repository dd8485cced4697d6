"""Errors of a store as a whole, grouped by what the operator can do.

    StoreError
    ├── StoreInUse        another process has the store open: stop that process
    ├── ForeignFile       a file of another program or other settings: nothing was touched
    │   └── MissingFile   a file between two others is missing: restore it, or accept the loss
    ├── UnreadableFile    the disk cannot read a part of a file: check the disk; all else is
    │                     served
    ├── EndUnknown        a start is not finished, because of a shortage: retry later
    ├── IndexLimitReached a query by key ended at its limit: narrow its range of time
    ├── DamagedTable      a small table and its backup cannot be read: restore one of them
    ├── BatchRefused      a staged batch cannot be committed: its sink has to stage it again
    ├── StoreFailed       the disk has failed: reads continue, writes need a restart
    ├── StartInterrupted  the caller ended the start before it was done: start again
    └── StoreClosed       the store has been shut down

Expected outcomes, such as a queue without messages, are statuses, not errors: see `results`.
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
    """A file's name or size does not fit the store."""


class MissingFile(ForeignFile):
    """A file that should lie between two others is missing."""


class UnreadableFile(StoreError):
    """A part of a file cannot be read."""


class EndUnknown(StoreError):
    """The end of a queue is not known yet."""


class IndexLimitReached(StoreError):
    """A query by key has reached its limit of index entries without finding a message."""

    def __init__(self, key: str, entries: int) -> None:
        super().__init__(
            f"none of the newest {entries} messages whose keys have the hash of {key[:60]!r} has "
            "this key, and older ones were not looked at. Narrow the range of time, or raise "
            "maxIndexHops"
        )


class DamagedTable(StoreError):
    """Neither a table's file nor its backup can be read."""


class BatchRefused(StoreError):
    """A batch cannot be staged or committed; none of its rows become visible."""


class StoreFailed(StoreError):
    """A flush failed, or a write that cannot be undone; the content on disk is uncertain."""

    def __init__(self, what: str, cause: BaseException | None = None) -> None:
        """Compose a message of what failed, its cause, and the remedy, which appears only once."""
        text = what if cause is None else f"{what}: {str(cause).removesuffix(_RESTART)}"
        super().__init__(f"{text}{_RESTART}")


class StoreClosed(StoreError):
    """The store was used after it was shut down."""


class StartInterrupted(StoreError):
    """The caller ended a start before it was done; the next start continues it."""


# ---- I/O errors: transient (disk full, out of descriptors or memory, read-only) or fatal.

Key = TypeVar("Key", bound=Hashable)
_log = logging.getLogger(__name__)
_DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
_DESCRIPTOR_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE})
_LOST_CONTENT_ERRNOS = frozenset(
    {errno.EIO, errno.EBADMSG, getattr(errno, "EUCLEAN", errno.EIO)}  # macOS lacks the last
)
_TRANSIENT_ERRNOS = _DISK_FULL_ERRNOS | _DESCRIPTOR_ERRNOS | {errno.ENOMEM, errno.EROFS}
_NO_THREAD_MESSAGE = "can't start new thread"
"""Python's message if the system cannot start a thread; the error has no class of its own."""


class FlushFailed(OSError):
    """A flush was started and has failed."""


class TransientFailure(Exception):
    """A resource was unavailable. Nothing was changed."""


def is_transient(error: BaseException) -> bool:
    """Return whether an error reports a shortage, so that a retry may succeed.

    If an existing library cannot be loaded, memory or descriptors are short; a missing module is a
    mistake in the setup.
    """
    if isinstance(error, OSError):
        return error.errno in _TRANSIENT_ERRNOS and not isinstance(error, FlushFailed)
    if isinstance(error, ImportError):
        return not isinstance(error, ModuleNotFoundError)
    return isinstance(error, (MemoryError, TransientFailure)) or _is_thread_shortage(error)


def is_retryable(error: BaseException) -> bool:
    """Return whether to retry: after all errors except failed flushes and programming mistakes."""
    if isinstance(error, (OSError, UnreadableFile)):
        return not isinstance(error, FlushFailed)
    return is_transient(error)


def has_lost_content(error: BaseException) -> bool:
    """Return whether a disk has lost the data to be read; an operator can fix all other errors."""
    cause = error.__cause__ if isinstance(error, UnreadableFile) else error
    return isinstance(cause, OSError) and cause.errno in _LOST_CONTENT_ERRNOS


def is_retryable_read(error: BaseException) -> bool:
    """Return whether the disk refused a read that may succeed later, or for another user."""
    return isinstance(error.__cause__, OSError) and not has_lost_content(error)


def is_resource_shortage(error: UnreadableFile) -> bool:
    """Return whether a read failed for lack of a resource, so that the data may be intact."""
    return error.__cause__ is not None and is_transient(error.__cause__)


def is_disk_full(error: BaseException) -> bool:
    """Return whether the disk is full, so that a smaller write may still succeed."""
    return isinstance(error, OSError) and error.errno in _DISK_FULL_ERRNOS


def is_out_of_descriptors(error: OSError) -> bool:
    """Return whether closing another file may help."""
    return error.errno in _DESCRIPTOR_ERRNOS


def describe_error(error: BaseException) -> str:
    """Return the log text of an error, with its file if there is one."""
    number = error.errno if isinstance(error, OSError) else None
    if number in _DISK_FULL_ERRNOS:
        return f"the disk is full: {error}"
    if number in _DESCRIPTOR_ERRNOS:
        return f"too many files and connections are open: {error}"
    if number == errno.EROFS:
        return f"the disk is read-only: {error}"
    if number == errno.EFBIG:
        return f"the file would exceed the file size limit of the broker (ulimit -f): {error}"
    if number == errno.EPERM:
        return (
            "the operation is not permitted, perhaps because of a file attribute (see lsattr): "
            f"{error}"
        )
    if number == errno.ENOMEM:
        return f"the machine is short of memory: {error}"
    if isinstance(error, MemoryError):
        return f"the machine is short of memory: {str(error) or 'an allocation failed'}"
    if isinstance(error, ImportError):
        return f"a library cannot be loaded: {error}"
    return f"no thread can be started: {error}" if _is_thread_shortage(error) else str(error)


def _is_thread_shortage(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and str(error) == _NO_THREAD_MESSAGE


class Degradation:
    """A failure that is retried; its begin and its end are logged once each."""

    def __init__(self, what: str) -> None:
        """Start without a failure; ``what`` names the work that is not done."""
        self._what = what
        self.text: str | None = None
        """The work that is not done, and the reason; None while there is no failure."""

    def begin(self, error: BaseException) -> None:
        """Record a failure; log it if it is new."""
        why = describe_error(error)
        is_new = self.text is None
        self.text = f"{self._what}: {why}"
        if is_new:
            _log_warning("%s, retrying: %s", self._what, why)

    def end(self) -> None:
        """Record that there is no failure; log it if there was one."""
        if self.text is not None:
            self.text = None
            _log_warning("resolved: %s", self._what)

    def clear(self) -> None:
        """Remove the failure without logging, because nothing retries it any more."""
        self.text = None


class Degradations(Generic[Key]):
    """Degradations of one kind, by key."""

    def __init__(self) -> None:
        self._active: dict[Key, Degradation] = {}

    def begin(self, key: Key, what: str, error: BaseException) -> None:
        """Record a failure for one key; ``what`` names the work that is not done."""
        self._active.setdefault(key, Degradation(what)).begin(error)

    def end(self, key: Key) -> None:
        """Record that there is no failure for one key."""
        if key in self._active:
            self._active.pop(key).end()


def _log_warning(what: str, *values: str) -> None:
    # a line that cannot be logged for lack of memory must not make the caller's work fail
    with suppress(MemoryError):
        _log.warning(what, *values)
