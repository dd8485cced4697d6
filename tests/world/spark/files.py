"""Files on the machine of Spark's workers: those of one of the brokers, or none.

All brokers have theirs at the same path, so that only their proof files tell them apart. Files
appear and disappear with the lives of their broker, also between the reads of two parts.
"""

import time
from functools import partial
from pathlib import PurePath
from unittest.mock import patch

from rmq_spark.client.reading.log_files import LocalLogFinder
from rmq_spark.spark.read import record_chunks
from rmq_spark.wire.chunk import record_locations

_READ_SECONDS = (0.0, 0.0, 0.001, 0.3)


class WorkersFiles:
    """The files that workers see on their disk."""

    def __init__(self, world):
        self._world = world
        self.dice = world.dice_for("files")
        self._number = self.dice.choice([None, 0, 1])
        self.bytes_read = 0

    def open(self, path):
        return _Directory(self, PurePath(path))

    def content(self, path):
        brokers = self._world.brokers
        if self._number is None or self._number >= len(brokers):
            raise FileNotFoundError(path)
        return brokers[self._number].content(path)


class _Directory:
    """A directory that exists while it has files."""

    def __init__(self, files, path):
        self._files = files
        self._path = path

    def read_proof(self, name):
        return bytes(self._files.content(self._path / name)), 0

    def open_subdirectory(self, name, owner):
        return _Directory(self._files, self._path / name)

    def read(self, name, position, into):
        time.sleep(self._files.dice.choice(_READ_SECONDS))
        data = self._files.content(self._path / name)[position : position + len(into)]
        if len(data) < len(into):
            raise OSError(f"{name} is too short")
        into[:] = data
        self._files.bytes_read += len(into)


def reading_files(files):
    """Make tasks look for these files, for any number of bytes."""
    return (
        patch.object(record_chunks, "LocalLogFinder", partial(LocalLogFinder, files.open)),
        patch.object(record_locations, "RUN_BYTES_MIN", 1),
    )
