"""Access lists and users, and requests that test them.

The requests of `ADMINISTRATION` run in order: each depends on those before it. `LISTS` test which
entry of a list decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from support.access.requests import (
    CLUSTER,
    GROUP,
    QUERY,
    RETRY,
    SEND_V2,
    TOPIC,
    Request,
    as_json,
)

SECRET = "12345678"  # noqa: S105  # the password of every test user

Entry = Mapping[str, Any]


class TriedList(NamedTuple):
    """The access list of one user, by policy type, and a request of that user."""

    name: str
    policies: Mapping[str, tuple[Entry, ...]]
    request: Request


def entry(resource: str, *actions: str, deny: bool = False, ips: Any = None) -> Entry:
    """Return an entry of a policy as clients send it."""
    addresses = {} if ips is None else {"sourceIps": ips}
    decision = "Deny" if deny else "Allow"
    return {"resource": resource, "actions": actions, **addresses, "decision": decision}


def policy(*entries: Entry, kind: str | None = "CUSTOM") -> Mapping[str, Any]:
    return {"policyType": kind, "entries": entries}


_SEND = Request("SEND_MESSAGE_V2", 310, SEND_V2, b"x")
_QUERY = Request("QUERY_MESSAGE", 12, QUERY)
_TO_RETRY = Request("SEND_MESSAGE_V2", 310, {**SEND_V2, "a": "other", "b": RETRY}, b"x")
_ALLOW, _PREFIX, _SHORT = entry(f"Topic:{TOPIC}", "Pub"), entry("Topic:Ord*", "Pub"), "Topic:O*"


def _custom(name: str, *entries: Entry, request: Request = _SEND) -> TriedList:
    return TriedList(name, {"CUSTOM": entries}, request)


def _deny(resource: str, *actions: str, ips: Any = None) -> Entry:
    return entry(resource, *(actions or ("Pub",)), deny=True, ips=ips)


def _from(*ips: str) -> Entry:
    return entry(f"Topic:{TOPIC}", "Pub", ips=ips)


LISTS = (
    _custom("allow the topic", _ALLOW),
    _custom("deny the topic, allow a prefix", _deny(f"Topic:{TOPIC}"), _PREFIX),
    _custom("deny a prefix, allow the topic", _deny("Topic:Ord*"), _ALLOW),
    _custom("allow a longer prefix, deny a shorter", _deny(_SHORT), _PREFIX),
    _custom("deny a longer prefix, allow a shorter", entry(_SHORT, "Pub"), _deny("Topic:Ord*")),
    _custom("allow a prefix, deny all topics", _deny("Topic:*"), _PREFIX),
    _custom("deny a prefix, allow all topics", entry("Topic:*", "Pub"), _deny("Topic:Ord*")),
    _custom("allow all topics, deny everything", _deny("*"), entry("Topic:*", "Pub")),
    _custom("deny all topics, allow everything", entry("*", "Pub"), _deny("Topic:*")),
    _custom("allow everything", entry("*", "Pub")),
    _custom("allow all actions", entry(f"Topic:{TOPIC}", "All")),
    _custom("deny all actions, allow a prefix", _deny(f"Topic:{TOPIC}", "All"), _PREFIX),
    TriedList(
        "custom denies, default allows",
        {"CUSTOM": (_deny(f"Topic:{TOPIC}"),), "DEFAULT": (_ALLOW,)},
        _SEND,
    ),
    TriedList(
        "custom allows, default denies",
        {"CUSTOM": (_ALLOW,), "DEFAULT": (_deny(f"Topic:{TOPIC}"),)},
        _SEND,
    ),
    TriedList(
        "custom denies a prefix, default allows the topic",
        {"CUSTOM": (_deny(_SHORT),), "DEFAULT": (_ALLOW,)},
        _SEND,
    ),
    TriedList(
        "custom is about another topic, default allows",
        {"CUSTOM": (_deny("Topic:Other"),), "DEFAULT": (_ALLOW,)},
        _SEND,
    ),
    TriedList(
        "custom denies another action, default allows",
        {"CUSTOM": (_deny(f"Topic:{TOPIC}", "Sub"),), "DEFAULT": (_ALLOW,)},
        _SEND,
    ),
    _custom("allow another action, allow a prefix", entry(f"Topic:{TOPIC}", "Sub"), _PREFIX),
    _custom("deny another action, allow a prefix", _deny(f"Topic:{TOPIC}", "Sub"), _PREFIX),
    _custom("allow another action", entry(f"Topic:{TOPIC}", "Sub")),
    _custom("from here", _from("127.0.0.1")),
    _custom("from a range around here", _from("127.0.0.0/8")),
    _custom("from a range of an address in it", _from("127.0.0.5/24")),
    _custom("from elsewhere", _from("10.0.0.0/8")),
    _custom("from elsewhere or here", _from("10.0.0.0/8", "127.0.0.1/32")),
    _custom("from any IPv4 address", _from("0.0.0.0/0")),
    _custom("from here as IPv6 says it", _from("::ffff:127.0.0.1")),
    _custom("from no address in particular", _from()),
    _custom("deny elsewhere, allow a prefix", _deny(f"Topic:{TOPIC}", ips=["10.0.0.0/8"]), _PREFIX),
    _custom("deny here, allow a prefix", _deny(f"Topic:{TOPIC}", ips=["127.0.0.1"]), _PREFIX),
    _custom("another case", entry(f"Topic:{TOPIC.lower()}", "Pub")),
    _custom("the empty prefix", entry("Topic:**", "Pub")),
    _custom("the whole name as a prefix", entry(f"Topic:{TOPIC}*", "Pub")),
    _custom("a group of that name", entry(f"Group:{TOPIC}", "Pub")),
    _custom("the cluster", entry(f"Cluster:{CLUSTER}", "All")),
    _custom("an asterisk within", entry("Topic:O*s", "Pub")),
    _custom(
        "deny one of two actions, allow the other by prefix",
        _deny(f"Topic:{TOPIC}", "Sub"),
        entry(_SHORT, "Get"),
        request=_QUERY,
    ),
    _custom(
        "deny one of two actions by prefix, allow the other",
        _deny(_SHORT, "Sub"),
        entry(f"Topic:{TOPIC}", "Get"),
        request=_QUERY,
    ),
    _custom("the group of a retry topic", entry(f"Group:{GROUP}", "Sub"), request=_TO_RETRY),
    _custom("the sender of a retry topic", entry("Group:other", "Sub"), request=_TO_RETRY),
    _custom("a retry topic by name", entry(f"Topic:{RETRY}", "Pub"), request=_TO_RETRY),
    _custom("no entry for this", entry("Topic:Another", "Pub")),
)


def _user(code: int, name: str | None, **body: str) -> Request:
    fields = {} if name is None else {"username": name}
    return Request("user", code, fields, as_json(body) if body else b"")


def _list(code: int, subject: str | None, *policies: Any, **more: str) -> Request:
    fields = {**({} if subject is None else {"subject": subject}), **more}
    return Request("list", code, fields, as_json({"policies": policies}) if policies else b"")


def _entry_of(**changed: Any) -> Request:
    """Return an update by a list entry in which a field is changed or missing."""
    whole = {**entry("Topic:A", "Pub"), **changed}
    return _list(3006, LISTED, policy({name: value for name, value in whole.items() if value}))


LISTED = "User:listed"

BY_A_MANAGER = (
    _user(3001, "m1", password=SECRET),
    _user(3001, "m2", password=SECRET, userType="Super"),
    _user(3002, "m1", password="another"),
    _user(3002, "m1", userType="Super"),
    _user(3002, "m2", password="another"),
    _user(3002, "operator", userStatus="disable"),
    _user(3003, "operator"),
    _user(3003, "nobody"),
    _list(3006, "User:m1", policy(entry("*", "All"))),
    _list(3006, "User:operator", policy(entry("*", "All"))),
    _list(3008, "User:operator"),
    _user(3003, "m1"),
    _user(3005, None),
)
"""Requests about users and lists, from a user who may change the cluster but is no super
user."""

ADMINISTRATION = (
    # ---- users
    _user(3001, "u1", username="u1", password=SECRET),
    _user(3001, "u1", username="u1", password=SECRET),
    _user(3001, "u2", username="u2", password=SECRET, userType="Normal", userStatus="enable"),
    _user(3001, "u3", username="u3", password=SECRET, userType="SUPER", userStatus="DISABLE"),
    _user(3001, "u5", username="u5"),
    _user(3001, "u6", username="u6", password="  "),
    _user(3001, None, username="u8", password=SECRET),
    _user(3001, "", username="u8", password=SECRET),
    _user(3001, "   ", username="u8", password=SECRET),
    _user(3001, "u8", username="another", password=SECRET),
    _user(3001, "u9", password=SECRET),
    _user(3001, "a:b*c", password=SECRET),
    *(_user(3004, name) for name in ("u1", "u2", "u3", "u8", "a:b*c", "nobody", None)),
    _user(3005, None),
    Request("users", 3005, {"filter": ""}),
    Request("users", 3005, {"filter": "u"}),
    Request("users", 3005, {"filter": "8"}),
    Request("users", 3005, {"filter": "nobody"}),
    _user(3002, "u1", username="u1", userStatus="disable"),
    _user(3004, "u1"),
    _user(3002, "u1", username="u1", password="another", userType="Super"),
    _user(3004, "u1"),
    _user(3002, "u1", username="u2", password="a third"),
    _user(3002, "u1", userStatus="", userType="", password=""),
    _user(3004, "u1"),
    _user(3004, "u2"),
    _user(3002, "nobody", password=SECRET),
    _user(3002, None, password=SECRET),
    _user(3003, "nobody"),
    _user(3003, None),
    _user(3003, "u8"),
    _user(3004, "u8"),
    # ---- lists
    _user(3001, "listed", password=SECRET),
    _user(3001, "too", password=SECRET),
    _list(3009, LISTED),
    _list(3006, LISTED, policy(entry("Topic:A", "Pub"))),
    _list(3009, LISTED),
    _list(3006, LISTED, policy(_deny("Topic:A", "Sub", "Pub", ips=["10.0.0.0/8", "127.0.0.1"]))),
    _list(3009, LISTED),
    _list(
        3006,
        LISTED,
        policy(
            entry("Topic:B*", "all"),
            entry("Group:*", "SUB"),
            entry("*", "get"),
            entry(f"Cluster:{CLUSTER}", "List"),
            kind="DEFAULT",
        ),
    ),
    _list(3007, LISTED, policy(entry("Topic:C", "Create", "Update", "Delete"), kind=None)),
    _list(3007, LISTED, policy(entry("Topic:D", "Pub"), kind="default")),
    _list(3009, LISTED),
    _list(3006, "User:nobody", policy(entry("Topic:A", "Pub"))),
    Request(
        "list",
        3006,
        {"subject": LISTED},
        as_json({"subject": "User:too", "policies": [policy(entry("Topic:Z", "Pub"))]}),
    ),
    _list(3009, "User:too"),
    _list(3006, LISTED, policy()),
    _entry_of(actions=["Any"]),
    _entry_of(resource=None),
    _entry_of(resource="A"),
    _entry_of(resource="Bogus:A"),
    _entry_of(decision=None),
    _entry_of(decision="Bogus"),
    _entry_of(sourceIps=["bogus"]),
    _entry_of(sourceIps=[""]),
    _entry_of(sourceIps=["192.168.*.*"]),
    _entry_of(resource="Topic:L", decision="ALLOW"),
    _entry_of(resource="Topic:L", decision="deny"),
    _entry_of(resource="topic:lower"),
    _entry_of(resource="TOPIC:upper"),
    _entry_of(resource="Topic:"),
    _entry_of(resource="Topic:a*b"),
    _entry_of(resource="Topic:x*y*"),
    _entry_of(resource="Topic:I", sourceIps=["192.168.1.1", "::1", "fe80::/10", "10.1.2.3/24"]),
    _list(3009, LISTED),
    _list(3010, None),
    *(
        Request("lists", 3010, {"subjectFilter": text})
        for text in ("too", "User:too", "User:", "nobody")
    ),
    *(
        Request("lists", 3010, {"resourceFilter": text})
        for text in ("Topic:B", "Group", "C", "nothing")
    ),
    Request("lists", 3010, {"subjectFilter": "too", "resourceFilter": "Topic:Z"}),
    *(_list(3009, subject) for subject in ("User:nobody", "listed", None)),
    _list(3008, LISTED, resource="Topic:A"),
    _list(3008, LISTED, resource="Topic:B*", policyType="Default"),
    _list(3008, LISTED, resource="Topic:Another"),
    _list(3009, LISTED),
    _list(3008, LISTED),
    _list(3008, "User:nobody"),
    _list(3008, None),
    _list(3008, "User:too", resource="Topic:Z"),
    _list(3009, "User:too"),
    _list(3007, LISTED, policy(entry("Topic:A", "Pub"))),
    _list(3009, LISTED),
    _user(3003, "listed"),
    _list(3009, LISTED),
    _user(3001, "listed", password=SECRET),
    _list(3009, LISTED),
)

ODD = "User:odd"

ODDITIES = (
    _user(3001, "odd", password=SECRET),
    _list(3006, ODD, policy(entry("Topic:A", "Pub"))),
    _user(3001, "odd1", password=SECRET, userType="bogus"),
    _user(3001, "odd2", password=SECRET, userStatus="bogus"),
    _user(3001, "odd3"),
    Request("user", 3001, {"username": "odd4"}, b"{bad"),
    _user(3002, "odd", userType="bogus"),
    _user(3002, "odd", userStatus="bogus"),
    _user(3002, "odd"),
    _list(3006, "odd", policy(entry("Topic:A", "Sub"))),
    _list(3006, "Role:odd", policy(entry("Topic:A", "Sub"))),
    _list(3006, None, policy(entry("Topic:A", "Sub"))),
    _list(3006, ODD),
    Request("list", 3006, {"subject": ODD}, as_json({"policies": []})),
    _list(3006, ODD, policy({"resource": "Topic:B", "decision": "Allow"})),
    _list(3006, ODD, policy(entry("Topic:B", "Bogus"))),
    _list(3006, ODD, policy(entry("Topic:B", "Pub", "Bogus"))),
    _list(3006, ODD, policy({**entry("Topic:B"), "actions": "Pub,Sub"})),
    _list(3006, ODD, policy(entry("Topic:B", "Pub"), kind="bogus")),
    _list(3008, ODD, resource="bogus"),
)
"""Requests with unknown or missing values; the first two create the user and list that the others
change."""
