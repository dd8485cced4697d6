"""QueueOffset and PhysicalOffset: the two offsets of a message, which mypy keeps apart.

    queue offset      the number of a message in its queue: 0, 1, 2 ...
    physical offset   the place of its first byte in the commit log; so is each place in it

Both are plain integers where a program runs, so that neither costs anything. An offset and a number
make an offset of the same kind, and two of a kind are a number apart: a size, or a count. Whatever
takes the one kind is not given the other, nor a number of which nobody has said which it is. A
place in a file is neither: the files of queues and of the log are the same to what reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, overload

if TYPE_CHECKING:

    class QueueOffset(int):
        """The number of a message in its queue."""

        def __add__(self, count: int, /) -> QueueOffset: ...
        @overload
        def __sub__(  # type: ignore[overload-overlap]  # an offset is also a number
            self, other: QueueOffset, /
        ) -> int: ...
        @overload
        def __sub__(self, count: int, /) -> QueueOffset: ...
        def __sub__(self, other: int, /) -> int: ...

    class PhysicalOffset(int):
        """A place in the commit log, in bytes from where it once began."""

        def __add__(self, size: int, /) -> PhysicalOffset: ...
        @overload
        def __sub__(  # type: ignore[overload-overlap]  # an offset is also a number
            self, other: PhysicalOffset, /
        ) -> int: ...
        @overload
        def __sub__(self, size: int, /) -> PhysicalOffset: ...
        def __sub__(self, other: int, /) -> int: ...

else:
    QueueOffset = PhysicalOffset = int

FIRST_IN_QUEUE = QueueOffset(0)
LOG_START = PhysicalOffset(0)

Hole: TypeAlias = tuple[PhysicalOffset, PhysicalOffset]
"""The start and the end of a part of the log in which no records are found."""
