"""MappedFileQueue: files of one size as one address space, named by the offset of their first byte.

The commit log and each consume queue are such a space, without gaps between the first and the last
file. What was read stays readable when its file is deleted.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rmq_spark.wire.message.record_layout import FILE_NAME_DIGITS
from rmq_spark.wire.remoting.framing import Buffer

from ..errors import ForeignFile, MissingFile, UnreadableFile
from .disk import is_ignored_name
from .file_pool import FileGroup, PooledFile

PAGE_BYTES = 4096
"""The smallest part of a file that a disk fails to return."""


def _store_files(sizes: Mapping[str, int | None]) -> Mapping[str, int | None]:
    """Leave out of a directory's content what RocketMQ ignores as well.

    These are ignored names, and subdirectories whose names are not numbers.
    """
    return {
        name: size
        for name, size in sizes.items()
        if not is_ignored_name(name) and (size is not None or name.isdecimal())
    }


class MappedFile(NamedTuple):
    """One of the files, and the offset of its first byte."""

    from_offset: int
    file: PooledFile


class MappedFileQueue:
    """The files of one directory. One writer; any number of readers, in any thread."""

    __slots__ = ("_group", "_may_miss_files", "directory", "file_size", "files")

    def __init__(
        self, group: FileGroup, directory: Path, file_size: int, *, may_miss_files: bool = False
    ) -> None:
        """Store the parts; `load` or the first write touches the disk.

        With ``may_miss_files``, a file is created before the name of the previous one is durable. A
        power loss may then remove the name of a file and keep that of the next one.
        """
        self._group = group
        self.directory = directory
        self.file_size = file_size
        """The size of each file, in bytes."""
        self._may_miss_files = may_miss_files
        self.files: tuple[MappedFile, ...] = ()
        """The existing files, in order; replaced as a whole, so that readers see a consistent
        state."""

    @property
    def first_offset(self) -> int:
        """The first offset of the first file; 0 without files."""
        files = self.files
        return files[0].from_offset if files else 0

    @property
    def end_offset(self) -> int:
        """The offset past the last file; 0 without files."""
        files = self.files
        return files[-1].from_offset + self.file_size if files else 0

    def load(self) -> None:
        """Find the files of the directory; refuse foreign files before changing any.

        After a power loss, a file whose size was never flushed may be empty. It is extended with
        zeros.

        Raises:
            ForeignFile: A name or a size does not belong here.
            MissingFile: A file that should lie between two others is missing.
        """
        disk, directory = self._group.disk, self.directory
        (entries,) = disk.list_directories([directory])
        sizes = _store_files(entries)
        empty = [name for name, size in sizes.items() if size == 0]
        files_after_gap = self.adopt({**sizes, **dict.fromkeys(empty, self.file_size)})
        if files_after_gap:
            raise MissingFile(
                f"{directory} lacks the file {self.end_offset:0{FILE_NAME_DIGITS}d} before "
                f"{files_after_gap[0]}: " + self._repair_hint(self.path_at(self.end_offset))
            )
        for name in empty:  # extend in place, so that a crash leaves no gap
            disk.open(directory / name).write(bytes(1), self.file_size - 1)

    def adopt(self, sizes: Mapping[str, int | None]) -> list[str]:
        """Use the files of the directory by their names and sizes, without reading any.

        Returns:
            The unusable files: those that are empty, or follow an empty or missing file.
        """
        adopted: list[MappedFile] = []
        left: list[str] = []
        sizes = _store_files(sizes)
        for name, size in sizes.items():
            self._check(name, sizes)
            from_offset = int(name)
            follows = not adopted or from_offset == adopted[-1].from_offset + self.file_size
            if size and follows and not left:
                file = PooledFile(self._group, self.directory, name)
                adopted.append(MappedFile(from_offset, file))
            else:
                left.append(name)
        self.files = tuple(adopted)
        return left

    def _check(self, name: str, sizes: Mapping[str, int | None]) -> None:
        size = sizes[name]
        if len(name) != FILE_NAME_DIGITS or not name.isdecimal():
            fault = (
                f"is not a file of this store: its name should be {FILE_NAME_DIGITS} digits. Move "
                "it away"
            )
        elif size is None:
            fault = f"is a directory: a file of {self.file_size} bytes should be there"
        elif size not in (self.file_size, 0):
            fault = (
                f"has {size} bytes, but the store is set to files of {self.file_size}: "
                "start with the size that it was written with"
            )
            others = [each for other, each in sizes.items() if each and other != name]
            has_unusual_size = not others or others != [size] * len(others)
            if size < self.file_size and has_unusual_size and not self._may_miss_files:
                fault += f"; if it was cut, {self._repair_hint(self.directory / name)}"
        elif int(name) % self.file_size and not self._may_miss_files:
            fault = (
                "is not a file of this store: its name should be the offset of its first byte, a "
                f"multiple of {self.file_size}. Move it away, unless somebody has renamed it by "
                "mistake"
            )
        else:
            return
        raise ForeignFile(f"{self.directory / name} {fault}")

    def _repair_hint(self, path: Path) -> str:
        return (
            "restore it from a copy; or accept the loss, which the start then reports and skips: "
            f"truncate -s {self.file_size} {shlex.quote(str(path))}"
        )

    def data_loss_hint(self, offset: int) -> str:
        """Return how to repair the file at this offset, a part of which cannot be read."""
        file, copy = (shlex.quote(f"{self.path_at(offset)}{end}") for end in ("", ".copy"))
        return (
            f"restore the file from a copy; or give up its unreadable part: dd if={file} "
            f"of={copy} bs={PAGE_BYTES} conv=noerror,sync,sparse; truncate -s {self.file_size} "
            f"{copy} && mv {copy} {file}"
        )

    def path_at(self, offset: int) -> Path:
        """Return the path of the file that contains an offset, whether it exists or not."""
        return self.directory / f"{offset - offset % self.file_size:0{FILE_NAME_DIGITS}d}"

    def space_left(self, offset: int) -> int:
        """Return the number of bytes from an offset to the end of its file."""
        return self.file_size - offset % self.file_size

    def previous_file_start(self, offset: int) -> int:
        """Return the start of the file before the one that contains an offset; 0 for the first."""
        return max(offset - offset % self.file_size - self.file_size, 0)

    def write(self, offset: int, data: Buffer) -> None:
        """Write data within one file, and create the file if it is the next one."""
        mapped = self._file_at(offset) or self._create(offset)
        mapped.file.write(data, offset - mapped.from_offset)

    def read(self, offset: int, size: int) -> Buffer:
        """Read bytes from an offset on, at most to the end of its file; empty without a file."""
        mapped = self._file_at(offset)
        if mapped is None:
            return b""
        from_offset, file = mapped
        position = offset - from_offset
        size = min(size, self.file_size - position)
        try:
            return file.read(position, size)
        except UnreadableFile:
            if self._file_at(offset) is not mapped:  # it was deleted meanwhile
                return b""
            raise

    def read_available(self, offset: int, size: int) -> Buffer:
        """Read bytes from an offset on, or fewer if the disk does not return the rest."""
        in_page = PAGE_BYTES - offset % self.file_size % PAGE_BYTES
        while True:
            try:
                return self.read(offset, size)
            except UnreadableFile:
                if size <= in_page:
                    raise
            size = max(size // 2, in_page)

    def rewrite(self, offset: int, size: int) -> None:
        """Write bytes of one file once more, and keep the file's modification time."""
        mapped = self._file_at(offset)
        if mapped is None:
            raise ValueError(f"there is no file at {offset}")
        disk, path = self._group.disk, mapped.file.path
        modified_at = disk.modified_at(path)
        self.write(offset, bytes(self.read(offset, size)))
        with suppress(OSError):  # another user owns the file: it expires later
            disk.set_modified_at(path, modified_at)

    def next_data(self, offset: int) -> int | None:
        """Return the first offset at or past ``offset`` that may have data, or None."""
        for mapped in self.files:
            if mapped.from_offset + self.file_size > offset:
                found = mapped.file.next_data(max(offset - mapped.from_offset, 0))
                if found is not None:
                    return mapped.from_offset + found
        return None

    def unwritten_tail_bytes(self) -> int:
        """Return the never-written bytes at the end of the first file, if another file follows.

        A file is written from its start. If the file system does not report holes, this is 0.
        """
        if len(self.files) < 2:
            return 0
        file = self.files[0].file
        low, high = 0, self.file_size
        while high - low > PAGE_BYTES:
            middle = (low + high) // 2
            found = file.next_data(middle)
            low, high = (low, middle) if found is None else (max(found, middle), high)
        return self.file_size - high

    def flush(self) -> None:
        """Flush all earlier writes of the whole group."""
        self._group.flush()

    def check_in_place(self, start: int, end: int) -> None:
        """Check that the files between two offsets were not moved, deleted or replaced."""
        for mapped in reversed(self.files):
            if mapped.from_offset < end:
                mapped.file.check_in_place()
            if mapped.from_offset <= start:
                return

    def flush_loaded(self) -> None:
        """Make loaded files and names durable, in case their writer did not flush them."""
        if self.files:
            for mapped in self.files:
                self._group.mark_unflushed(mapped.file)
            self._group.mark_names_changed(self.directory)
            self._group.flush()

    def has_files_from(self, offset: int) -> bool:
        """Return whether a file begins at or past an offset."""
        files = self.files
        return bool(files) and files[-1].from_offset >= offset

    def mark_loaded_names_changed(self) -> None:
        """Flush the names of loaded files next time, in case their writer was killed."""
        for directory in (self.directory, *self.directory.parents):
            self._group.mark_names_changed(directory)
            if self._group.root in (directory, None):
                break

    def delete_before(self, offset: int) -> int:
        """Delete the files that end at or before an offset, except the last; return their number.

        Each deletion is durable before the next begins: a power loss must not bring back the older
        of two files. If a file cannot be deleted, all later files stay as well, because there must
        be no gap.
        """
        count = 0
        while len(self.files) > 1 and self.files[0].from_offset + self.file_size <= offset:
            self._group.flush_names(self.directory)
            self._delete_first()
            count += 1
        self._group.flush_names(self.directory)
        return count

    def _delete_first(self) -> None:
        group = self._group
        with group.lock:  # another thread may add a file at the other end meanwhile
            first, *_ = self.files
            self.files = self.files[1:]
        group.close_file(first.file)
        try:
            with suppress(FileNotFoundError):  # an earlier delete has removed it, despite its error
                group.disk.delete(first.file.path)
        except OSError:
            with group.lock:
                self.files = (first, *self.files)
            raise
        group.mark_names_changed(self.directory)

    def delete_from(self, offset: int) -> None:
        """Delete the files that begin at or past an offset."""
        with self._group.lock:
            files = self.files
            if not files or files[-1].from_offset < offset:
                return
            kept = tuple(mapped for mapped in files if mapped.from_offset < offset)
            self.files = kept
        for mapped in files[len(kept) :]:
            self._group.close_file(mapped.file)
            self._group.disk.delete(mapped.file.path)

    def set_directory(self, directory: Path) -> None:
        """Continue with the same files in another directory, to which they were moved."""
        self._group.discard_names(self.directory)
        self.directory = directory
        for mapped in self.files:
            mapped.file.directory = directory

    def close(self) -> None:
        """Close all files. What was read stays valid."""
        for mapped in self.files:
            self._group.close_file(mapped.file)
        self.files = ()

    def _file_at(self, offset: int) -> MappedFile | None:
        files = self.files
        if not files or offset < files[0].from_offset:
            return None
        position = (offset - files[0].from_offset) // self.file_size
        return files[position] if position < len(files) else None

    def _create(self, offset: int) -> MappedFile:
        from_offset = offset - offset % self.file_size
        if self.files and from_offset != self.end_offset:
            raise ValueError(
                f"cannot create a file at {from_offset}: the files end at {self.end_offset}"
            )
        group, directory = self._group, self.directory
        if self.files:
            if not self._may_miss_files:
                group.flush_names(directory)
        else:
            group.disk.make_directory(directory)
            for above in directory.parents:  # parents may be new as well
                group.mark_names_changed(above)
                if group.root in (above, None):
                    break
        path = directory / f"{from_offset:0{FILE_NAME_DIGITS}d}"
        file: PooledFile | None = None
        try:
            file = self._create_file(path)
            mapped = MappedFile(from_offset, file)
            group.mark_names_changed(directory)
            with group.lock:
                self.files = (*self.files, mapped)
        except BaseException:  # such as a lack of memory
            if file is not None:
                group.close_file(file)
            with suppress(OSError):  # the next attempt deletes it
                group.disk.delete(path)
            raise
        return mapped

    def _create_file(self, path: Path) -> PooledFile:
        try:
            return self._group.create(path, self.file_size)
        except FileExistsError:  # an earlier attempt could neither size nor delete it
            self._group.disk.delete(path)
            return self._group.create(path, self.file_size)
