"""PlainAclFiles: reads plain_acl.yml at the start, and again whenever it changes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TypeAlias

from ...store.files.disk import Disk
from .plain_accounts import PlainAcl, PlainAclError

Contents: TypeAlias = tuple[tuple[Path, bytes], ...]
_log = logging.getLogger(__name__)


class PlainAclFiles:
    """One file, or all files of a directory whose names end in .yml or .yaml."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self.path = path
        self._contents: Contents = ()
        """What was read last, even if it was refused."""
        self._failure: str | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that were read last."""
        return tuple(path for path, _ in self._contents)

    def load(self) -> PlainAcl:
        """Return the accounts.

        Raises:
            PlainAclError: A file cannot be read, or has a fault.
        """
        self._contents = self._read()
        return self._parse(self._contents)

    def reload(self) -> PlainAcl | None:
        """Return the accounts if the files have changed and are valid, else None; blocks.

        A fault is logged once. Until it is fixed, the previous accounts stay in force.
        """
        try:
            contents = self._read()
            if contents == self._contents:
                return None
            self._contents = contents
            acl = self._parse(contents)
        except PlainAclError as error:
            if str(error) != self._failure:
                self._failure = str(error)
                _log.error("%s; the previous accounts stay in force", error)
            return None
        self._failure = None
        _log.info("%s has changed and was read again: %d accounts", self.path, len(acl.accounts))
        return acl

    def _read(self) -> Contents:
        try:
            names = [
                self.path / name
                for name in self._disk.names(self.path)
                if name.endswith((".yml", ".yaml"))
            ]
            return tuple((path, self._disk.read(path)) for path in names or [self.path])
        except OSError as error:
            raise PlainAclError(
                f"{self.path} cannot be read: {error.strerror or error}. Put RocketMQ's "
                "plain_acl.yml there, or set plainAclFile"
            ) from error

    def _parse(self, contents: Contents) -> PlainAcl:
        acl = PlainAcl.parse([(str(path), _text_of(path, data)) for path, data in contents])
        if any(pattern.is_everybody for pattern in acl.white_addresses):
            _log.warning(
                "globalWhiteRemoteAddresses of %s lets every address do everything, without a "
                "signature: remove *",
                self.path,
            )
        if not acl.accounts and not acl.white_addresses:
            raise PlainAclError(f"{self.path} has no accounts: nobody could sign in")
        return acl


def _text_of(path: Path, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise PlainAclError(f"{path}:{line}: this line is not UTF-8") from error
