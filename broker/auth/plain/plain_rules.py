"""PlainRules: who a client is by plain_acl.yml, with RocketMQ 4.9's codes and texts."""

from __future__ import annotations

from typing import Final

from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.signature import ACCESS_KEY

from ...common.identity import Identity
from ...common.request_content import RequestRejected
from ..needs import Action, Need
from ..signatures import is_signed_by
from .plain_accounts import PlainAccount, PlainAcl

_EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException"
"""The class whose text RocketMQ 4.9 answers; clients look for its name."""


class PlainRules:
    """The rules of the accounts of now; `use` replaces them."""

    def __init__(self, acl: PlainAcl) -> None:
        self._acl = acl
        self.version = 0
        """A number that grows whenever the accounts change."""

    def use(self, acl: PlainAcl) -> None:
        """Replace all accounts and white addresses."""
        self._acl = acl
        self.version += 1

    def authenticate(self, address: str, request: RemotingCommand) -> Identity:
        """Return who has signed a request, or whose address needs no signature."""
        if self._is_white(address):
            return Identity(f"white address {address}", is_super=True)
        key = request.ext_fields.get(ACCESS_KEY)
        if key is None:
            raise _refused("No accessKey is configured")
        account = self._account(key)
        if isinstance(account, RequestRejected):
            raise account
        if account.white_address.covers(address):
            return Identity(key, is_super=True)
        if not is_signed_by(request, account.secret_key):
            raise _refused(f"Check signature failed for accessKey={key}")
        return Identity(key, account.is_super, account.secret_key)

    def refusal(self, identity: Identity, address: str, need: Need) -> RequestRejected | None:
        """Return why an account may not have what a request needs, or None if it may."""
        if self._is_white(address):
            return None
        account = self._account_of(identity)
        if isinstance(account, RequestRejected):
            return account
        if account.white_address.covers(address) or account.is_super:
            return None
        fault = account.fault(need)
        return None if fault is None else _refused(fault)

    def secret_of(self, identity: Identity, address: str) -> str | None:
        """Return the key that signs an account's requests; None if its address is white."""
        if self._is_white(address):
            return None
        account = self._account_of(identity)
        if isinstance(account, RequestRejected):
            raise account
        return None if account.white_address.covers(address) else account.secret_key

    def allows_every_topic(self, identity: Identity, address: str, action: Action) -> bool:
        """Return whether an account may do this with every topic that there is, or will be."""
        if self._is_white(address):
            return True
        account = self._account_of(identity)
        if isinstance(account, RequestRejected):
            return False
        if account.white_address.covers(address) or account.is_super:
            return True
        return account.allows_every_topic(action)

    def _is_white(self, address: str) -> bool:
        return any(pattern.covers(address) for pattern in self._acl.white_addresses)

    def _account_of(self, identity: Identity) -> PlainAccount | RequestRejected:
        """Return the account of an identity, unless its key has changed since it was proven."""
        account = self._account(identity.name)
        if isinstance(account, PlainAccount) and identity.secret_key not in (
            None,
            account.secret_key,
        ):
            return _refused(f"the secretKey of accessKey={identity.name} has changed")
        return account

    def _account(self, key: str) -> PlainAccount | RequestRejected:
        account = self._acl.accounts.get(key)
        return _refused(f"No acl config for {key}") if account is None else account


def _refused(text: str) -> RequestRejected:
    return RequestRejected(ResponseCode.SYSTEM_ERROR, f"{_EXCEPTION}: {text}")
