"""AccessLists: the users of brokers and their access lists, as in the ACL of RocketMQ 5.

    ClusterUser   a user: its name, which clients send as access key; super users may do everything
    AclPolicy     what a user may, or may not, do with a resource: Topic:orders, Group:bill*, *

Every broker, master or slave, has its own users and lists. So a change goes to every broker, and a
lookup asks the masters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

from rmq_spark.client.admin.lookups import Lookups, no_broker
from rmq_spark.client.arguments import (
    check_flag,
    check_kind,
    check_name,
    check_secret,
    check_text,
    check_utf8,
    explain_all_keywords,
)
from rmq_spark.client.errors import (
    AccessDenied,
    AuthenticationFailed,
    MessageRejected,
    NoPermission,
    NotFound,
)
from rmq_spark.errors import Verbatim, sanitize
from rmq_spark.wire.bodies.operators import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from rmq_spark.wire.codes import RequestCode, ResponseCode

ACTIONS: Final = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List", "All")
"""The actions on a resource, in RocketMQ's words; ``All`` is every one of them."""

RESOURCE_TYPES: Final = ("Topic", "Group", "Cluster")

_RESOURCE_FORM: Final = "Topic:NAME, Group:NAME or Cluster:NAME, with * at the end of NAME, or *"
_SUPER: Final = "Super"
_NORMAL: Final = "Normal"
_ENABLED: Final = "enable"
_DISABLED: Final = "disable"
_ALLOW: Final = "Allow"
_DENY: Final = "Deny"
_CUSTOM: Final = "Custom"
_POLICY_TYPES: Final = (_CUSTOM, "Default")
_NAME_CHARACTERS_MAX: Final = 255
_TEXTS: Final = (tuple, list, set, frozenset)


@dataclass(frozen=True, slots=True)
class ClusterUser:
    """A user of a broker.

    Attributes:
        name: The name, which clients send as access key.
        is_super: Whether the user may do everything, whatever the access lists say.
        is_enabled: Whether the user may do anything at all.
    """

    name: str
    is_super: bool = False
    is_enabled: bool = True


@dataclass(frozen=True, slots=True)
class AclPolicy:
    """An entry of an access list: it allows or denies a user some actions on a resource.

    If several entries match a request, the one with the most specific resource decides. A user has
    at most one entry for each resource.

    Attributes:
        user: Name of the user.
        resource: ``Topic:orders``, ``Group:billing`` or ``Cluster:name``; ``Topic:orders*`` is
            every topic whose name begins with ``orders``, ``Topic:*`` every topic, and ``*``
            everything.
        actions: Some of `ACTIONS`.
        sources: Addresses of clients, such as ``10.0.0.7`` or ``10.0.0.0/8``, for which the entry
            holds; empty for all.
        is_allowed: Whether the actions are allowed; False denies them.
        policy_type: ``Custom``, or ``Default`` for entries that RocketMQ uses where no other
            matches.
    """

    user: str
    resource: str
    actions: tuple[str, ...]
    sources: tuple[str, ...] = ()
    is_allowed: bool = True
    policy_type: str = _CUSTOM


@explain_all_keywords
class AccessLists(Lookups):
    """Users and access lists of all brokers, of a cluster, or of one broker."""

    # ---- users

    def users(
        self, *, cluster: str | None = None, broker_name: str | None = None
    ) -> Mapping[str, Mapping[str, ClusterUser]]:
        """Return the users of each master, by broker name, then by name.

        Args:
            cluster: Name of the cluster; None for all clusters.
            broker_name: Name of the only broker to ask.

        Raises:
            NotSupported: A broker has no users: RocketMQ has them from 5.3 on.
        """
        return {
            name: {user.name: user for user in map(_user_of, self._api.access.users(address))}
            for name, address in self._selected_masters(cluster, broker_name).items()
        }

    def user(
        self, name: str, *, cluster: str | None = None, broker_name: str | None = None
    ) -> Mapping[str, ClusterUser]:
        """Return a user from each master that has it, by broker name.

        Args:
            name: Name of the user.
            cluster: Name of the cluster; None for all clusters.
            broker_name: Name of the only broker to ask.

        Raises:
            NotFound: No broker has the user.
            NotSupported: A broker has no users: RocketMQ has them from 5.3 on.
        """
        name = _check_user(name)
        masters = self._selected_masters(cluster, broker_name)
        found = {
            broker: self._api.access.user(address, name) for broker, address in masters.items()
        }
        known = {broker: _user_of(info) for broker, info in found.items() if info is not None}
        if not known:
            raise NotFound(
                ResponseCode.QUERY_NOT_FOUND,
                f"there is no user {sanitize(name)}",
                ", ".join(masters.values()),
                RequestCode.AUTH_GET_USER,
            )
        return known

    def create_user(
        self,
        name: str,
        password: str,
        *,
        is_super: bool = False,
        cluster: str | None = None,
        broker_name: str | None = None,
    ) -> None:
        """Create a user on all brokers, or change its password and type where it exists.

        Args:
            name: Name of the user, which clients send as access key.
            password: Password, with which clients sign requests, as secret key.
            is_super: Whether the user may do everything.
            cluster: Name of the cluster; None for the brokers of all clusters.
            broker_name: Name of the only broker to create it on, with its slaves.

        Raises:
            MessageRejected: The name or the password is empty, or has spaces at an end.
            NoPermission: A broker does not let this client create users.
            NotSupported: A broker has no users: RocketMQ has them from 5.3 on.
        """
        user = UserInfo(
            username=_check_user(name),
            password=_check_password(password),
            user_type=_SUPER if is_super else _NORMAL,
            user_status=_ENABLED,
        )
        check_flag("is_super", is_super)
        for address in self._access_brokers(cluster, broker_name):
            self._create_or_update(address, user)

    def _create_or_update(self, address: str, user: UserInfo) -> None:
        try:
            self._api.access.create_user(address, user)
        except (AccessDenied, AuthenticationFailed):
            raise
        except NoPermission as refusal:  # the user may exist already
            try:
                self._api.access.update_user(address, user)
            except NoPermission:
                raise refusal from None

    def update_user(
        self,
        name: str,
        *,
        password: str | None = None,
        is_super: bool | None = None,
        is_enabled: bool | None = None,
        cluster: str | None = None,
        broker_name: str | None = None,
    ) -> None:
        """Change a user on all brokers; arguments that are None change nothing.

        Args:
            name: Name of the user.
            password: The new password. Requests signed with the old one are refused from then on.
            is_super: Whether the user may do everything.
            is_enabled: Whether the user may do anything at all.
            cluster: Name of the cluster; None for the brokers of all clusters.
            broker_name: Name of the only broker to change it on, with its slaves.

        Raises:
            MessageRejected: No argument changes anything, or the password is empty.
            NoPermission: A broker has no such user, or does not let this client change it.
            NotSupported: A broker has no users: RocketMQ has them from 5.3 on.
        """
        for flag, found in (("is_super", is_super), ("is_enabled", is_enabled)):
            if found is not None:
                check_flag(flag, found)
        if password is None and is_super is None and is_enabled is None:
            raise MessageRejected(
                "update_user", "password, is_super or is_enabled", Verbatim("none of them")
            )
        user = UserInfo(
            username=_check_user(name),
            password=None if password is None else _check_password(password),
            user_type=None if is_super is None else _SUPER if is_super else _NORMAL,
            user_status=None if is_enabled is None else _ENABLED if is_enabled else _DISABLED,
        )
        for address in self._access_brokers(cluster, broker_name):
            self._api.access.update_user(address, user)

    def delete_user(
        self, name: str, *, cluster: str | None = None, broker_name: str | None = None
    ) -> None:
        """Delete a user with its access list, on all brokers.

        Deleting a user that does not exist is no error.

        Args:
            name: Name of the user.
            cluster: Name of the cluster; None for the brokers of all clusters.
            broker_name: Name of the only broker to delete it on, with its slaves.
        """
        name = _check_user(name)
        for address in self._access_brokers(cluster, broker_name):
            self._api.access.delete_user(address, name)

    # ---- access lists

    def acls(
        self,
        user: str | None = None,
        *,
        cluster: str | None = None,
        broker_name: str | None = None,
    ) -> Mapping[str, tuple[AclPolicy, ...]]:
        """Return the entries of access lists of each master, by broker name.

        Args:
            user: Name of the only user whose entries to return.
            cluster: Name of the cluster; None for all clusters.
            broker_name: Name of the only broker to ask.

        Raises:
            NotSupported: A broker has no access lists: RocketMQ has them from 5.3 on.
        """
        if user is not None:
            user = _check_user(user, "user")
        return {
            name: tuple(policy for acl in self._acls_at(address, user) for policy in _policies(acl))
            for name, address in self._selected_masters(cluster, broker_name).items()
        }

    def create_acl(
        self, policy: AclPolicy, *, cluster: str | None = None, broker_name: str | None = None
    ) -> None:
        """Add an entry to a user's access list on all brokers, or replace the resource's entry.

        Args:
            policy: The entry.
            cluster: Name of the cluster; None for the brokers of all clusters.
            broker_name: Name of the only broker to change it on, with its slaves.

        Raises:
            MessageRejected: The resource, an action or an address is malformed.
            NoPermission: A broker does not let this client change lists, or has no such user.
            NotSupported: A broker has no access lists: RocketMQ has them from 5.3 on.
        """
        example = "AclPolicy('billing', 'Topic:orders', ('Pub',))"
        check_kind("policy", policy, AclPolicy, "an AclPolicy", example)
        user = _check_user(policy.user, "user")
        check_flag("is_allowed", policy.is_allowed)
        if check_text("policy_type", policy.policy_type, _CUSTOM) not in _POLICY_TYPES:
            raise MessageRejected("policy_type", " or ".join(_POLICY_TYPES), policy.policy_type)
        entry = PolicyEntryInfo(
            resource=parse_resource(policy.resource),
            actions=parse_actions(policy.actions),
            source_ips=_check_sources(policy.sources) or None,
            decision=_ALLOW if policy.is_allowed else _DENY,
        )
        acl = AclInfo(
            subject=f"User:{user}",
            policies=(PolicyInfo(policy_type=policy.policy_type, entries=(entry,)),),
        )
        for address in self._access_brokers(cluster, broker_name):
            self._api.access.create_acl(address, user, acl)

    def delete_acl(
        self,
        user: str,
        resource: str | None = None,
        *,
        cluster: str | None = None,
        broker_name: str | None = None,
    ) -> bool:
        """Delete a user's entry of a resource, or its whole access list, on all brokers.

        Deleting a missing entry or list is no error.

        Args:
            user: Name of the user.
            resource: The resource of the entry, as in the list; None for all entries.
            cluster: Name of the cluster; None for the brokers of all clusters.
            broker_name: Name of the only broker to change it on, with its slaves.

        Returns:
            Whether a broker had an access list of the user.
        """
        user = _check_user(user, "user")
        wanted = None if resource is None else parse_resource(resource)
        has_deleted = False
        for address in self._access_brokers(cluster, broker_name):
            has_deleted |= self._api.access.delete_acl(address, user, wanted)
        return has_deleted

    def _acls_at(self, address: str, user: str | None) -> Iterable[AclInfo]:
        if user is None:
            return self._api.access.acls(address)
        found = self._api.access.acl(address, user)
        return () if found is None else (found,)

    # ---- brokers

    def _access_brokers(self, cluster: str | None, broker_name: str | None) -> tuple[str, ...]:
        """Return the addresses of all brokers, slaves as well, in the order of their names."""
        broker_name = check_name("broker_name", broker_name, "broker-a")
        found = tuple(
            address
            for name, broker in self._brokers_in(cluster).items()
            if broker_name in (None, name)
            for _, address in sorted(broker.broker_addrs.items())
        )
        if not found:
            kind = "broker" if broker_name is None else "such broker"
            raise no_broker(kind, cluster, broker_name)
        return found


def parse_resource(text: str) -> str:
    """Return a resource, such as ``Topic:orders``, in RocketMQ's spelling; refuse other texts."""
    text = check_text("resource", text, "Topic:orders")
    check_utf8("resource", text)
    if text == "*":
        return text
    kind, _, name = text.partition(":")
    known = {each.lower(): each for each in RESOURCE_TYPES}.get(kind.lower())
    is_pattern = "*" in name[:-1]
    if known is None or not name or is_pattern or any(each.isspace() for each in name):
        raise MessageRejected("resource", _RESOURCE_FORM, text)
    return f"{known}:{name}"


def parse_actions(texts: Collection[str]) -> tuple[str, ...]:
    """Return actions in RocketMQ's spelling, in its order, each once."""
    check_kind("actions", texts, _TEXTS, "a tuple of texts", "('Pub', 'Sub')")
    known = {each.lower(): each for each in ACTIONS}
    found = set()
    for text in texts:
        action = known.get(check_text("actions", text, "Pub").lower())
        if action is None:
            raise MessageRejected("actions", f"one of {', '.join(ACTIONS)}", text)
        found.add(action)
    if not found:
        raise MessageRejected("actions", f"some of {', '.join(ACTIONS)}", Verbatim("none"))
    return tuple(each for each in ACTIONS if each in found)


def _check_sources(texts: Collection[str]) -> tuple[str, ...]:
    check_kind("sources", texts, _TEXTS, "a tuple of texts", "('10.0.0.0/8',)")
    found = []
    for text in texts:
        source = check_text("sources", text, "10.0.0.0/8")
        try:
            ip_network(source, strict=False)
        except ValueError:
            raise MessageRejected(
                "sources", "an IP address, or a range such as 10.0.0.0/8", source
            ) from None
        found.append(source)
    return tuple(found)


def _check_user(name: str, what: str = "name") -> str:
    name = check_text(what, name, "billing")
    check_utf8(what, name)
    if not 0 < len(name) <= _NAME_CHARACTERS_MAX or any(each.isspace() for each in name):
        needed = f"a name of 1 to {_NAME_CHARACTERS_MAX} characters without spaces"
        raise MessageRejected(what, needed, name)
    return name


def _check_password(found: str) -> str:
    """Return a valid password, or raise an error that does not show it."""
    check_secret("password", found, "correct horse")
    if not found or found != found.strip():
        what = "spaces at an end" if found.strip() else "none"
        needed = "at least one character, no spaces at the ends"
        raise MessageRejected("password", needed, Verbatim(what))
    return found


def _user_of(info: UserInfo) -> ClusterUser:
    return ClusterUser(
        name=info.username or "",
        is_super=(info.user_type or "").lower() == _SUPER.lower(),
        is_enabled=(info.user_status or "").lower() != _DISABLED,
    )


def _policies(acl: AclInfo) -> Iterator[AclPolicy]:
    user = (acl.subject or "").removeprefix("User:")
    for policy in acl.policies or ():
        for entry in policy.entries or ():
            yield AclPolicy(
                user=user,
                resource=entry.resource or "",
                actions=entry.actions or (),
                sources=entry.source_ips or (),
                is_allowed=(entry.decision or "").lower() == _ALLOW.lower(),
                policy_type=policy.policy_type or _CUSTOM,
            )
