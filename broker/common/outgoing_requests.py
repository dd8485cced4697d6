"""OutgoingRequests: the broker's requests to one client that wait for their responses.

A request ends with its response, with its timeout, or when the client disconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from rmq_spark.wire.remoting.command import RemotingCommand

ReplyCallback: TypeAlias = Callable[["RemotingCommand | None"], None]
"""Called with the response, or with None if there is none."""


class OutgoingRequests:
    """The pending requests to one client; the caller sends them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._opaque = 0
        self._callbacks: dict[int, tuple[ReplyCallback, asyncio.TimerHandle]] = {}

    def register(
        self, command: RemotingCommand, timeout_ms: int, callback: ReplyCallback
    ) -> RemotingCommand:
        """Register a command and return it with its opaque; ``callback`` gets the response."""
        self._opaque = opaque = (self._opaque + 1) & 0x7FFFFFFF
        timer = self._loop.call_later(timeout_ms / 1000, self._expire, opaque)
        self._callbacks[opaque] = (callback, timer)
        return command._replace(opaque=opaque)

    def discard(self, command: RemotingCommand) -> None:
        """Discard a request that could not be sent."""
        _, timer = self._callbacks.pop(command.opaque)
        timer.cancel()

    def complete(self, command: RemotingCommand) -> None:
        """Pass a response to its callback; ignore it if it is late or matches no request."""
        waiting = self._callbacks.pop(command.opaque, None)
        if waiting is not None:
            callback, timer = waiting
            timer.cancel()
            callback(command)

    def cancel_all(self) -> None:
        """Notify all callbacks, in a later turn of the loop, that there is no response."""
        waiting, self._callbacks = self._callbacks, {}
        for callback, timer in waiting.values():
            timer.cancel()
            self._loop.call_soon(callback, None)

    def _expire(self, opaque: int) -> None:
        callback, _ = self._callbacks.pop(opaque)
        callback(None)
