"""Arguments: checks of the values that callers give, and the errors that explain what is wrong.

A value of the wrong type is refused by the call that it was given to, and not where it would be
used, in another thread perhaps, or by a broker. This module knows no client.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rmq_spark.client.errors import MessageRejected
from rmq_spark.errors import excerpt
from rmq_spark.wire.message_queue import MessageQueue

LIKELY_SECONDS: Final = range(100_000_000, 100_000_000_000)
"""As milliseconds all in the first years after 1970, as seconds from 1973 on. Less is the very beginning."""

_QUEUE_EXAMPLE: Final = 'MessageQueue("orders", "broker-a", 0)'
_NUMBER: Final = (int,)
_TIME: Final = (int, float)


def wrong_kind(name: str, needed: str, found: str, example: str) -> TypeError:
    """Return the error to raise for a value of the wrong type."""
    return TypeError(f"{name}: needed {needed}, found {found}; for example: {example}")


def check_kind(name: str, found: object, kinds: type | tuple[type, ...], needed: str, example: str) -> None:
    """Raise an error if a value has none of these types.

    Raises:
        TypeError: The message says what was needed and what was found, and shows an example.
    """
    if not isinstance(found, kinds):
        raise wrong_kind(name, needed, f"{type(found).__name__} {excerpt(found)}", example)


def check_text(name: str, found: object, example: str) -> None:
    """Raise an error if a value is not a str.

    Raises:
        TypeError: The message says what was found, and shows an example.
    """
    check_kind(name, found, str, "a text (str)", repr(example))


def check_number(name: str, found: object, example: int) -> None:
    """Raise an error if a value is not an int; True and False are not.

    Raises:
        TypeError: The message says what was found, and shows an example.
    """
    _check_number(name, found, _NUMBER, "a whole number (int)", example)


def check_range(name: str, found: int, least: int = 1, most: int | None = None) -> None:
    """Raise an error if a value is not an int within limits.

    Raises:
        MessageRejected: The value is outside of the limits.
        TypeError: The value is not an int.
    """
    check_number(name, found, max(least, 1))
    if found < least or (most is not None and found > most):
        needed = f"{least} or more" if most is None else f"{least} to {most}"
        raise MessageRejected(name, needed, found)


def check_time_ms(name: str, found: object) -> None:
    """Raise an error if a value is not a number of milliseconds.

    Raises:
        TypeError: The message says what was found, and shows an example.
    """
    _check_number(name, found, _TIME, "a number of milliseconds", 3_000)


def check_timestamp_ms(name: str, found: int) -> int:
    """Return a time, if it is one in milliseconds since 1970.

    Raises:
        MessageRejected: It is before 1970, or must be seconds.
        TypeError: It is no whole number.
    """
    check_number(name, found, 1_750_000_000_000)
    if found < 0 or found in LIKELY_SECONDS:
        needed = "milliseconds since 1970"
        hint = f": if these are seconds, write {found * 1000}" if found > 0 else ""
        raise MessageRejected(name, needed + hint, found)
    return found


def _check_number(name: str, found: object, kinds: tuple[type, ...], needed: str, example: int) -> None:
    check_kind(name, found, kinds, needed, str(example))
    if isinstance(found, bool):
        raise wrong_kind(name, needed, repr(found), str(example))


def check_queue(name: str, found: object) -> None:
    """Raise an error if a value is not a `MessageQueue`.

    Raises:
        TypeError: The message says what was found, and shows an example.
    """
    check_kind(name, found, MessageQueue, "a MessageQueue", _QUEUE_EXAMPLE)


def checked_queues(name: str, found: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
    """Return several queues as a set; refuse one alone, or names instead of queues.

    Raises:
        TypeError: The message says what was found, and shows an example.
    """
    example = f"[{_QUEUE_EXAMPLE}]"
    if isinstance(found, str):
        raise wrong_kind(name, "several queues", f"str {excerpt(found)}", example)
    check_kind(name, found, Iterable, "several queues", example)
    queues = tuple(found)
    for queue in queues:
        check_kind(f"one of {name}", queue, MessageQueue, "a MessageQueue", _QUEUE_EXAMPLE)
    return frozenset(queues)
