"""The files of the machine that Spark's workers run on: those of one of the brokers, or of none.

All brokers have theirs at one path, so that only what they prove tells them apart. Files go and
come with the lives of their broker; between two parts that are read, others may have their turns.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import PurePath
from unittest.mock import patch

from rmq_spark.client.reading.log_files import on_this_machine
from rmq_spark.spark import piece_chunks
from rmq_spark.wire.chunk import placed

_READ_SECONDS = (0.0, 0.0, 0.001, 0.3)


class WorkersFiles:
    """What workers see of the disk beside them."""

    def __init__(self, world):
        self._world = world
        self._dice = world.dice_for("files")
        self._number = self._dice.choice([None, 0, 1])
        self.bytes_read = 0

    def start_of(self, path, size):
        return bytes(self._content(path)[:size])

    def read(self, path, parts):
        for position, into in parts:
            time.sleep(self._dice.choice(_READ_SECONDS))
            data = self._content(path)[position : position + len(into)]
            if len(data) < len(into):
                raise OSError(f"{path} is too short")
            into[:] = data
            self.bytes_read += len(into)

    def _content(self, path):
        brokers = self._world.brokers
        if self._number is None or self._number >= len(brokers):
            raise FileNotFoundError(path)
        return brokers[self._number].content(PurePath(path))


def reading_files(files):
    """Have tasks look for files among these, for however few bytes."""
    return (
        patch.object(piece_chunks, "on_this_machine", partial(on_this_machine, files=files)),
        patch.object(placed, "RUN_BYTES_MIN", 1),
    )
