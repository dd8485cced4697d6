"""A recording: the calls of one process in a file, each complete before its caller continues.

    u32 size, marshalled tuple      (kind, *arguments), as `replay` takes them

The process locks the file from before a call until it is recorded. So a kill under `held` never
comes in between, and exactly the executed calls are recorded. Both processes use the same Python.
"""

import fcntl
import marshal
import os
import struct
from contextlib import contextmanager

_SIZE = struct.Struct("<I")
_PIECE_BYTES = 1 << 20


class RecordingWriter:
    """The file of the recorded process. It uses no function of `os` that might be recorded."""

    def __init__(self, path):
        self._write = os.write
        self._descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )

    def put(self, kind, *arguments):
        data = marshal.dumps((kind, *arguments))
        data = _SIZE.pack(len(data)) + data
        written = self._write(self._descriptor, data)
        assert written == len(data), "there is no room for the recording"

    def lock(self):
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def unlock(self):
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)


class Recording:
    """The parent's view of a recording, during the run or after it."""

    def __init__(self, path):
        self._file = path.open("ab+")
        self._file.seek(0)
        self._rest = b""

    def new_calls(self):
        """Return the calls recorded since the last time."""
        while data := self._file.read(_PIECE_BYTES):
            self._rest += data
            start = 0
            while start + _SIZE.size <= len(self._rest):
                (size,) = _SIZE.unpack_from(self._rest, start)
                end = start + _SIZE.size + size
                if end > len(self._rest):
                    break
                yield marshal.loads(self._rest[start + _SIZE.size : end])  # noqa: S302  # data of our own child process
                start = end
            self._rest = self._rest[start:]

    @contextmanager
    def held(self):
        """Block calls of the process, except flushes."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self):
        self._file.close()
