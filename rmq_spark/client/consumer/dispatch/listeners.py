"""Listeners of a push consumer: their statuses, their contexts, and how they are called.

A listener succeeds if it returns None or its SUCCESS. Any other value or exception means that the
messages were not processed: a result that cannot be understood must never count as success.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import CoroutineType, GeneratorType
from typing import Final, TypeVar

from rmq_spark.client.arguments import wrong_kind
from rmq_spark.client.message import MessageExt
from rmq_spark.errors import escape_surrogates, excerpt, format_count
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)

FAILURE_LOG_SECONDS: Final = 60.0
"""Seconds between two lines about failures of one kind."""

_FAILURE_KINDS_MAX: Final = 64
_SHOWN_CHARACTERS: Final = 200


class ConsumeConcurrentlyStatus(Enum):
    """Return value of a concurrent listener; None stands for CONSUME_SUCCESS.

    Attributes:
        CONSUME_SUCCESS: The messages were processed.
        RECONSUME_LATER: They were not, and are redelivered later.
    """

    CONSUME_SUCCESS = 0
    RECONSUME_LATER = 1


class ConsumeOrderlyStatus(Enum):
    """Return value of an orderly listener; None stands for SUCCESS.

    Attributes:
        SUCCESS: The messages were processed.
        SUSPEND_CURRENT_QUEUE_A_MOMENT: They were not, and are retried in a moment.
    """

    SUCCESS = 0
    SUSPEND_CURRENT_QUEUE_A_MOMENT = 1


@dataclass(slots=True)
class ConsumeConcurrentlyContext:
    """Passed to a concurrent listener, which may set its fields.

    Attributes:
        queue: The queue of the messages.
        delay_level_when_next_consume: Delay of messages that failed. 0, the default, leaves it to
            the broker, which delays longer each time; -1 makes dead letters of them at once; other
            numbers are delay levels.
        ack_index: Index of the last message that succeeded, from 0, if not all did; -1 if none did.
            None, the default, stands for all.
    """

    queue: MessageQueue
    delay_level_when_next_consume: int = 0
    ack_index: int | None = None


@dataclass(slots=True)
class ConsumeOrderlyContext:
    """Passed to an orderly listener, which may set its fields.

    Attributes:
        queue: The queue of the messages.
        suspend_current_queue_time_ms: Milliseconds before messages that failed are tried again, at
            least 10. None, the default, or a negative number, stands for the consumer's setting.
    """

    queue: MessageQueue
    suspend_current_queue_time_ms: int | None = None


MessageListenerConcurrently = Callable[
    [list[MessageExt], ConsumeConcurrentlyContext], ConsumeConcurrentlyStatus | None
]
"""A concurrent listener; None, or CONSUME_SUCCESS, says that the messages were processed."""

MessageListenerOrderly = Callable[
    [list[MessageExt], ConsumeOrderlyContext], ConsumeOrderlyStatus | None
]
"""An orderly listener; None, or SUCCESS, says that the messages were processed."""

_Context = TypeVar("_Context", ConsumeConcurrentlyContext, ConsumeOrderlyContext)
_Status = TypeVar("_Status", ConsumeConcurrentlyStatus, ConsumeOrderlyStatus)

_EXAMPLE = "def listen({}): ..."


_COROUTINE_FUNCTION = "a coroutine function (async def)"


def check_listener(
    name: str, listener: object, *parameters: str, allows_coroutine: bool = False
) -> None:
    """Raise an error if a listener does not accept these parameters, or its body would not run.

    With ``allows_coroutine``, it may be a coroutine function.
    """
    example = _EXAMPLE.format(", ".join(parameters))
    if not callable(listener):
        found = excerpt(listener)
    elif (kind := _unsupported_function_kind(listener)) is not None and not (
        allows_coroutine and kind == _COROUTINE_FUNCTION
    ):
        found = f"{kind}, whose body does not run when it is called"
    elif not _accepts_arguments(listener, len(parameters)):
        found = f"one that takes {inspect.signature(listener)}"
    else:
        return
    raise wrong_kind(name, f"a function of ({', '.join(parameters)})", found, example)


def _unsupported_function_kind(listener: Callable[..., object]) -> str | None:
    for function in (listener, getattr(listener, "__call__", None)):  # noqa: B004  # __call__ may be async
        if inspect.iscoroutinefunction(function):
            return _COROUTINE_FUNCTION
        if inspect.isasyncgenfunction(function):
            return "an asynchronous generator function"
        if inspect.isgeneratorfunction(function):
            return "a generator function (yield)"
    return None


def _accepts_arguments(listener: Callable[..., object], count: int) -> bool:
    try:
        inspect.signature(listener).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # some functions written in C have no known signature
        return True
    return True


class ListenerFailureLog:
    """The log of one listener's failures: each kind once with its traceback, then once a minute.

    A message that always fails is retried for hours, and a listener without its database fails
    all messages. So further failures of a kind are counted, and a line a minute says how many there
    were. A kind is an exception's class and the line that raised it. Each failure is also logged at
    level DEBUG.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._kinds: dict[Hashable, tuple[float, int]] = {}
        """When each kind was logged last, and how many have followed; the earliest time first."""

    def record_exception(self, error: BaseException, messages: Sequence[MessageExt]) -> None:
        """Log that a listener raised."""
        name = type(error).__qualname__
        kind = (name, *_raised_at(error))
        text = f"the listener failed on {_describe(messages)}"
        try:
            short = f"{text}: {name}: {escape_surrogates(str(error))[:_SHOWN_CHARACTERS]}"
        except BaseException:  # noqa: BLE001  # raised by the error's own __str__
            short = f"{text}: {name}"
        self._record(kind, text, short, error)

    def record_result(self, kind: Hashable, text: str) -> None:
        """Log that a listener returned a wrong value."""
        self._record(kind, text, text, None)

    def _record(self, kind: Hashable, text: str, short: str, error: BaseException | None) -> None:
        now = self._now()
        with self._lock:
            logged_at, count = self._kinds.get(kind, (None, 0))
            if logged_at is not None and now - logged_at < FAILURE_LOG_SECONDS:
                self._kinds[kind] = logged_at, count + 1
                level, more = logging.DEBUG, ""
            else:
                self._kinds.pop(kind, None)
                self._kinds[kind] = now, 0
                if len(self._kinds) > _FAILURE_KINDS_MAX:
                    del self._kinds[next(iter(self._kinds))]
                level, more = logging.ERROR, f" ({count:,} more like this before)" if count else ""
        if logged_at is None and error is not None:
            _log.error("%s", text, exc_info=error)
        else:
            _log.log(level, "%s%s", short, more)


def _raised_at(error: BaseException) -> tuple[str, int]:
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return ("", 0) if at is None else (at.tb_frame.f_code.co_filename, at.tb_lineno)


def call_listener(
    listener: Callable[[list[MessageExt], _Context], _Status | None],
    messages: Sequence[MessageExt],
    context: _Context,
    success: _Status,
    failures: ListenerFailureLog,
) -> _Status | None:
    """Call a listener and return its status; None if it raised, or returned a wrong value."""
    try:
        status: object = listener(list(messages), context)  # a list that the listener may change
        return _parse_status(status, messages, success, failures)  # may run code of the status
    except BaseException as error:  # noqa: BLE001  # sys.exit and CancelledError, too: the thread serves others as well
        failures.record_exception(error, messages)
        return None


def _parse_status(
    returned: object, messages: Sequence[MessageExt], success: _Status, failures: ListenerFailureLog
) -> _Status | None:
    if returned is None:
        return success
    if isinstance(returned, type(success)):
        return returned
    if isinstance(returned, (CoroutineType, GeneratorType)):
        returned.close()  # nobody would run it
    name = type(returned).__name__
    failures.record_result(
        name,
        f"the listener returned {excerpt(returned)} ({name}) for {_describe(messages)}: needed "
        f"None or a {type(success).__name__}, so it counts as a failure",
    )
    return None


def clamp_listener_value(name: str, found: object, default: int, minimum: int, maximum: int) -> int:
    """Return a number that a listener has set, clamped to limits; log any other value."""
    try:
        if isinstance(found, int) and not isinstance(found, bool):
            return int(max(minimum, min(found, maximum)))
        text = "the listener set %s to %s: needed a number of %d or more"
        _log.error(text, name, excerpt(found), minimum)
    except BaseException:  # noqa: BLE001  # as above: such a value may do anything when it is shown
        _log.exception("the listener set %s to a value that is not a number", name)
    return default


def restore_properties(
    messages: Sequence[MessageExt], properties: Sequence[Mapping[str, str]]
) -> list[MessageExt]:
    """Return messages with the properties that they had before a listener got them.

    A listener may change its messages' properties, even to values that no broker accepts.
    """
    return [
        replace(message, properties=before)
        for message, before in zip(messages, properties, strict=True)
    ]


def _describe(messages: Sequence[MessageExt]) -> str:
    first = messages[0]
    position = f"{first.queue} from offset {first.queue_offset} on"
    return f"{format_count(len(messages), 'message')} of {position}"
