"""Observer: lets a process watch its clients' sends, polls and listener calls.

    producers ──▶ observe_send ──────┐
    listeners ──▶ observe_listener ──┼──▶ the observer, if there is one
    polls ──────▶ observe_poll ──────┘             one by one: observe_message

Without an observer each call costs one comparison. An observer cannot change what is sent or
consumed, except through the messages that a `SendObservation` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from enum import Enum
from typing import Protocol, TypeVar

from rmq_spark.client.message import Message, MessageExt
from rmq_spark.client.results import SendResult

_Context = TypeVar("_Context")
_Status = TypeVar("_Status", bound=Enum)


class SendObservation(Protocol):
    """One call that sends; it ends with its with statement, or when its future is done."""

    messages: Sequence[Message]
    """The messages to send instead of the given ones."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, /, *_: object) -> None: ...

    def on_results(self, results: Sequence[SendResult], /) -> None:
        """Record the results of the send."""

    def end_with_future(self, future: Future[SendResult], /) -> None:
        """End the observation when a future is done, instead of with the with statement."""


class ListenerObservation(Protocol):
    """One call of a listener, which lasts as long as its with statement."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, /, *_: object) -> None: ...

    def on_failure(self, reason: str, /) -> None:
        """Record that the listener has returned a failure, without an exception."""


class ClientObserver(Protocol):
    """Observes the clients of a process. Any thread may call it, and it raises nothing."""

    def on_send(self, messages: Sequence[Message], /) -> SendObservation | None:
        """Return the observation of a call that sends these; None if it is not observed."""

    def on_process(
        self, group: str, messages: Sequence[MessageExt], /
    ) -> ListenerObservation | None:
        """Return the observation of a listener's call; None if it is not observed."""

    def on_poll(self, group: str, messages: Sequence[MessageExt], /) -> None:
        """Record that a poll of a group's consumer returns these messages."""


_observer: ClientObserver | None = None


def set_observer(observer: ClientObserver | None) -> None:
    """Set the observer of all clients of the process; None removes it."""
    global _observer  # noqa: PLW0603  # one observer for the process
    _observer = observer


def observe_send(messages: Sequence[Message]) -> SendObservation | None:
    """Return the observation of a call that sends messages; None without an observer."""
    return None if _observer is None else _observer.on_send(messages)


def observe_poll(group: str, messages: Sequence[MessageExt]) -> list[MessageExt]:
    """Call the observer with the messages of a poll, and return them in a new list."""
    if _observer is not None:
        _observer.on_poll(group, messages)
    return list(messages)


def observe_message(group: str, message: MessageExt) -> None:
    """Call the observer with a message that a group's consumer hands out."""
    if _observer is not None:
        _observer.on_poll(group, (message,))


def observe_listener(
    group: str,
    listener: Callable[[list[MessageExt], _Context], _Status | None],
    success: _Status,
) -> Callable[[list[MessageExt], _Context], _Status | None]:
    """Return a listener that calls the given one, under the observer if there is one."""

    def listen(messages: list[MessageExt], context: _Context) -> _Status | None:
        processing = None if _observer is None else _observer.on_process(group, messages)
        if processing is None:
            return listener(messages, context)
        with processing:
            status = listener(messages, context)
            if status is not None and status is not success:
                is_status = type(status) is type(success)
                processing.on_failure(status.name if is_status else type(status).__qualname__)
        return status

    return listen
