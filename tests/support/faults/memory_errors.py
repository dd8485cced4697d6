"""MemoryErrors at each line of the code under test in turn.

    with MemoryFault(files) as none:            # only counts the lines that need memory
        ...
    with MemoryFault(files, number) as fault:   # raises MemoryError at line ``number``, once
        ...
    with MemoryFault(files, within="_write") as none:   # only in the functions of this name

A line counts each time that it runs in the thread of the test, if it calls, builds or computes
something.
"""

import dis
import linecache
import sys
from functools import cache

_NEED_MEMORY = ("CALL", "BUILD", "BINARY_OP", "FORMAT", "LIST_EXTEND", "MAKE_FUNCTION")


class MemoryFault:
    """Makes one line of some files raise MemoryError in one thread."""

    def __init__(self, files, number=None, within=""):
        self._files = tuple(files)
        self._number = number
        self._within = within
        self.places = []
        """The lines that need memory, in the order in which they ran."""
        self.where = None
        """The line that raised: a file and its number."""

    @property
    def lines(self):
        """Return the number of executed lines that need memory."""
        return len(self.places)

    def first_and_last_of_each(self):
        """Return the numbers of the first and the last execution of each line."""
        first = {place: number for number, place in reversed([*enumerate(self.places)])}
        last = {place: number for number, place in enumerate(self.places)}
        return sorted({*first.values(), *last.values()})

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_):
        sys.settrace(self._before)

    def _called(self, frame, _event, _argument):
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)  # new in Python 3.11
        is_one = code.co_filename.endswith(self._files) and self._within in name
        return self._traced if is_one else None

    def _traced(self, frame, event, _argument):
        if (
            event == "line"
            and self.where is None
            and frame.f_lasti in _starts_that_need_memory(frame.f_code)
        ):
            self.places.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            if self._number is not None and self.lines > self._number:
                self.where = self.places[-1]
                raise MemoryError
        return self._traced


@cache
def _starts_that_need_memory(code):
    """Return the instructions that start a line which needs memory.

    Compilers repeat a line number for code that cannot fail, such as the exit of a ``with`` block.
    `__exit__` is called in the line of the ``with`` and must not fail either.
    """
    found = set()
    line, lines = None, []
    for each in dis.get_instructions(code):
        line = getattr(each, "line_number", each.starts_line) or line  # new in Python 3.13
        lines.append((line, each))
    behind, needs = None, False
    for line, each in reversed(lines):
        needs = each.opname.startswith(_NEED_MEMORY) or (needs and line == behind)
        behind = line
        if needs and not _begins_a_with(code, line):
            found.add(each.offset)
    return found


def _begins_a_with(code, line):
    return line is None or linecache.getline(code.co_filename, line).lstrip().startswith("with ")
