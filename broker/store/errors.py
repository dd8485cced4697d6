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
    ├── StartEnded        its start was told to end before it was done: start it again
    └── StoreClosed       it has been shut down

Expected outcomes, such as a queue without messages, are no errors but statuses: see `results`.
"""

from __future__ import annotations

from typing import Final

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


class StartEnded(StoreError):
    """A start was told to end before it was done; the next one goes on from there."""
