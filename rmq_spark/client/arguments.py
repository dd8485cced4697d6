"""Arguments: check the values that callers pass, and explain what is wrong with them.

The call that received a wrong value raises the error. Otherwise it would appear where the value is
used, perhaps in another thread or at a broker.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache, wraps
from typing import Any, Final, ParamSpec, TypeVar, cast

from rmq_spark.client.errors import MessageRejected
from rmq_spark.errors import Verbatim, WireError, excerpt, nearest_name, sanitize
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import (
    DLQ_PREFIX,
    GROUP_CHARACTERS_MAX,
    NOT_ALLOWED_SEND_TOPICS,
    RETRY_PREFIX,
    group_fault,
    retry_topic,
    topic_characters_max,
    topic_fault,
)
from rmq_spark.wire.remoting.java_numbers import INT32_MAX, INT64_MAX

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Class = TypeVar("_Class")

LIKELY_SECONDS: Final = range(100_000_000, 100_000_000_000)
"""Numbers that are more likely seconds than milliseconds: as milliseconds, they lie before 1973."""

TIMESTAMP_MAX: Final = INT64_MAX

MILLISECONDS_MAX: Final = (1 << 31) - 1
"""Most milliseconds of a timeout, 24 days, which locks and sockets of all systems support."""

_QUEUE_EXAMPLE: Final = 'MessageQueue("orders", "broker-a", 0)'


def wrong_kind(name: str, needed: str, found: str, example: str) -> TypeError:
    """Return the error to raise for a value of the wrong type."""
    return TypeError(f"{name}: needed {needed}, found {found}; for example: {example}")


def check_kind(
    name: str, found: object, kinds: type | tuple[type, ...], needed: str, example: str
) -> None:
    """Raise an error if a value has none of these types."""
    if not isinstance(found, kinds):
        raise wrong_kind(name, needed, f"{type(found).__name__} {excerpt(found)}", example)


def check_text(name: str, found: object, example: str) -> str:
    """Return a text as a plain str, if it is one.

    A str enum is a str, but formats as its name or as its value, depending on Python's release: a
    path or a name made from it would change with an upgrade.
    """
    check_kind(name, found, str, "a string (str)", repr(example))
    return str.__str__(found)


def check_utf8(name: str, found: str) -> None:
    """Raise an error if a text cannot be encoded in UTF-8, such as half of a surrogate pair."""
    try:
        found.encode()
    except UnicodeEncodeError as error:
        raise MessageRejected(name, "text that UTF-8 can encode", ascii(found)) from error


def check_secret(name: str, found: object, example: str) -> None:
    """Raise an error, which does not show the value, if it is not a text that UTF-8 can encode."""
    if not isinstance(found, str):
        raise wrong_kind(name, "a string (str)", type(found).__name__, repr(example))
    try:
        found.encode()
    except UnicodeEncodeError:
        raise MessageRejected(
            name, "text that UTF-8 can encode", Verbatim("a lone surrogate")
        ) from None


def check_name(name: str, found: object, example: str) -> str | None:
    """Return a text as a plain str, if UTF-8 can encode it; None is returned as it is."""
    if found is None:
        return None
    check_kind(name, found, str, "a string (str) or None", repr(example))
    text = str.__str__(found)
    check_utf8(name, text)
    return text


def check_flag(name: str, found: object) -> None:
    """Raise an error if a value is not True or False; no text or number is accepted instead."""
    if type(found) is not bool:
        raise wrong_kind(name, "True or False", f"{type(found).__name__} {excerpt(found)}", "True")


def check_number(
    name: str,
    found: object,
    example: int,
    kinds: tuple[type, ...] = (int,),
    needed: str = "a whole number (int)",
) -> None:
    """Raise an error if a value is not an int; True and False are not."""
    check_kind(name, found, kinds, needed, str(example))
    if isinstance(found, bool):
        raise wrong_kind(name, needed, repr(found), str(example))


def check_range(name: str, found: int, minimum: int = 1, maximum: int | None = None) -> None:
    """Raise an error if a value is not an int within limits."""
    check_number(name, found, max(minimum, 1))
    if found < minimum or (maximum is not None and found > maximum):
        needed = f"{minimum} or more" if maximum is None else f"{minimum} to {maximum}"
        raise MessageRejected(name, needed, found)


def check_time_ms(name: str, found: float) -> None:
    """Raise an error if a value is not a possible timeout in milliseconds; 0 is one."""
    check_number(name, found, 3_000, (int, float), "a number of milliseconds")
    if not 0 <= found <= MILLISECONDS_MAX:  # also refuses nan
        raise MessageRejected(name, f"milliseconds, 0 to {MILLISECONDS_MAX}", found)


def check_period_ms(name: str, found: int, minimum: int = 1) -> None:
    """Raise an error if a value is not a possible period in whole milliseconds."""
    check_range(name, found, minimum)
    if found > MILLISECONDS_MAX:
        raise MessageRejected(name, f"milliseconds, at most {MILLISECONDS_MAX}", found)


def check_timestamp_ms(name: str, found: int) -> int:
    """Return a time, if it can be in milliseconds since 1970.

    Raises:
        MessageRejected: It is before 1970, is in seconds, or is later than RocketMQ can express.
        TypeError: It is not an int.
    """
    check_number(name, found, 1_750_000_000_000)
    found = int(found)  # `in range` would compare an int subclass with each number
    if found < 0 or found in LIKELY_SECONDS:
        needed = "milliseconds since 1970"
        hint = f": if these are seconds, write {found * 1000}" if found > 0 else ""
        raise MessageRejected(name, needed + hint, found)
    if found > TIMESTAMP_MAX:
        raise MessageRejected(name, f"milliseconds since 1970, at most {TIMESTAMP_MAX}", found)
    return found


def check_offset(name: str, found: int) -> None:
    """Raise an error if a value is not an offset that a queue may have."""
    check_range(name, found, 0, INT64_MAX)


def check_queue(name: str, found: MessageQueue) -> None:
    """Raise an error if a value is not a `MessageQueue` of two texts and a number."""
    check_kind(name, found, MessageQueue, "a MessageQueue", _QUEUE_EXAMPLE)
    for field, text in (("topic", found.topic), ("broker_name", found.broker_name)):
        check_text(f"{field} of {name}", text, "broker-a" if field == "broker_name" else "orders")
        check_utf8(f"{field} of {name}", text)
    check_number(f"queue_id of {name}", found.queue_id, 0)
    # the common case first: every send to a queue gets here
    if not 0 <= found.queue_id <= INT32_MAX:
        check_range(f"queue_id of {name}", found.queue_id, 0, INT32_MAX)


def check_queues(found: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
    """Return several queues as a set; refuse one alone, or names instead of queues."""
    example = f"[{_QUEUE_EXAMPLE}]"
    if isinstance(found, str):
        raise wrong_kind("queues", "several queues", f"str {excerpt(found)}", example)
    check_kind("queues", found, Iterable, "several queues", example)
    queues = tuple(found)
    for queue in queues:
        check_queue("one of queues", queue)
    return frozenset(queues)


def message_rejected(error: WireError) -> MessageRejected:
    """Return the error to raise for a value that no request can hold."""
    return MessageRejected(str(error.at), error.needed, Verbatim(error.found))


# ---- Names of topics and groups, checked by RocketMQ's rules (`wire.names`) before they are sent.

CLIENT_ID_BYTES_MAX: Final = 255
"""Most bytes of a client id, because it names a directory; brokers accept longer ones."""

_SHOWN_CHARACTERS_MAX: Final = 60
_ADDRESS: Final = re.compile(r":[0-9]{1,5}\Z")
_ILLEGAL_CHARACTERS: Final = re.compile(r"[^%|a-zA-Z0-9_-]+")


def check_topic(topic: str, what: str = "topic") -> str:
    """Return the topic, if its name is valid; ``what`` is the argument that errors name."""
    topic = check_text(what, topic, "orders")
    if topic_fault(topic) is not None:
        raise _invalid_name(what, topic, topic_characters_max(topic))
    return topic


@lru_cache(maxsize=256)  # successive messages mostly have the same topic
def check_send_topic(topic: str) -> str:
    """Return the topic, if clients may send to it."""
    if topic in NOT_ALLOWED_SEND_TOPICS:
        raise MessageRejected("topic", "a topic that the broker does not reserve", topic)
    return check_topic(topic)


def check_group(group: str, what: str = "group") -> str:
    """Return the group, if its name is valid; ``what`` is the argument that errors name."""
    group = check_text(what, group, "billing")
    if group_fault(group) is not None:
        raise _invalid_name(what, group, GROUP_CHARACTERS_MAX)
    return group


def explain_missing_topic(topic: str, topics: Iterable[str]) -> str | None:
    """Return a hint about the name of a topic that does not exist, or None."""
    known = frozenset(topics)
    if retry_topic(topic) in known:
        return f"{sanitize(topic)} is a consumer group, not a topic"
    derived = (RETRY_PREFIX, DLQ_PREFIX)
    is_of_group = topic.startswith(derived)
    near = nearest_name(topic, sorted(t for t in known if t.startswith(derived) == is_of_group))
    return None if near is None else f"did you mean {sanitize(near)}?"


def check_client_id(client_id: str) -> str:
    """Return a client id, if brokers accept it and a directory can have its name.

    Offsets in BROADCASTING are kept in a directory of that name.
    """
    client_id = check_text("client_id", client_id, "10.0.0.1@42")
    is_path = "/" in client_id or client_id in {".", ".."}
    if not client_id.strip() or is_path or not client_id.isprintable():
        needed = "a name without / and control characters that is neither . nor .."
        raise MessageRejected("client_id", needed, sanitize(client_id))
    size = len(client_id.encode())
    if size > CLIENT_ID_BYTES_MAX:
        raise MessageRejected(
            "client_id", f"at most {CLIENT_ID_BYTES_MAX} bytes in UTF-8", Verbatim(f"{size} bytes")
        )
    return client_id


def _invalid_name(what: str, name: str, characters_max: int) -> MessageRejected:
    needed = f"letters, digits and % | _ -, 1 to {characters_max} of them"
    found = (
        name
        if len(name) <= _SHOWN_CHARACTERS_MAX
        else f"{name[:_SHOWN_CHARACTERS_MAX]}..., {len(name)} characters"
    )
    if _ADDRESS.search(name.strip()):
        advice = f"It is an address: pass the {what} first, and the address as namesrv"
        return MessageRejected(what, needed, found, advice)
    legal = _ILLEGAL_CHARACTERS.sub("_", name.strip())[:_SHOWN_CHARACTERS_MAX].strip("_")
    example = legal or what
    return MessageRejected(what, needed, found, f"Write for example {example}")


_FIRST_WORD: Final = re.compile(r"^\w+")
_FOREIGN_KEYWORDS: Final = {
    "auto_offset_reset": ("start", 'consume_from_where (or start="earliest" of the consumer)'),
    "bootstrap_servers": ("namesrv",),
    "consume_from_where": ('start="earliest"',),
    "enable_auto_commit": ("settings=LitePullSettings(auto_commit=...)", "auto_commit"),
    "from_first": ('start="earliest"',),
    "group_id": ("group",),
    "name_server": ("namesrv",),
    "name_servers": ("namesrv",),
    "namesrv_addr": ("namesrv",),
    "num_partitions": ("queues",),
    "queue_nums": ("queues",),
    "value_serializer": ("serializer",),
}
"""Names of arguments in clients of Kafka and RocketMQ, and what they are called here."""


def explain_keywords(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorate a function or method: the error for an unknown keyword suggests a known one."""

    @wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except TypeError:
            check_keywords(_shown_name(function, args), function, kwargs)
            raise

    @wraps(function)
    async def call_awaited(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Any:
        return await cast("Awaitable[Any]", call(*args, **kwargs))

    if inspect.iscoroutinefunction(function):  # tools must recognize it as one
        return cast("Callable[_Arguments, _Result]", call_awaited)
    return call


def explain_all_keywords(kind: type[_Class]) -> type[_Class]:
    """Decorate a class: errors for unknown keywords of its public methods suggest a known one."""
    for name, found in list(vars(kind).items()):
        is_public = name == "__init__" or not name.startswith("_")
        if is_public and inspect.isfunction(found) and not inspect.isgeneratorfunction(found):
            setattr(kind, name, explain_keywords(found))
    return kind


def _shown_name(function: Callable[..., object], args: tuple[Any, ...]) -> str:
    """Return a call's name for errors; that of a method begins with the class of its object."""
    name = function.__name__
    if "." not in function.__qualname__ or not args:
        return f"{name}()"
    kind = type(args[0]).__name__
    return kind if name == "__init__" else f"{kind}.{name}()"


def check_keywords(call: str, method: Callable[..., object], keywords: Iterable[str]) -> None:
    """Raise an error if a method has no parameter of one of these names."""
    parameters = inspect.signature(method).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    for name in keywords:
        if name not in parameters:
            known = (
                each
                for each in _FOREIGN_KEYWORDS.get(name, ())
                if _FIRST_WORD.findall(each)[0] in parameters
            )
            nearest = next(known, None) or nearest_name(name, parameters)
            hint = "" if nearest is None else f": did you mean {nearest}?"
            raise TypeError(f"{call} got an unexpected keyword argument {name!r}{hint}") from None
