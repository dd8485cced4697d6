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
        if account.white_address.covers(address):
            return Identity(key, is_super=True)
        if not is_signed_by(request, account.secret_key):
            raise _refused(f"Check signature failed for accessKey={key}")
        return Identity(key, account.is_super, account.secret_key)

    def refusal(self, identity: Identity, address: str, need: Need) -> RequestRejected | None:
        """Return why an account may not have what a request needs, or None if it may."""
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
        """Return whether an account may do this with every topic that there is, or will be."""
        try:
            account = self._bound_account(identity, address)
        except RequestRejected:
            return False
        return account is None or account.is_super or account.allows_every_topic(action)

    def _bound_account(self, identity: Identity, address: str) -> PlainAccount | None:
        """Return the account whose rights bind a client; None if a white address frees it.

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
