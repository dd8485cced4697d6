"""PlainRules: authentication and rights by plain_acl.yml, with RocketMQ 4.9's codes and texts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final, TypeAlias

from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.signature import ACCESS_KEY

from ...common.channel import Identity
from ...common.request_content import RequestRejected
from ...store.files.disk import LocalDisk
from ..rights import Action, Need
from ..signatures import is_signed_by
from .plain_accounts import PlainAccount, PlainAcl, PlainAclError

_EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException"
"""The exception that RocketMQ 4.9 names in refusals; clients look for this name."""


class PlainRules:
    """The rules of the current accounts; `use` replaces them."""

    def __init__(self, acl: PlainAcl) -> None:
        self._acl = acl
        self.version = 0
        """A number that grows whenever the accounts change."""

    def use(self, acl: PlainAcl) -> None:
        """Replace all accounts and white addresses."""
        self._acl = acl
        self.version += 1

    def authenticate(self, address: str, request: RemotingCommand) -> Identity:
        """Return the account that signed a request, or whose address needs no signature."""
        if self._is_white(address):
            return Identity(f"white address {address}", is_super=True)
        key = request.ext_fields.get(ACCESS_KEY)
        if key is None:
            raise _refused("No accessKey is configured")
        account = self._account(key)
        if account.white_address.covers(address):
            return Identity(key, is_super=True)
        if not is_signed_by(request, account.secret_key):
            raise _refused(f"Check signature failed for accessKey={key}")
        return Identity(key, account.is_super, account.secret_key)

    def refusal(self, identity: Identity, address: str, need: Need) -> RequestRejected | None:
        """Return the refusal of an account's need, or None if the account has the right."""
        try:
            account = self._bound_account(identity, address)
        except RequestRejected as refused:
            return refused
        fault = None if account is None or account.is_super else account.fault(need)
        return None if fault is None else _refused(fault)

    def secret_of(self, identity: Identity, address: str) -> str | None:
        """Return the key that signs an account's requests; None if its address is white."""
        account = self._bound_account(identity, address)
        return None if account is None else account.secret_key

    def allows_every_topic(self, identity: Identity, address: str, action: Action) -> bool:
        """Return whether an account has the right to an action on all present and future topics."""
        try:
            account = self._bound_account(identity, address)
        except RequestRejected:
            return False
        return account is None or account.is_super or account.allows_every_topic(action)

    def _bound_account(self, identity: Identity, address: str) -> PlainAccount | None:
        """Return the account whose rights apply to a client; None if its address is white.

        Raises:
            RequestRejected: The account is gone, or its key has changed since it was proven.
        """
        if self._is_white(address):
            return None
        account = self._account(identity.name)
        if identity.secret_key not in (None, account.secret_key):
            raise _refused(f"the secretKey of accessKey={identity.name} has changed")
        return None if account.white_address.covers(address) else account

    def _is_white(self, address: str) -> bool:
        return any(pattern.covers(address) for pattern in self._acl.white_addresses)

    def _account(self, key: str) -> PlainAccount:
        account = self._acl.accounts.get(key)
        if account is None:
            raise _refused(f"No acl config for {key}")
        return account


def _refused(text: str) -> RequestRejected:
    return RequestRejected(ResponseCode.SYSTEM_ERROR, f"{_EXCEPTION}: {text}")


# ---- PlainAclFiles: reads plain_acl.yml at the start, and again whenever it changes.

Contents: TypeAlias = tuple[tuple[Path, bytes], ...]
_log = logging.getLogger(__name__)


class PlainAclFiles:
    """One file, or all files of a directory whose names end in .yml or .yaml."""

    def __init__(self, disk: LocalDisk, path: Path) -> None:
        self._disk = disk
        self.path = path
        self._contents: Contents = ()
        """The contents that were read last, even if they were refused."""
        self._failure: str | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that were read last."""
        return tuple(path for path, _ in self._contents)

    def load(self) -> PlainAcl:
        """Return the accounts."""
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
        if any(pattern.covers_all for pattern in acl.white_addresses):
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
