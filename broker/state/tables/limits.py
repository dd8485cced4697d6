"""TooMany: the error when a table has reached the limit that a setting gives.

What a broker creates for itself, as a group's retry topic, is never refused: there are as many as
groups.
"""

from __future__ import annotations

from rmq_spark.errors import RocketPollError


class TooMany(RocketPollError, ValueError, page="troubleshooting.md#refused-by-a-broker"):
    """A limit is reached: nothing more is created, and what exists goes on as before."""


def int32_fault(what: str, value: int | None) -> str | None:
    """Return why a number does not fit where a broker in Java has an int.

    Such a broker may open the tables.
    """
    if value is None or -(1 << 31) <= value < 1 << 31:
        return None
    return f"{what} must be an integer of 32 bits, not {value}"


def check_limit(what: str, count: int, limit: int, setting: str = "", *, more: int = 1) -> None:
    """Check that more may be made, by a setting or by a fixed limit.

    Raises:
        TooMany: The limit is reached.
    """
    if more > 0 and count + more > limit:
        why = f" ({setting}={limit})" if setting else ""
        raise TooMany(f"there are {count} {what} already, and no more are made{why}")
