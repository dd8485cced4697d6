"""Plain accounts: the accounts of plain_acl.yml, and what each may do by RocketMQ 4.9's rules.

    white address of all  >  account known  >  white address of the account  >  signature  >  rights

A white address is allowed everything, without a signature. An account has rights by name for topics
and groups, and default rights for all others. PUB and SUB are RocketMQ's. This broker also checks
requests that 4.9 does not check: seeing a topic or group needs any right on it, changing offsets
needs SUB, and creating, deleting, and requests about the broker itself need an admin.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Flag, auto
from functools import lru_cache, reduce
from ipaddress import ip_address
from operator import or_
from typing import Final, TypeAlias

import yaml

from rmq_spark.errors import RocketPollError
from rmq_spark.wire.names import TRACE_TOPIC

from ..rights import Action, Need, ResourceType
from .yaml_fields import YamlError, YamlFields, is_ambiguous, parse_yaml, text_of

# ---- AddressPattern: white addresses, in the forms that RocketMQ 4.9 has.

_V6_GROUPS = struct.Struct(">8H")
_ANY_ADDRESS: Final = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_NUMBER_V4: Final = re.compile(r"[0-9]{1,3}")
_NUMBER_V6: Final = re.compile(r"[0-9a-fA-F]{1,4}")

Ranges: TypeAlias = tuple[range, ...]
"""The numbers that one place of an address may have."""


@dataclass(frozen=True, slots=True)
class AddressPattern:
    """A pattern that covers one address, several, all or none.

        10.1.2.3                    one address                    10.1.2.3,10.1.2.4   several
        10.1.2.*   10.1.*.*         any number in these places     10.1.2-5.*          a range
        10.1.2.{3,30}               several numbers                ::1  fe80::*        IPv6 likewise
        *                           every address

    A number in IPv6 is hexadecimal. RocketMQ ignores what follows the first ``*``, and reads
    ``10.1.*.3`` as ``10.1.*.*``; here each place counts.
    """

    text: str
    covers_all: bool = False
    alternatives: tuple[tuple[Ranges, ...], ...] = ()

    @classmethod
    def parse(cls, text: str) -> AddressPattern:
        """Parse a pattern; a blank one covers no address."""
        if not text.strip():
            return cls(text)
        if text in _ANY_ADDRESS:
            return cls(text, covers_all=True)
        if "{" in text:
            return cls(text, alternatives=(_parse_parts(text),))
        return cls(text, alternatives=tuple(_parse_parts(each) for each in text.split(",")))

    def covers(self, address: str) -> bool:
        """Return whether an address matches this pattern."""
        if self.covers_all:
            return True
        numbers = _numbers_of(address)
        return any(
            len(parts) == len(numbers)
            and all(
                any(number in numbers_of for numbers_of in part)
                for number, part in zip(numbers, parts, strict=True)
            )
            for parts in self.alternatives
        )


@lru_cache(maxsize=1_024)
def _numbers_of(address: str) -> tuple[int, ...]:
    packed = ip_address(address).packed
    return tuple(packed) if len(packed) == 4 else _V6_GROUPS.unpack(packed)


NO_ADDRESS: Final = AddressPattern("")


def _parse_parts(text: str) -> tuple[Ranges, ...]:
    if ":" in text:
        groups = _expand(text)
        if len(groups) == 8:
            return tuple(_ranges(text, group, 16, 0xFFFF, _NUMBER_V6) for group in groups)
    else:
        bytes_ = text.split(".")
        if len(bytes_) == 4:
            return tuple(_ranges(text, each, 10, 255, _NUMBER_V4) for each in bytes_)
    raise _invalid(text)


def _expand(text: str) -> list[str]:
    """Return the groups of an IPv6 pattern, with zeros for ``::``."""
    head, double, tail = text.partition("::")
    if not double:
        return text.split(":")
    left = head.split(":") if head else []
    right = tail.split(":") if tail else []
    return [*left, *["0"] * (8 - len(left) - len(right)), *right]


def _ranges(text: str, part: str, base: int, highest: int, number: re.Pattern[str]) -> Ranges:
    """Return the numbers that one place of a pattern stands for."""
    if part == "*":
        return (range(highest + 1),)
    words = part[1:-1].split(",") if part[:1] == "{" and part[-1:] == "}" else [part]
    found = []
    for word in words:
        low, minus, high = word.partition("-")
        if not number.fullmatch(low) or (minus and not number.fullmatch(high)):
            raise _invalid(text)
        first, last = int(low, base), int(high if minus else low, base)
        if first > last or last > highest:
            raise _invalid(text)
        found.append(range(first, last + 1))
    return tuple(found)


def _invalid(text: str) -> ValueError:
    return ValueError(
        f"an address such as 10.1.2.3, 10.1.2.*, 10.1.2-5.*, 10.1.2.{{3,30}}, fe80::* or *, not "
        f"{text[:60]!r}"
    )


KEY_CHARACTERS_MIN: Final = 7
"""RocketMQ refuses access keys and secret keys of six characters or fewer."""
_RIGHTS_SHOWN: Final = "PUB, SUB, PUB|SUB or DENY"


class PlainAclError(RocketPollError, ValueError, page="troubleshooting.md#users-and-access-lists"):
    """A plain_acl.yml cannot be read, or its content is invalid."""


class PlainRight(Flag):
    """The rights of an account on a topic or a group."""

    DENY = 0
    PUB = auto()
    SUB = auto()


_RIGHTS: Final = {
    "DENY": PlainRight.DENY,
    "PUB": PlainRight.PUB,
    "SUB": PlainRight.SUB,
    "PUB|SUB": PlainRight.PUB | PlainRight.SUB,
    "SUB|PUB": PlainRight.PUB | PlainRight.SUB,
}
_NAMED: Final = {Action.PUB: PlainRight.PUB, Action.SUB: PlainRight.SUB}
_SUFFICIENT: Final = {
    Action.GET: PlainRight.PUB | PlainRight.SUB,
    Action.LIST: PlainRight.PUB | PlainRight.SUB,
    Action.UPDATE: PlainRight.SUB,
}
"""The rights that permit an action which 4.9 does not know; all other actions need an admin."""


def _sufficient(actions: Iterable[Action]) -> PlainRight:
    """Return the rights that permit a need, any one of them; none if it needs an admin.

    If PUB or SUB can satisfy a need, no other right does: a query of messages needs Sub or Get in
    RocketMQ 5, but SUB in 4.9, because it returns bodies.
    """
    wanted = tuple(actions)
    rights = [_NAMED[action] for action in wanted if action in _NAMED]
    rights = rights or [_SUFFICIENT[action] for action in wanted if action in _SUFFICIENT]
    return reduce(or_, rights, PlainRight.DENY)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainAccount:
    """One account; its access key is the name by which it signs in."""

    access_key: str
    secret_key: str = field(repr=False)
    white_address: AddressPattern = NO_ADDRESS
    is_admin: bool = False
    default_topic_right: PlainRight = PlainRight.DENY
    default_group_right: PlainRight = PlainRight.DENY
    topic_rights: Mapping[str, PlainRight] = field(default_factory=dict)
    group_rights: Mapping[str, PlainRight] = field(default_factory=dict)

    @property
    def is_super(self) -> bool:
        """True for an admin without rights by name, because such rights also limit an admin."""
        return self.is_admin and not self.topic_rights and not self.group_rights

    def fault(self, need: Need) -> str | None:
        """Return why the account's need is refused, in RocketMQ's words, or None."""
        if need.resource is ResourceType.CLUSTER:
            return None if self.is_admin else self._admin_needed(need)
        if need.resource is ResourceType.TOPIC:
            kind, owned = "topic", self.topic_rights.get(need.name, self.default_topic_right)
            if need.name == TRACE_TOPIC and Action.PUB in need.actions:
                return None
        else:
            kind, owned = "group", self.group_rights.get(need.name, self.default_group_right)
        sufficient = _sufficient(need.actions)
        if not sufficient:
            return None if self.is_admin else self._admin_needed(need)
        if owned & sufficient:
            return None
        return f"No default permission for {kind}:{need.name}"

    def allows_every_topic(self, action: Action) -> bool:
        """Return whether the default right and all rights by name permit an action."""
        sufficient = _sufficient([action])
        rights = (self.default_topic_right, *self.topic_rights.values())
        return all(right & sufficient for right in rights)

    def _admin_needed(self, need: Need) -> str:
        return (
            f"Need admin permission for {need.resource.value.lower()}:{need.name}, but "
            f"accessKey={self.access_key} is not"
        )


@dataclass(frozen=True, slots=True)
class PlainAcl:
    """The content of all files together."""

    accounts: Mapping[str, PlainAccount]
    white_addresses: tuple[AddressPattern, ...] = ()

    @classmethod
    def parse(cls, files: Iterable[tuple[str, str]]) -> PlainAcl:
        """Return the accounts in files, given their names and texts.

        Raises:
            PlainAclError: A file has a fault; the message names its line and column.
        """
        accounts: dict[str, PlainAccount] = {}
        addresses: list[AddressPattern] = []
        for name, text in files:
            _read_file(name, text, accounts, addresses)
        return cls(accounts, tuple(addresses))


def _read_file(
    name: str, text: str, accounts: dict[str, PlainAccount], addresses: list[AddressPattern]
) -> None:
    try:
        node = parse_yaml(text)
        if node is None:
            return
        document = YamlFields(node, "plain_acl.yml")
        addresses.extend(map(_address, document.items("globalWhiteRemoteAddresses")))
        for each in document.items("accounts"):
            _add_account(YamlFields(each, "an account"), accounts)
        document.get("dataVersion")  # RocketMQ writes it; this broker does not use it
        document.check_all_known()
    except YamlError as error:
        raise PlainAclError(f"{name}:{error}") from error


def _add_account(fields: YamlFields, accounts: dict[str, PlainAccount]) -> None:
    account = PlainAccount(
        access_key=_key(fields, "accessKey"),
        secret_key=_key(fields, "secretKey"),
        white_address=_address(fields.get("whiteRemoteAddress")),
        is_admin=_is_admin(fields.get("admin")),
        default_topic_right=_default_right(fields, "defaultTopicPerm"),
        default_group_right=_default_right(fields, "defaultGroupPerm"),
        topic_rights=dict(map(_named_right, fields.items("topicPerms"))),
        group_rights=dict(map(_named_right, fields.items("groupPerms"))),
    )
    fields.check_all_known()
    if accounts.setdefault(account.access_key, account) is not account:
        raise YamlError(fields.mark, f"accessKey {account.access_key} exists already")


def _key(fields: YamlFields, name: str) -> str:
    """Return an access key or a secret key, which no error shows."""
    node = fields.get(name)
    text = text_of(node, name)
    if text is None or len(text) < KEY_CHARACTERS_MIN:
        raise YamlError(
            node.start_mark, f"{name} must have at least {KEY_CHARACTERS_MIN} characters"
        )
    if is_ambiguous(node):
        raise YamlError(node.start_mark, f"YAML reads this {name} as a number or flag: quote it")
    return text


def _is_admin(node: yaml.Node) -> bool:
    text = (text_of(node, "admin") or "false").lower()
    if text not in ("true", "false"):
        raise YamlError(node.start_mark, "admin must be true or false")
    return text == "true"


def _address(node: yaml.Node) -> AddressPattern:
    text = text_of(node, "a white address")
    try:
        return AddressPattern.parse(text or "")
    except ValueError as error:
        raise YamlError(node.start_mark, f"a white address must be {error}") from error


def _default_right(fields: YamlFields, name: str) -> PlainRight:
    node = fields.get(name)
    text = text_of(node, name)
    return PlainRight.DENY if text is None else _right(node, text)


def _right(node: yaml.Node, text: str) -> PlainRight:
    right = _RIGHTS.get(text.strip())
    if right is None:  # RocketMQ reads it as DENY
        raise YamlError(node.start_mark, f"a right must be {_RIGHTS_SHOWN}, not {text[:40]!r}")
    return right


def _named_right(node: yaml.Node) -> tuple[str, PlainRight]:
    name, equals, right = (text_of(node, "a right") or "").partition("=")
    if not equals or not name.strip():
        raise YamlError(node.start_mark, f"a right by name must be name={_RIGHTS_SHOWN}")
    return name.strip(), _right(node, right)
