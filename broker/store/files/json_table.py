"""JsonTable: a small table in one JSON file, such as topics.json or consumerOffset.json.

A save writes the whole new table to ``<name>.tmp`` and flushes it, renames the file to
``<name>.bak``, renames ``<name>.tmp`` to the file, and flushes the directory. After a crash:

    crash                     <name>    <name>.bak   <name>.tmp    read is
    before the first rename   old       older        any part      old, from the file
    between the renames       -         old          new, whole    old, from the backup
    after the second rename   new       old          -             new, from the file

After a power loss, the second rename may be there without the first: the file is new, the backup
older. The new table is flushed before anything is renamed, so the file and the backup are whole in
every state. In no state is ``<name>.tmp`` the only copy of a saved table, so it is never read: its
content was not confirmed, and a table that was removed on purpose must not come back from it.

The last member of a table is a checksum of everything before it, because one changed digit could
make a group skip messages. RocketMQ ignores that member. A table without a checksum was written by
another program or by hand, and is accepted.

Users and access lists are saved twice, so that the backup is as new as the file: a deleted user
must not come back with the backup of a damaged file.

An operator who removes both files starts with an empty table. A file that exists and cannot be read
is an error: RocketMQ uses an empty table instead, and delivers all messages again.

A table may have members that this release does not know, from a newer release or another program. A
load logs their names; the next save drops them.
"""

from __future__ import annotations

import logging
import re
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from rmq_spark.errors import BodyError, excerpt
from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.bodies.body_codec import unknown_members
from rmq_spark.wire.isa_l import crc32

from ..errors import DamagedTable, has_lost_content
from .disk import LocalDisk

Body = TypeVar("Body")

_log = logging.getLogger(__name__)
_NAMES_MAX = 8
_CHECKSUM_NAME = "checksum"
_CHECKSUM = re.compile(rb'[,{]"checksum":([0-9]+)}\s*\Z')


@dataclass(frozen=True, slots=True)
class QuarantinedFile:
    """A damaged file under its new name, and why it could not be read."""

    path: Path
    reason: str


class JsonTable(Generic[Body]):
    """One table, in a directory that exists. Its methods may be called from any thread."""

    def __init__(
        self,
        disk: LocalDisk,
        path: Path,
        body_type: type[Body],
        *,
        is_secret: bool = False,
        keeps_older: bool = True,
    ) -> None:
        """Set up a table without reading it.

        With ``is_secret``, errors show nothing of its content. Without ``keeps_older``, a save
        leaves no older table in the backup.
        """
        self._disk = disk
        self.path = path
        """The file; its backup is beside it as ``<name>.bak``."""
        self._body_type = body_type
        self._is_secret = is_secret
        self._keeps_older = keeps_older
        self._temporary = path.with_name(f"{path.name}.tmp")
        self._backup = path.with_name(f"{path.name}.bak")
        self._lock = threading.RLock()
        self._is_loaded = False
        self.loaded_from: Path | None = None
        """The file that the last load has read: the table or its backup; None if neither exists."""
        self.quarantined: QuarantinedFile | None = None
        """The damaged file that the last load has renamed, or None."""
        self.has_checksum = False
        """True if the last loaded table had a checksum."""
        self.was_replaced = False
        """True once the last save has replaced the file, even if it failed after that."""

    def load(self, default: Body) -> Body:
        """Return the table as it was last saved, or the default if there is no file yet.

        The result is durable: no later power loss brings an older table back.

        Raises:
            DamagedTable: There are files, but none can be read. Nothing was changed.
        """
        with self._lock:
            value, source, damage = self._load_any()
            if not self._is_loaded and source is not None:
                self._warn_of_unknown(source)
            self.quarantined = self._quarantine(damage) if damage else None
            if value is None:
                value = default
            else:
                self._disk.flush_directory(self.path.parent)
            self.loaded_from = source
            self._is_loaded = True
            return value

    def warn_of_damage(self) -> None:
        """Warn if the last load had to use the backup of a damaged file."""
        damaged = self.quarantined
        if damaged is not None:
            _log.warning(
                "%s was damaged (%s), is now %s: its backup is used",
                self.path,
                damaged.reason,
                damaged.path.name,
            )

    def peek(self, default: Body) -> Body:
        """Return what `load` would return, without changing anything."""
        value, _, _ = self._load_any()
        return default if value is None else value

    def save(self, value: Body) -> None:
        """Replace the table; it is durable when this returns.

        After an error, `load` returns the new table or the previous one; saving again is safe. A
        table that was not loaded yet is loaded first, so that a damaged file never replaces its
        backup.

        Raises:
            BodyError: The value could not be read back. Nothing was changed.
            DamagedTable: As in `load`.
        """
        data = encode_body(value)
        decode_body(self._body_type, data)
        with self._lock:
            if not self._is_loaded:
                self.load(value)
            self.was_replaced = False
            self._replace(with_checksum(data))
            if not self._keeps_older:
                self._replace(with_checksum(data))

    def clear(self) -> None:
        """Delete the table, so that `load` returns the default.

        After a power loss, the table may be there again.
        """
        with self._lock:
            for path in (self.path, self._backup):
                self._disk.delete(path)

    def _replace(self, data: bytes) -> None:
        self._disk.write_whole(self._temporary, data)
        # The file is missing at the first save, or after a crash between the renames.
        with suppress(FileNotFoundError):
            self._disk.rename(self.path, self._backup)
        self._disk.rename(self._temporary, self.path)
        self.was_replaced = True
        self._disk.flush_directory(self.path.parent)

    def _load_any(self) -> tuple[Body | None, Path | None, str]:
        """Return the table and its file, or None for both; and the damage of another file."""
        value, damage = self._read(self.path)
        if value is not None:
            return value, self.path, ""
        value, backup_damage = self._read(self._backup)
        if value is None and (damage or backup_damage):
            raise self._damaged_error(damage, backup_damage)
        return value, None if value is None else self._backup, damage

    def _read(self, path: Path) -> tuple[Body | None, str]:
        """Return a table and "", or None and the damage; without a file, None and ""."""
        try:
            data = self._disk.read(path)
            self.has_checksum = _verify_checksum(data)
            return decode_body(self._body_type, data), ""
        except FileNotFoundError:
            return None, ""
        except BodyError as error:
            return None, error.without_value if self._is_secret else str(error)
        except OSError as error:
            if not has_lost_content(error):
                raise
            return None, str(error)

    def _warn_of_unknown(self, source: Path) -> None:
        unknown = unknown_members(self._body_type, self._disk.read(source))
        names = [name for name in unknown if name != _CHECKSUM_NAME]
        if names:
            more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
            _log.warning(
                "%s: the next save drops members that are unknown here: %s%s. To keep them, stop "
                "the broker and copy the file",
                source,
                ", ".join(map(excerpt, names[:_NAMES_MAX])),
                more,
            )

    def _quarantine(self, damage: str) -> QuarantinedFile:
        """Rename the damaged file to an unused name, so that earlier damaged files stay, too."""
        names = self._disk.names(self.path.parent)
        name = f"{self.path.name}.corrupt"
        number = 1
        while name in names:
            number += 1
            name = f"{self.path.name}.corrupt-{number}"
        path = self.path.with_name(name)
        self._disk.rename(self.path, path)
        return QuarantinedFile(path, damage)

    def _damaged_error(self, damage: str, backup_damage: str) -> DamagedTable:
        return DamagedTable(
            f"{self.path} cannot be read ({damage or 'it is missing'}), nor can its backup "
            f"{self._backup} ({backup_damage or 'it is missing'}). Nothing was changed. Put a "
            f"good copy at {self.path}; or, to start with an empty table, move both files away"
        )


def with_checksum(data: bytes) -> bytes:
    """Add a checksum of the other members to a JSON object, as its last member."""
    begin = data[:-1] + (b"," if len(data) > len(b"{}") else b"")
    return begin + b'"checksum":%d}' % crc32(data)


def _verify_checksum(data: bytes) -> bool:
    """Return whether a table ends with its checksum; False if it has none."""
    found = _CHECKSUM.search(data)
    if found is None:
        return False
    begin = data[: found.start()] or b"{"
    if int(found[1]) != crc32(begin + b"}"):
        needed = "a checksum that matches the file (remove it after editing the file by hand)"
        raise BodyError("table", at="$.checksum", needed=needed, found=int(found[1]))
    return True
