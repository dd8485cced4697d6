"""Access lists: the rules of RocketMQ 5's ACL 2.0, and which of them decides.

    Topic:orders   one resource      Topic:or*   names with this prefix      Topic:*   any
    *              any resource of any type

A rule is a candidate if it covers the resource, one of the needed actions, and the client's
address. If any custom rule is a candidate, default rules do not count. The candidate with the most
specific resource decides: a rule of a type before ``*``, one resource before a prefix, a longer
prefix before a shorter one, any prefix before ``Topic:*``. Without a candidate nothing is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Final, TypeAlias, TypeVar

from rmq_spark.errors import RocketPollError
from rmq_spark.wire.bodies.operators import AclInfo, PolicyEntryInfo, PolicyInfo

from .rights import Action, Need, ResourceType

_EnumT = TypeVar("_EnumT", bound=Enum)

RULES_MAX: Final = 1_000
"""Limit on the rules of one user, because a request may have to check all of them."""
NAME_CHARACTERS_MAX: Final = 255
SOURCES_MAX: Final = 100


class AccessListError(RocketPollError, ValueError, page="troubleshooting.md#refused-by-a-broker"):
    """A user or an access list is invalid; the text is RocketMQ's where it has one."""


class Decision(Enum):
    """The effect of a rule; the value is RocketMQ's word."""

    ALLOW = "Allow"
    DENY = "Deny"


class PatternKind(IntEnum):
    """The ways in which a rule names resources, the most specific first."""

    LITERAL = 0
    PREFIXED = 1
    ANY = 2


@dataclass(frozen=True, slots=True)
class ResourcePattern:
    """The resources that a rule covers; without a type, all of them."""

    resource: ResourceType | None
    kind: PatternKind
    name: str = ""

    @classmethod
    def parse(cls, text: str | None) -> ResourcePattern:
        """Parse a pattern in RocketMQ's form; the type may be in upper or lower case."""
        if text is not None and text.strip() == "*":
            return cls(None, PatternKind.ANY)
        kind, _, name = (text or "").partition(":")
        resource = member_of(ResourceType, kind)
        if resource is None:
            raise AccessListError("The resource is null.")
        if len(name) > NAME_CHARACTERS_MAX:
            raise AccessListError(f"The resource has over {NAME_CHARACTERS_MAX} characters.")
        if name == "*":
            return cls(resource, PatternKind.ANY)
        if name.endswith("*"):
            return cls(resource, PatternKind.PREFIXED, name.partition("*")[0])
        return cls(resource, PatternKind.LITERAL, name)

    def __str__(self) -> str:
        if self.resource is None:
            return "*"
        star = "" if self.kind is PatternKind.LITERAL else "*"
        return f"{self.resource.value}:{self.name}{star}"

    def covers(self, resource: ResourceType, name: str) -> bool:
        """Return whether the pattern covers a resource."""
        if self.resource is None:
            return True
        if self.resource is not resource:
            return False
        if self.kind is PatternKind.LITERAL:
            return name == self.name
        return self.kind is PatternKind.ANY or name.startswith(self.name)


@dataclass(frozen=True, slots=True)
class SourceRange:
    """Addresses from which a rule holds: one, or a range in CIDR form.

    As in RocketMQ, a range of one family covers addresses of the other with the same number, so
    that ``::/0`` is every address.
    """

    text: str
    low: int = field(compare=False)
    high: int = field(compare=False)
    is_one_of: int | None = field(default=None, compare=False)
    """The IP version of a single address, which covers only that version; None for a range."""

    @classmethod
    def parse(cls, text: str) -> SourceRange:
        """Parse an address or a range."""
        if not text.strip():
            raise AccessListError("The source ip is empty.")
        try:
            if "/" in text and text.rpartition("/")[2].isdecimal():
                network = ip_network(text, strict=False)
                return cls(text, int(network.network_address), int(network.broadcast_address))
            address = ip_address(text)
        except ValueError:
            raise AccessListError("The source ip is invalid.") from None
        return cls(text, int(address), int(address), address.version)

    def covers(self, address: str) -> bool:
        """Return whether an address is in the range."""
        version, number = _numbered(address)
        if self.is_one_of is not None and version != self.is_one_of:
            return False
        return self.low <= number <= self.high


@lru_cache(maxsize=1_024)
def _numbered(address: str) -> tuple[int, int]:
    parsed = ip_address(address)
    return parsed.version, int(parsed)


@dataclass(frozen=True, slots=True)
class AccessRule:
    """One rule of an access list; without sources, it holds for every address."""

    pattern: ResourcePattern
    actions: tuple[Action, ...]
    sources: tuple[SourceRange, ...]
    decision: Decision

    @classmethod
    def of_info(cls, info: PolicyEntryInfo) -> AccessRule:
        """Return the rule that a request contains."""
        pattern = ResourcePattern.parse(info.resource)
        actions = tuple(dict.fromkeys(map(_action, info.actions or ())))
        if not actions:
            raise AccessListError("The actions is empty.")
        if len(info.source_ips or ()) > SOURCES_MAX:
            raise AccessListError(f"A rule has over {SOURCES_MAX} source ips.")
        sources = tuple(map(SourceRange.parse, info.source_ips or ()))
        decision = member_of(Decision, info.decision)
        if decision is None:
            raise AccessListError("The decision is null or illegal.")
        return cls(pattern, actions, sources, decision)

    def info(self) -> PolicyEntryInfo:
        """Return the rule as a response has it."""
        return PolicyEntryInfo(
            resource=str(self.pattern),
            actions=tuple(action.value for action in self.actions),
            source_ips=tuple(source.text for source in self.sources) or None,
            decision=self.decision.value,
        )

    def is_candidate(self, need: Need, address: str) -> bool:
        """Return whether the rule covers a need of a client at this address."""
        return self.pattern.covers(need.resource, need.name) and any(
            self.holds_for(action, address) for action in need.actions
        )

    def holds_for(self, action: Action, address: str) -> bool:
        """Return whether the rule covers an action of a client at this address."""
        return (Action.ALL in self.actions or action in self.actions) and (
            not self.sources or any(source.covers(address) for source in self.sources)
        )


Rules: TypeAlias = tuple[AccessRule, ...]


def is_default_type(policy_type: str | None) -> bool:
    """Return whether a type of rules is Default; without a type, rules are Custom."""
    if policy_type is not None and policy_type.lower() not in ("custom", "default"):
        raise AccessListError(f"The policy type {policy_type} is not Custom or Default.")
    return policy_type is not None and policy_type.lower() == "default"


@dataclass(frozen=True, slots=True)
class AccessList:
    """All rules of one user; no two rules of a kind have the same resource."""

    custom: Rules = ()
    default: Rules = ()
    _by_pattern: tuple[Mapping[ResourcePattern, AccessRule], ...] = field(
        init=False, repr=False, compare=False
    )
    """The rules of each kind by resource, because a request may have thousands of needs."""

    def __post_init__(self) -> None:
        kinds = tuple({rule.pattern: rule for rule in of} for of in (self.custom, self.default))
        object.__setattr__(self, "_by_pattern", kinds)

    @classmethod
    def of_policies(cls, policies: Iterable[PolicyInfo] | None) -> AccessList:
        """Return the access list in a request or a file."""
        acl = cls()
        for policy in policies or ():
            is_default = is_default_type(policy.policy_type)
            rules = tuple(map(AccessRule.of_info, policy.entries or ()))
            acl = acl.merge(cls(default=rules) if is_default else cls(custom=rules))
        if acl.is_empty:
            raise AccessListError("The policies is empty.")
        return acl

    @property
    def is_empty(self) -> bool:
        """True if there is no rule."""
        return not self.custom and not self.default

    def merge(self, changes: AccessList) -> AccessList:
        """Return this list with rules added, or replaced where kind and resource are the same."""
        merged = AccessList(
            _merge(self.custom, changes.custom), _merge(self.default, changes.default)
        )
        if len(merged.custom) + len(merged.default) > RULES_MAX:
            raise AccessListError(f"The list has over {RULES_MAX} rules; name prefixes instead.")
        return merged

    def without(self, pattern: ResourcePattern, *, is_default: bool) -> AccessList:
        """Return this list without the custom, or default, rule of a resource."""
        if is_default:
            return AccessList(self.custom, _without(self.default, pattern))
        return AccessList(_without(self.custom, pattern), self.default)

    def policies(self, resource_filter: str = "") -> tuple[PolicyInfo, ...]:
        """Return the rules whose resource contains a text, as a response and a file have them."""
        kinds = (("Custom", self.custom), ("Default", self.default))
        found = (
            (kind, tuple(rule.info() for rule in rules if resource_filter in str(rule.pattern)))
            for kind, rules in kinds
        )
        return tuple(
            PolicyInfo(policy_type=kind, entries=entries) for kind, entries in found if entries
        )

    def info(self, subject: str, resource_filter: str = "") -> AclInfo:
        """Return the list of a subject, ``User:name``, as a response has it."""
        return AclInfo(subject=subject, policies=self.policies(resource_filter))

    def decide(self, need: Need, address: str) -> Decision | None:
        """Return the decision on a need of a client at this address; None if no rule covers it."""
        for rules in self._by_pattern:
            for pattern in _patterns_of(need):
                rule = rules.get(pattern)
                if rule is not None and rule.is_candidate(need, address):
                    return rule.decision
        return None

    def allows_every(self, resource: ResourceType, action: Action, address: str) -> bool:
        """Return whether a client at an address may do this with all resources of a type.

        One rule must allow it for all, and none forbid it for some.
        """
        rules = [
            rule
            for rule in (*self.custom, *self.default)
            if rule.pattern.resource in (None, resource) and rule.holds_for(action, address)
        ]
        is_general = any(rule.pattern.kind is PatternKind.ANY for rule in rules)
        return is_general and all(rule.decision is Decision.ALLOW for rule in rules)


def _patterns_of(need: Need) -> Iterator[ResourcePattern]:
    """Yield all patterns that cover the resource of a need, the most specific first."""
    resource, name = need.resource, need.name
    yield ResourcePattern(resource, PatternKind.LITERAL, name)
    for length in range(min(len(name), NAME_CHARACTERS_MAX), -1, -1):
        yield ResourcePattern(resource, PatternKind.PREFIXED, name[:length])
    yield ResourcePattern(resource, PatternKind.ANY)
    yield ResourcePattern(None, PatternKind.ANY)


def _merge(rules: Rules, changes: Rules) -> Rules:
    return tuple({rule.pattern: rule for rule in (*rules, *changes)}.values())


def _without(rules: Rules, pattern: ResourcePattern) -> Rules:
    return tuple(rule for rule in rules if rule.pattern != pattern)


def _action(word: str) -> Action:
    action = member_of(Action, word)
    if action is not None:
        return action
    if word.lower() == "any":
        raise AccessListError("The actions can not be Any.")
    raise AccessListError(f"The action {word} is unknown.")


def member_of(words: type[_EnumT], text: str | None) -> _EnumT | None:
    """Return the member whose value equals a text, ignoring case; None if there is none."""
    wanted = (text or "").lower()
    return next((member for member in words if member.value.lower() == wanted), None)
