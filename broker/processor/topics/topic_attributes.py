"""Topic attributes of RocketMQ 5: ``+name=value`` sets an attribute, ``-name`` removes it.

Attributes that ask for something this broker does not do are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmq_spark.wire.codes import ResponseCode

from ..request import RequestRejected

SUPPORTED: Final[Mapping[str, frozenset[str]]] = {
    "message.type": frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"}),
    "queue.type": frozenset({"SimpleCQ"}),
    "cleanup.policy": frozenset({"DELETE"}),
}
"""The attributes with their possible values. A message's type is for clients to heed."""


def changed_attributes(known: Mapping[str, str] | None, changes: str) -> Mapping[str, str] | None:
    """Return the attributes after changes, which are separated by commas.

    None if there are none.
    """
    signed = {}
    for change in filter(None, (piece.strip() for piece in changes.split(","))):
        name, equals, value = change.partition("=")
        if (change[0] == "+") != bool(equals):
            raise _malformed(change)
        signed[name] = value
    return with_changes(known, signed)


def with_changes(
    known: Mapping[str, str] | None, changes: Mapping[str, str] | None
) -> Mapping[str, str] | None:
    """Return the attributes after changes in the form of request bodies.

    ``+name`` has a value, ``-name`` has none.

    Raises:
        RequestRejected: A change has another form, or an attribute is not supported with that
            value.
    """
    attributes = dict(known or {})
    for signed, value in (changes or {}).items():
        sign, name = signed[:1], signed[1:]
        if sign == "+" and value:
            _check(name, value)
            attributes[name] = value
        elif sign == "-" and not value:
            attributes.pop(name, None)
        else:
            raise _malformed(f"{signed}={value}")
    return attributes or None


def _check(name: str, value: str) -> None:
    values = SUPPORTED.get(name)
    if values is None:
        raise _rejected(
            f"the attribute {name[:80]!r} is not supported; there are "
            f"{', '.join(sorted(SUPPORTED))}"
        )
    if value not in values:
        raise _rejected(
            f"the attribute {name} can be {', '.join(sorted(values))}, not {value[:80]!r}"
        )


def _malformed(change: str) -> RequestRejected:
    return _rejected(f"an attribute is changed by +name=value or -name, not by {change[:80]!r}")


def _rejected(remark: str) -> RequestRejected:
    return RequestRejected(ResponseCode.SYSTEM_ERROR, remark)
