"""FileMap: a file as it lies in memory, for callers that want many of its bytes without a copy.

A map of which a page cannot be read ends the process with a signal when that page is touched. So
only what lies in memory already is handed out, and cannot fail; all else is left to reads, whose
errors are errors. mincore(2) tells one from the other: 10 µs for 8 MiB, which to copy takes a
hundred times as long. Python knows no such call, and its own maps keep a descriptor each, so this
goes to the C library directly.

A map does not notice that its file was cut short: the caller must know that the file has the part
it asks for.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

_PAGE = mmap.PAGESIZE
_FAILED = ctypes.c_void_p(-1).value

# These calls never wait for a disk: the interpreter is kept meanwhile.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


class FileMap:
    """A read-only map of a whole file, released with the last slice of it."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Map a file of a size above 0; its descriptor may be closed then.

        Raises:
            OSError: There is no room for the map.
        """
        self._address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if self._address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        content = (ctypes.c_ubyte * size).from_address(self._address)
        weakref.finalize(content, _libc.munmap, self._address, size).atexit = False
        self._content = memoryview(content).cast("B").toreadonly()

    def in_memory(self, position: int, size: int) -> memoryview | None:
        """Return a part of the file if all of it lies in memory, else None."""
        first = position - position % _PAGE
        pages = -(-(position + size - first) // _PAGE)
        found = ctypes.create_string_buffer(pages)
        if _libc.mincore(self._address + first, pages * _PAGE, found) or found.raw.count(1) < pages:
            return None
        return self._content[position : position + size]
