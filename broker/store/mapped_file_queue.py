"""Many files of one size, named by the offset of their first byte: one space of offsets.

The commit log and each consume queue are such a space. Files exist without gaps between the first and the
last; readers keep the views that they have when a file is deleted. What the bytes mean is not known here.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from broker.store.disk import Disk, DiskFile
from broker.store.errors import ForeignFile, MissingFile
from rmq_spark.wire.framing import Buffer

NAME_DIGITS = 20


class MappedFile(NamedTuple):
    """One of the files, and the offset of its first byte."""

    from_offset: int
    path: Path
    file: DiskFile


class MappedFileQueue:
    """The files of one directory. One writer; any number of readers, in any thread."""

    def __init__(self, disk: Disk, directory: Path, file_size: int) -> None:
        """Touches nothing on the disk before it is loaded or written to."""
        self._disk = disk
        self._directory = directory
        self._file_size = file_size
        self._files: tuple[MappedFile, ...] = ()  # replaced whole, so that readers see one state
        self._unflushed: dict[int, DiskFile] = {}
        self._unflushed_directories: tuple[Path, ...] = ()
        self._marks = threading.Lock()
        self._closing = threading.Lock()
        self.had_empty_files = False

    @property
    def file_size(self) -> int:
        """The size of each file."""
        return self._file_size

    @property
    def files(self) -> tuple[MappedFile, ...]:
        """Those that exist, in order."""
        return self._files

    @property
    def first_offset(self) -> int:
        """The first offset that there is a file for; 0 without any."""
        return self._files[0].from_offset if self._files else 0

    @property
    def end_offset(self) -> int:
        """The offset behind the last file; 0 without any."""
        return self._files[-1].from_offset + self._file_size if self._files else 0

    def load(self) -> None:
        """Open the files of the directory, refusing any that cannot be ours before one is touched.

        A file without any bytes is what a power loss leaves of one whose size was never flushed: it gets
        its size, and zeros.
        """
        names = self._disk.names(self._directory)
        empty = [name for position, name in enumerate(names) if self._is_empty(name, names[0], position)]
        for name in empty:
            self._disk.delete(self._directory / name)
            self._disk.create(self._directory / name, self._file_size).close()
        if empty:
            self._disk.flush_directory(self._directory)
        self._files = tuple(
            MappedFile(int(name), self._directory / name, self._disk.open(self._directory / name))
            for name in names
        )
        self.had_empty_files = bool(empty)

    def _is_empty(self, name: str, first: str, position: int) -> bool:
        path = self._directory / name
        if len(name) != NAME_DIGITS or not name.isdecimal():
            raise ForeignFile(f"{path} is no file of this store: its name should be {NAME_DIGITS} digits")
        size = self._disk.size_of(path)
        if size not in (self._file_size, 0):
            raise ForeignFile(
                f"{path} has {size} bytes, but the store is set to files of {self._file_size}: "
                "start with the size that it was written with"
            )
        expected = int(first) + position * self._file_size
        if int(name) != expected:
            raise MissingFile(f"{self._directory} lacks the file {expected:0{NAME_DIGITS}d} before {name}")
        return size == 0

    def space_left(self, offset: int) -> int:
        """Bytes from an offset to the end of its file."""
        return self._file_size - offset % self._file_size

    def write(self, offset: int, data: Buffer) -> None:
        """Write data that ends within the file in which it starts, making that file if it is the next."""
        mapped = self._file_at(offset) or self._create(offset)
        # Marked before, as of a write that fails a part may have come about; and again behind it, as a
        # flush that ran meanwhile took the mark and perhaps not the data.
        if mapped.from_offset not in self._unflushed:
            self._mark_unflushed(mapped)
        mapped.file.write(data, offset - mapped.from_offset)
        # A mark that is still seen here has not been taken yet: the flush that takes it comes behind us.
        if mapped.from_offset not in self._unflushed:
            self._mark_unflushed(mapped)

    def view(self, offset: int) -> memoryview:
        """From an offset to the end of its file, read-only; empty where there is no file."""
        mapped = self._file_at(offset)
        return mapped.file.view[offset - mapped.from_offset :] if mapped else memoryview(b"")

    def next_data(self, offset: int) -> int | None:
        """Where, from an offset on, the next byte may lie that was ever written."""
        for mapped in self._files:
            if mapped.from_offset + self._file_size > offset:
                found = mapped.file.next_data(max(offset - mapped.from_offset, 0))
                if found is not None:
                    return mapped.from_offset + found
        return None

    def flush(self) -> None:
        """Return when all that was written before the call is on the disk."""
        with self._closing:  # else a file might be closed between the look and its flush
            with self._marks:
                unflushed, self._unflushed = self._unflushed, {}
            self._flush_names()
            for file in unflushed.values():
                file.flush()

    def flush_found(self) -> None:
        """Make durable what was loaded, and its names: who wrote it may have been killed before that."""
        for mapped in self._files:
            mapped.file.flush()
        if self._files:
            self._disk.flush_directory(self._directory)

    def _flush_names(self) -> None:
        with self._marks:
            directories, self._unflushed_directories = self._unflushed_directories, ()
        try:
            for directory in directories:
                self._disk.flush_directory(directory)
        except OSError:
            with self._marks:
                self._unflushed_directories = (*directories, *self._unflushed_directories)
            raise

    def delete_before(self, offset: int) -> int:
        """Delete the files that end at or before an offset, but never the last; how many these were.

        Each is gone for good before the next one goes: a power loss must not bring back the older of two.
        """
        with self._marks:  # another thread may add a file at the other end meanwhile
            files = self._files
            gone = [mapped for mapped in files[:-1] if mapped.from_offset + self._file_size <= offset]
            self._files = files[len(gone) :]
        for mapped in gone:
            self._remove(mapped)
            self._disk.flush_directory(self._directory)
        return len(gone)

    def close(self) -> None:
        """Close all files. Views that were given out stay valid."""
        for mapped in self._files:
            mapped.file.close()
        self._files = ()
        self._unflushed = {}

    def _mark_unflushed(self, mapped: MappedFile) -> None:
        with self._marks:
            self._unflushed[mapped.from_offset] = mapped.file

    def _file_at(self, offset: int) -> MappedFile | None:
        files = self._files
        if not files or offset < files[0].from_offset:
            return None
        position = (offset - files[0].from_offset) // self._file_size
        return files[position] if position < len(files) else None

    def _create(self, offset: int) -> MappedFile:
        from_offset = offset - offset % self._file_size
        if self._files and from_offset != self.end_offset:
            raise ValueError(f"no file may be made at {from_offset} behind {self.end_offset}")
        if self._files:
            self._flush_names()  # else a power loss might take this file's name and leave the next one's
        else:
            self._disk.make_directory(self._directory)
        path = self._directory / f"{from_offset:0{NAME_DIGITS}d}"
        try:
            mapped = MappedFile(from_offset, path, self._disk.create(path, self._file_size))
        except OSError:
            with suppress(OSError):
                self._disk.delete(path)
            raise
        with self._marks:
            parents = () if self._files else (self._directory.parent,)
            self._unflushed_directories = (*parents, self._directory)
            self._files = (*self._files, mapped)
        return mapped

    def _remove(self, mapped: MappedFile) -> None:
        with self._closing:
            mapped.file.close()
            with self._marks:
                self._unflushed.pop(mapped.from_offset, None)
        self._disk.delete(mapped.path)
