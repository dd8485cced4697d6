"""RocketMQ 5's attributes of a topic: ``+name=value`` sets an attribute, ``-name`` drops it.

Only attributes are taken that ask for nothing this broker does otherwise; it must not promise what
it does not do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmq_spark.wire.codes import ResponseCode
from rocketpoll.broker.processor.request import RequestRejected

SUPPORTED: Final[Mapping[str, frozenset[str]]] = {
    "message.type": frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"}),
    "queue.type": frozenset({"SimpleCQ"}),
    "cleanup.policy": frozenset({"DELETE"}),
}
"""The attributes with their possible values. A message's type is for clients to heed."""


def changed_attributes(known: Mapping[str, str] | None, changes: str) -> Mapping[str, str] | None:
    """Return the attributes after changes separated by commas, or None if none are left."""
    attributes = dict(known or {})
    for change in filter(None, (piece.strip() for piece in changes.split(","))):
        name, equals, value = change[1:].partition("=")
        if change[0] == "+" and equals:
            _check(name, value)
            attributes[name] = value
        elif change[0] == "-" and not equals:
            attributes.pop(name, None)
        else:
            raise _rejected(f"an attribute is changed by +name=value or -name, not by {change[:80]!r}")
    return attributes or None


def _check(name: str, value: str) -> None:
    values = SUPPORTED.get(name)
    if values is None:
        raise _rejected(
            f"the attribute {name[:80]!r} is not supported; there are {', '.join(sorted(SUPPORTED))}"
        )
    if value not in values:
        raise _rejected(f"the attribute {name} can be {', '.join(sorted(values))}, not {value[:80]!r}")


def _rejected(remark: str) -> RequestRejected:
    return RequestRejected(ResponseCode.SYSTEM_ERROR, remark)
