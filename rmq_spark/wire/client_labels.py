"""Client labels: a client in RocketMQ 5's metrics: language, version, protocol, consume mode.

Version numbers in headers count all possible releases and snapshots, ten of each, starting at
4.0.0:

    212 V4_0_0_SNAPSHOT   213 V4_0_0   214 V4_0_1_SNAPSHOT ... 409 V4_9_8 ... 513 V5_5_0
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmq_spark.wire.bodies.clients import ConsumeType

CLIENT_LABELS: Final = ("language", "version", "protocol_type")
"""Names of the labels whose values `client_labels` returns."""

_V4_0_0_SNAPSHOT: Final = 212
_OLDER: Final = "V3"
_PROTOCOL: Final = "remoting"
_MODES: Final[Mapping[ConsumeType | None, str]] = {
    ConsumeType.CONSUME_ACTIVELY: "pull",
    ConsumeType.CONSUME_PASSIVELY: "push",
    ConsumeType.CONSUME_POP: "pop",
}


def version_desc(version: int) -> str:
    """Return RocketMQ's name for the number of a release, such as V4_9_8 for 409.

    All releases before 4.0.0, for which there is no rule, are V3.
    """
    if version < _V4_0_0_SNAPSHOT:
        return _OLDER
    releases, is_final = divmod(version - _V4_0_0_SNAPSHOT, 2)
    name = f"V{4 + releases // 100}_{releases // 10 % 10}_{releases % 10}"
    return name if is_final else f"{name}_SNAPSHOT"


def client_labels(language: str, version: int) -> tuple[str, str, str]:
    """Return the values of `CLIENT_LABELS` for a client, from its headers."""
    return language.lower(), version_desc(version).lower(), _PROTOCOL


def consume_mode(consume_type: ConsumeType | None) -> str:
    """Return the value of the label ``consume_mode``; empty if unknown."""
    return _MODES.get(consume_type, "")
