"""Records the operations of a process on files of a directory, its disk; rules make some fail.

    os.pwrite ──> Recorder ──> the real os.pwrite ──> the recording ──> back to the caller

The recorder replaces the functions of `os` that change files. One call at a time is executed and
recorded. Flushes run beside other calls: their begin and their end are recorded. A change in
another way is recorded as unseen, which spoils the recording.
"""

from __future__ import annotations

import os
import random
import signal
import stat
import sys
import threading
import time
from contextlib import contextmanager
from functools import wraps
from typing import NamedTuple

_BY_DESCRIPTOR = ("writev", "pwritev", "sendfile", "copy_file_range", "splice", "dup", "dup2")
"""Other functions that could change an open file; a broker does not use them on its files."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES_OF_NAMES = frozenset(
    ["os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate"]
)


class Handle(NamedTuple):
    """An open file: its number in the recording, and its path, with a slash for a directory."""

    number: int
    path: str


class Recorder:
    """Records a process's file operations, from `install` on."""

    def __init__(self, disk, writer, rules, seed=0):
        self._disk = disk
        self._writer = writer
        self._rules = rules
        self._dice = random.Random(seed)
        self._lock = threading.RLock()
        self._depth = 0
        self._inside = None  # the thread in the current call
        self._handles = {}
        self._last_number = 0
        self._last_flushes = {}  # paths at whose next flush the process dies

    def install(self):
        """Replace the functions of `os`."""
        for name, wrapper in {
            "open": self._opening,
            "close": self._close_future,
            "write": self._writing,
            "pwrite": self._writing,
            "ftruncate": self._resizing,
            "posix_fallocate": self._resizing,
            "fsync": self._flushing,
            "fdatasync": self._flushing,
            "rename": self._renaming,
            "replace": self._renaming,
            "unlink": self._deleting,
            "remove": self._deleting,
            "rmdir": self._deleting,
            "mkdir": self._making_directory,
            "statvfs": self._looking,
        }.items():
            self._replace(name, wrapper)
        for name in _BY_DESCRIPTOR:
            self._replace(name, self._unseen)
        sys.addaudithook(self._look_for_unseen)

    def _replace(self, name, wrapper):
        real = getattr(os, name)

        @wraps(real)
        def replaced(*arguments, **more):
            return wrapper(real, *arguments, **more)

        setattr(os, name, replaced)
        # Until Python 3.10, pathlib binds its own functions on import.
        accessor = getattr(sys.modules.get("pathlib"), "_NormalAccessor", None)
        if hasattr(accessor, name):
            setattr(accessor, name, staticmethod(replaced))

    # ---- serialization of calls

    @contextmanager
    def _alone(self):
        """Exclude other changes, and kills from outside."""
        with self._lock:
            if self._depth == 0:
                self._writer.lock()
                self._inside = threading.get_ident()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._inside = None
                    self._writer.unlock()

    @contextmanager
    def _turn(self, kind, *paths):
        """Count one call under the rules; yield the name of a fault, if any."""
        with self._alone():
            hits = self._rules.hits(kind, paths)
            if "die" in hits:
                _die()
            if "fail" in hits:
                raise hits["fail"].as_error(paths[0])
            yield hits
            if "die behind" in hits:
                _die()

    # ---- descriptors

    def _opening(self, real, path, flags, *arguments, **more):
        below = self._below(path)
        if below is None:
            return real(path, flags, *arguments, **more)
        with self._turn("open", below):
            descriptor = real(path, flags, *arguments, **more)
            slash = "/" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else ""
            handle = self._handles[descriptor] = Handle(self._next_number(), below + slash)
            self._writer.put("open", handle.number, below, flags)
        return descriptor

    def _close_future(self, real, descriptor):
        with self._lock:
            self._handles.pop(descriptor, None)
            real(descriptor)

    def _writing(self, real, descriptor, data, *position):
        handle = self._handles.get(descriptor)
        if handle is None:
            return real(descriptor, data, *position)
        whole = memoryview(data).cast("B")
        with self._turn("write", handle.path) as hits:
            is_short = len(whole) > 1 and ("short" in hits or "lie" in hits)
            part = whole[: self._dice.randrange(1, len(whole))] if is_short else whole
            written = real(descriptor, part, *position)
            start = position[0] if position else os.lseek(descriptor, 0, os.SEEK_CUR) - written
            self._writer.put("write", handle.number, start, bytes(part[:written]))
        return len(whole) if "lie" in hits else written

    def _resizing(self, real, descriptor, *arguments):
        handle = self._handles.get(descriptor)
        if handle is None:
            real(descriptor, *arguments)
            return
        with self._turn("truncate", handle.path):
            real(descriptor, *arguments)
            self._writer.put("truncate", handle.number, os.fstat(descriptor).st_size)

    # ---- flushes

    def _flushing(self, real, descriptor):
        handle = self._handles.get(descriptor)
        if handle is None:
            real(descriptor)
            return
        with self._alone():
            hits = self._rules.hits("flush", [handle.path])
            if "die" in hits:
                _die()
            if "forget" in hits:
                return
            if "late" in hits:
                self._last_flushes[hits["late"].until] = None
                return
            flush = self._begin_flush(handle)
        self._linger(hits)
        try:
            if "fail" in hits:
                raise hits["fail"].as_error(handle.path)
            real(descriptor)
        except OSError:
            with self._alone():
                self._writer.put("fail_flush", flush)
            raise
        self._linger(hits)
        with self._alone():
            self._writer.put("end_flush", flush)
            if "die behind" in hits or handle.path in self._last_flushes:
                _die()

    def _begin_flush(self, handle):
        number = self._next_number()
        self._writer.put("begin_flush", number, handle.number)
        return number

    def _linger(self, hits):
        if "slow" in hits:
            time.sleep(self._dice.uniform(0, hits["slow"].seconds))

    # ---- names

    def _renaming(self, real, path, new_path, **more):
        self._apply("rename", real, path, new_path, **more)

    def _deleting(self, real, path, **more):
        self._apply("delete", real, path, **more)

    def _making_directory(self, real, path, *mode, **more):
        self._apply("make_directory", lambda path, **more: real(path, *mode, **more), path, **more)

    def _apply(self, kind, real, *paths, **more):
        below = [self._below(path) for path in paths]
        if None not in below:
            with self._turn(kind, *below):
                real(*paths, **more)
                self._writer.put(kind, *below)
            return
        relative_to = [more[name] for name in more if name.endswith("dir_fd")]
        if any(path is not None for path in below) or any(
            each in self._handles for each in relative_to
        ):
            self._writer.put("unseen", kind, *map(str, paths))
        real(*paths, **more)

    # ---- disk usage

    def _looking(self, real, path):
        found = real(path)
        opened = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else path  # noqa: PTH115  # as `_below` does
        below = self._below(opened)
        if below is None:
            return found
        with self._turn("look", below) as hits:
            if "full" not in hits:
                return found
        left = round(found.f_blocks * (1 - hits["full"].share))
        return os.statvfs_result((*found[:3], left, left, *found[5:]))

    # ---- paths and numbers

    def _below(self, path):
        """Return a path relative to the disk; None if it is outside."""
        absolute = os.path.abspath(os.fsdecode(path))  # noqa: PTH100  # not pathlib, which calls this function
        is_below = absolute.startswith(self._disk + os.sep)
        return (
            absolute[len(self._disk) + 1 :] if is_below else "" if absolute == self._disk else None
        )

    def _next_number(self):
        self._last_number += 1
        return self._last_number

    # ---- changes by other functions

    def _unseen(self, real, *arguments, **more):
        if any(each in self._handles for each in arguments if isinstance(each, int)):
            self._writer.put("unseen", real.__name__, *map(str, arguments))
        return real(*arguments, **more)

    def _look_for_unseen(self, event, arguments):
        """Record changes of names and files that Python's audit events report, and no recorded
        function made."""
        if self._inside == threading.get_ident():
            return
        if event == "open":
            path, _, flags = arguments
            paths = [path] if flags & _WRITING else []
            if isinstance(path, int) and not paths:
                # A file object reads it from now on, and closes it without os.close
                self._handles.pop(path, None)
        elif event in _CHANGES_OF_NAMES:
            paths = arguments[:2]
        else:
            return
        if any(self._is_on_disk(path) for path in paths):
            self._writer.put("unseen", event, *map(str, arguments))

    def _is_on_disk(self, path):
        if isinstance(path, int):
            return path in self._handles
        return isinstance(path, (str, bytes, os.PathLike)) and self._below(path) is not None


def _die():
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
