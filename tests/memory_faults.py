"""Memory that is lacking at any line of the code under test, one line after the other.

    for fault in memory_faults("broker/store/appender.py", ...):
        with fault:                 # one line raises MemoryError, once, instead of being run
            ...

Only lines count that need memory: those that call, build or reckon something. They are counted as they are
run: the first fault hits the first of them, the next the second, until one is not reached any more.
"""

from __future__ import annotations

import dis
import linecache
import sys
from functools import cache
from itertools import count

_NEED_MEMORY = ("CALL", "BUILD", "BINARY_OP", "FORMAT", "LIST_EXTEND", "MAKE_FUNCTION")


class MemoryFault:
    """From one thread's lines in some files, one cannot be run: there is no memory for it."""

    def __init__(self, files, number):
        self._files = tuple(files)
        self._left = number
        self.where = None
        """The line that was hit: a file and its number."""

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_):
        sys.settrace(self._before)

    def _called(self, frame, _event, _argument):
        return self._traced if frame.f_code.co_filename.endswith(self._files) else None

    def _traced(self, frame, event, _argument):
        if event == "line" and self.where is None and frame.f_lineno in _lines_that_need_memory(frame.f_code):
            self._left -= 1
            if self._left < 0:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise MemoryError
        return self._traced


@cache
def _lines_that_need_memory(code):
    """Of a function; the end of a ``with`` is called in the line of its beginning, and must not fail."""
    line = None
    found = set()
    for each in dis.get_instructions(code):
        line = each.starts_line or line
        if line is None or not each.opname.startswith(_NEED_MEMORY):
            continue
        if not linecache.getline(code.co_filename, line).lstrip().startswith("with "):
            found.add(line)
    return found


def memory_faults(*files):
    """Faults at each line of these files, until one is not reached."""
    for number in count():
        fault = MemoryFault(files, number)
        yield fault
        if fault.where is None:
            return
