"""EmbeddedBrokerError and the errors of wrong arguments, for embedded brokers and their faults."""

from __future__ import annotations

from rmq_spark.errors import RocketPollError, excerpt


class EmbeddedBrokerError(RocketPollError, page="troubleshooting.md#brokers-in-tests"):
    """An embedded broker does not run, cannot be started, or belongs to another process."""

    __module__ = "rocketpoll"  # from which programs import it


def type_error(name: str, needed: str, found: object, example: str) -> TypeError:
    """Return the error for an argument of an unexpected type."""
    kind = f"{type(found).__name__} {excerpt(found)}"
    return TypeError(f"{name}: needed {needed}, found {kind}; for example: {example}")
