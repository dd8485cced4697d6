"""UserRules: authentication and authorization as RocketMQ 5 has them, with its codes and texts."""

from __future__ import annotations

from typing import Final

from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.signature import ACCESS_KEY

from ..common.channel import Identity
from ..common.request_content import RequestRejected, no_permission
from .access_lists import Decision
from .rights import Action, Need, ResourceType
from .signatures import is_signed_by
from .user_tables import AclTable, User, UserTable

_DECISIONS_MAX: Final = 10_000
"""The maximum number of cached decisions, each on a user, a need and an address."""


class UserRules:
    """The rules of users.json and acls.json."""

    def __init__(self, users: UserTable, acls: AclTable, *, checks_rights: bool) -> None:
        """Store the tables; ``checks_rights`` is authorizationEnabled."""
        self._users = users
        self._acls = acls
        self._checks_rights = checks_rights
        self._decisions: dict[tuple[str, Need, str], Decision | None] = {}
        self._decisions_version = self.version

    @property
    def version(self) -> int:
        """A number that grows whenever users or access lists change."""
        return self._users.version + self._acls.version

    def authenticate(self, _: str, request: RemotingCommand) -> Identity:
        """Return the user who has signed a request."""
        name = request.ext_fields.get(ACCESS_KEY)
        if not name:
            raise no_permission("username cannot be null.")
        user = self._enabled_user(name)
        if not is_signed_by(request, user.password):
            raise no_permission("check signature failed.")
        return Identity(name, user.is_super, user.password)

    def refusal(self, identity: Identity, address: str, need: Need) -> RequestRejected | None:
        """Return the refusal of a user's need, or None if the user has the right."""
        try:
            user = self._user_of(identity)
        except RequestRejected as refused:
            return refused
        if user.is_super or not self._checks_rights:
            return None
        decision = self._decide(user.name, need, address)
        if decision is Decision.ALLOW:
            return None
        why = "no matched policies." if decision is None else "the decision is deny."
        return no_permission(
            f"User:{user.name} has no permission to access {need.resource.value}:{need.name} "
            f"from {address}, {why}"
        )

    def secret_of(self, identity: Identity, _: str) -> str:
        """Return the key that signs a user's requests."""
        return self._user_of(identity).password

    def allows_every_topic(self, identity: Identity, address: str, action: Action) -> bool:
        """Return whether a user has the right to an action on all present and future topics."""
        try:
            user = self._user_of(identity)
        except RequestRejected:
            return False
        if user.is_super or not self._checks_rights:
            return True
        acl = self._acls.get(user.name)
        return acl is not None and acl.allows_every(ResourceType.TOPIC, action, address)

    def _user_of(self, identity: Identity) -> User:
        """Return the user of an identity, unless its password has changed since it was proven."""
        user = self._enabled_user(identity.name)
        if identity.secret_key not in (None, user.password):
            raise no_permission(f"The password of User:{user.name} has changed.")
        return user

    def _enabled_user(self, name: str) -> User:
        user = self._users.get(name)
        if user is None or not user.is_enabled:
            raise no_permission(f"User:{name} is {'not found' if user is None else 'disabled'}.")
        return user

    def _decide(self, name: str, need: Need, address: str) -> Decision | None:
        if self._decisions_version != self.version or len(self._decisions) >= _DECISIONS_MAX:
            self._decisions.clear()
            self._decisions_version = self.version
        key = name, need, address
        if key not in self._decisions:
            acl = self._acls.get(name)
            self._decisions[key] = None if acl is None else acl.decide(need, address)
        return self._decisions[key]
