"""EmbeddedBrokerError, of what an embedded broker cannot do; and what a wrong argument is told by.

Whatever the owner calls, its life or its faults, raises them. This module knows neither.
"""

from __future__ import annotations

from rmq_spark.errors import RocketPollError, excerpt


class EmbeddedBrokerError(RocketPollError, page="troubleshooting.md#brokers-in-tests"):
    """An embedded broker does not run, cannot be started, or belongs to another process."""


def type_error(name: str, needed: str, found: object, example: str) -> TypeError:
    """Return the error of an argument that is of none of the types that are needed."""
    kind = f"{type(found).__name__} {excerpt(found)}"
    return TypeError(f"{name}: needed {needed}, found {kind}; for example: {example}")
