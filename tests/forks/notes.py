"""Notes: what the processes of a story write down, a line each, in one file that survives them.

    {"pid": 71, "at": 12.5, "what": "sent", "body": "71-3", "queue": 0, "offset": 17, ...}

A line is one write to the end of the file, so that those of several processes never mix, and none
is lost by a process that is killed behind it.
"""

import json
import logging
import os
import time
from pathlib import Path


class Notes:
    """The file of one story, open in its parent and in each child."""

    def __init__(self, path):
        self.path = Path(path)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, what, **fields):
        line = {"pid": os.getpid(), "at": time.monotonic(), "what": what, **fields}
        os.write(self._file, json.dumps(line, default=str).encode() + b"\n")

    def all(self):
        """Return all notes so far, in the order of writing."""
        return [json.loads(line) for line in self.path.read_text().splitlines()]


class NotedErrors(logging.Handler):
    """Records errors that the client logs: a fork is no reason for one."""

    def __init__(self, notes):
        super().__init__(logging.ERROR)
        self._notes = notes

    def emit(self, record):
        self._notes.note("logged", text=logging.Formatter().format(record))
