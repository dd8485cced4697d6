"""AccessControl: authenticates the client of every request, and checks its rights.

    connection, request --> authenticate --> Identity --> check --> RIGHTS: its needs --> rules

`AccessRules` are the users and lists of RocketMQ 5, or the accounts of plain_acl.yml. Without rules
nothing is checked.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from ipaddress import ip_address
from typing import Final, Protocol

from rmq_spark.errors import WireError
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.names import HALF_TOPIC, SCHEDULE_TOPIC
from rmq_spark.wire.remoting.command import RemotingCommand

from ..common.channel import Channel, Identity
from ..common.log_limit import LogLimit, printable
from ..common.request_content import NotAuthenticated, RequestRejected, no_permission
from .request_rights import RIGHTS, BodyRow
from .rights import Action, Need, ResourceType, group_need, topic_need
from .signatures import SignedTemplate, UnsignedTemplate

_log = logging.getLogger(__name__)
_MIXED_TOPICS: Final = frozenset([SCHEDULE_TOPIC, HALF_TOPIC])
"""Topics in which messages of all other topics wait."""


class AccessRules(Protocol):
    """Users, their secrets and their rights: of RocketMQ 5, or of plain_acl.yml."""

    @property
    def version(self) -> int:
        """A number that grows whenever users or lists change."""

    def authenticate(self, address: str, request: RemotingCommand) -> Identity:
        """Return the identity that signed a request; raise `RequestRejected` without one."""

    def refusal(self, identity: Identity, address: str, need: Need) -> RequestRejected | None:
        """Return the refusal of a client's need, or None if the client has the right.

        The identity may have been proven long ago: the current users and lists decide.
        """

    def secret_of(self, identity: Identity, address: str) -> str | None:
        """Return the key that signs a client's requests; None if its address needs no signature."""

    def allows_every_topic(self, identity: Identity, address: str, action: Action) -> bool:
        """Return whether a client has the right to an action on all present and future topics."""


class AccessControl:
    """The check of all requests of a broker."""

    def __init__(self, rules: AccessRules | None = None, cluster: str = "") -> None:
        self._rules: AccessRules | None = None
        self._cluster = cluster
        self._failure_log = LogLimit()
        self.is_enabled = False
        self.failures = 0
        """Requests whose sender has not proven an identity."""
        self.denials = 0
        """Requests of proven identities that do not have a needed right."""
        if rules is not None:
            self.use(rules)

    def use(self, rules: AccessRules) -> None:
        """Check all requests by these rules; call this before the broker serves clients."""
        self._rules = rules
        self.is_enabled = True

    @property
    def version(self) -> int:
        """A number that grows with each change of users or lists; earlier decisions are stale."""
        return 0 if self._rules is None else self._rules.version

    def authenticate(self, connection: Channel, request: RemotingCommand) -> Identity:
        """Return the identity that signed a request, the same for all requests of a connection.

        The signature covers neither the request's code nor a time. So a connection stays with the
        first identity that it proves: on it, a captured request of another user is refused.

        Raises:
            NotAuthenticated: The signature is invalid, or the connection belongs to another user.
        """
        if self._rules is None:
            raise ValueError("there is no identity without authentication")
        try:
            identity = self._rules.authenticate(_address_of(connection), request)
            _check_same(connection.identity, identity)
        except RequestRejected as refused:
            self.failures += 1
            self._log_failure(connection, request, refused)
            raise NotAuthenticated(refused.code, refused.remark) from refused
        connection.identity = identity
        return identity

    def _log_failure(
        self, connection: Channel, request: RemotingCommand, refused: RequestRejected
    ) -> None:
        """Log a failed authentication, once a minute for each address."""
        address = _address_of(connection)
        suppressed = self._failure_log.admit(address, time.monotonic())
        if suppressed is not None:
            _log.warning(
                "request %d of %s is not authenticated: %s%s",
                request.code,
                connection.remote_host,
                printable(refused.remark),
                f" ({suppressed} more from this address since the last line)" if suppressed else "",
            )

    def check(self, connection: Channel, request: RemotingCommand) -> None:
        """Refuse a request whose sender is unknown, or does not have all needed rights.

        Raises:
            RequestRejected: The request is refused.
            WireError: The header or body that names resources cannot be read.
        """
        needs_of = self._authenticated_row(connection, request)
        for need in () if needs_of is None else needs_of(request, self._cluster):
            self._require(connection, need)

    def check_in_steps(self, connection: Channel, request: RemotingCommand) -> Iterator[None]:
        """Check a request in steps, because its body may name thousands of resources."""
        needs_of = self._authenticated_row(connection, request)
        if isinstance(needs_of, BodyRow):
            needs: Iterable[Need] = yield from needs_of.in_steps(request)
        else:
            needs = () if needs_of is None else needs_of(request, self._cluster)
        for need in needs:
            self._require(connection, need)
            yield

    def _authenticated_row(
        self, connection: Channel, request: RemotingCommand
    ) -> Callable[[RemotingCommand, str], Iterable[Need]] | None:
        """Return the row of the table for a request; None if its sender needs no right."""
        if self._rules is None:
            return None
        identity = self.authenticate(connection, request)
        needs_of = RIGHTS.get(request.code)
        if needs_of is None:
            self.denials += 1
            code = request.code
            name = RequestCode(code).name if code in RequestCode._value2member_map_ else str(code)
            raise no_permission(f"no client may send request {name} to this broker")
        return None if identity.is_super else needs_of

    def _require(self, connection: Channel, need: Need) -> None:
        rules, identity = self._rules, connection.identity
        if rules is None or identity is None:
            return
        refused = _refusal(rules, identity, _address_of(connection), need)
        if refused is not None:
            self.denials += 1
            raise refused

    def template_of(
        self, connection: Channel, request: RemotingCommand, varying: tuple[str, str]
    ) -> SignedTemplate | UnsignedTemplate | None:
        """Return the verifier of requests that differ from this one in two fields and the body.

        Return None if the request is not allowed, or does not have these fields. The verifier is
        valid while `version` stays the same.
        """
        rules = self._rules
        if rules is None:
            return UnsignedTemplate()
        counted = self.failures, self.denials
        try:
            self.check(connection, request)
            if connection.identity is None:
                return None
            secret = rules.secret_of(connection.identity, _address_of(connection))
            if secret is None:
                return UnsignedTemplate()
            return SignedTemplate(request.ext_fields, varying, secret)
        except (RequestRejected, WireError, KeyError, UnicodeEncodeError):
            self.failures, self.denials = counted  # the refusal is already counted
            return None

    def allows(
        self, connection: Channel, resource: ResourceType, name: str, *actions: Action
    ) -> bool:
        """Return whether a client may do any of these actions, by the current users and lists.

        It is for lists, replays of held pulls, commits, and rights that depend on a stored message.
        A retry topic counts as its group. A connection that has not proven an identity may do
        nothing.
        """
        return self.refusal(connection, resource, name, *actions) is None

    def refusal(
        self, connection: Channel, resource: ResourceType, name: str, *actions: Action
    ) -> RequestRejected | None:
        """Return the refusal if `allows` would return False, else None."""
        rules = self._rules
        if rules is None:
            return None
        identity = connection.identity
        if identity is None:
            return no_permission("nobody has signed this request")
        need = _NEEDS[resource](name, *actions)
        return _refusal(rules, identity, _address_of(connection), need)

    def require(
        self, connection: Channel, resource: ResourceType, name: str, *actions: Action
    ) -> None:
        """Refuse and count a request unless `allows` is true; for rights that handlers check."""
        refused = self.refusal(connection, resource, name, *actions)
        if refused is not None:
            self.denials += 1
            raise refused

    def allows_every_topic(self, connection: Channel, action: Action) -> bool:
        """Return whether a client has the right to an action on all present and future topics."""
        rules, identity = self._rules, connection.identity
        if rules is None:
            return True
        if identity is None:
            return False
        return rules.allows_every_topic(identity, _address_of(connection), action)

    def knows(self, connection: Channel) -> bool:
        """Return whether a connection's user still exists, is enabled, and has the same key."""
        rules, identity = self._rules, connection.identity
        if rules is None:
            return True
        if identity is None:
            return False
        try:
            rules.secret_of(identity, _address_of(connection))
        except RequestRejected:
            return False
        return True

    def require_every_topic(self, connection: Channel, action: Action) -> None:
        """Refuse and count a request that needs a right on every topic, unless the user has it."""
        if not self.allows_every_topic(connection, action):
            self.denials += 1
            raise no_permission(
                f"the log holds the messages of all topics: grant {action.value} on every topic to "
                "read it, or pull messages"
            )

    def visible_to(self, connection: Channel) -> VisibleNames:
        """Return the names that answers to a client may contain."""
        return VisibleNames(partial(self.allows, connection), self._cluster)


def _refusal(
    rules: AccessRules, identity: Identity, address: str, need: Need
) -> RequestRejected | None:
    """Return the refusal by the rules, or None; `_MIXED_TOPICS` need a right on every topic."""
    refused = rules.refusal(identity, address, need)
    if (
        refused is None
        and need.resource is ResourceType.TOPIC
        and need.name in _MIXED_TOPICS
        and not any(rules.allows_every_topic(identity, address, each) for each in need.actions)
    ):
        return no_permission(
            f"{need.name} holds messages of all topics: it needs "
            f"{' or '.join(each.value for each in need.actions)} on every topic"
        )
    return refused


def _check_same(proven: Identity | None, identity: Identity) -> None:
    if proven is not None and proven.name != identity.name:
        raise no_permission(
            f"this connection belongs to {proven.name}: use another connection for another access "
            "key"
        )


def _cluster_need(name: str, *actions: Action) -> Need:
    return Need(ResourceType.CLUSTER, name, actions)


_NEEDS: dict[ResourceType, Callable[..., Need]] = {
    ResourceType.TOPIC: topic_need,
    ResourceType.GROUP: group_need,
    ResourceType.CLUSTER: _cluster_need,
}


def _address_of(connection: Channel) -> str:
    return _address_text(connection.remote_host.address)


@lru_cache(maxsize=4_096)
def _address_text(address: bytes) -> str:
    return str(ip_address(address))


# ---- VisibleNames: the topics and groups whose names one client may see in answers.

_TOPIC_ACTIONS: Final = Action.PUB, Action.SUB, Action.GET, Action.LIST
_GROUP_ACTIONS: Final = Action.SUB, Action.GET, Action.LIST


class VisibleNames:
    """The names that one client may see, by the current users and lists.

    A client sees the names of topics and groups on which it has any right. The right to list the
    cluster, which RocketMQ requires for lists, shows all names.
    """

    def __init__(self, allows: Callable[..., bool], cluster: str) -> None:
        """Store ``allows(resource, name, *actions)``, which tests a right of the client."""
        self._allows = allows
        self.is_all: Final = allows(ResourceType.CLUSTER, cluster, Action.LIST)
        """True if no name is hidden."""

    def has_topic(self, topic: str) -> bool:
        """Return whether the client may see a topic's name; a retry topic counts as its group."""
        return self.is_all or self._allows(ResourceType.TOPIC, topic, *_TOPIC_ACTIONS)

    def has_group(self, group: str) -> bool:
        """Return whether the client may see a group's name."""
        return self.is_all or self._allows(ResourceType.GROUP, group, *_GROUP_ACTIONS)
