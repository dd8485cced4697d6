"""WaitingLine: coroutines of one loop that wait for room, of whom only the first may look for it.

One who finds too little stays where it is, ahead of those who would fit: a large message is not
overtaken by small ones for as long as these keep coming. Who leaves wakes the next. Used in the
loop alone.
"""

from __future__ import annotations

import asyncio
from types import TracebackType


class WaitingLine:
    """The coroutines that wait, in the order in which they came."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._places: dict[Place, None] = {}

    @property
    def count(self) -> int:
        """Number of coroutines that wait."""
        return len(self._places)

    def place(self) -> Place:
        """Return a place at the end, which is taken for as long as a with statement lasts."""
        return Place(self._loop, self._places)

    def wake_first(self) -> None:
        """Wake the first, if there is one: there may be room for it."""
        if self._places:
            next(iter(self._places)).wake()

    def wake_all(self) -> None:
        """Wake all that wait."""
        for place in self._places:
            place.wake()


class Place:
    """A place in a `WaitingLine`, which may be taken before the with statement in which it ends."""

    def __init__(self, loop: asyncio.AbstractEventLoop, places: dict[Place, None]) -> None:
        self._loop = loop
        self._places = places
        self._woken: asyncio.Future[None] | None = None

    def __enter__(self) -> Place:
        self.take()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.leave()

    def take(self) -> None:
        """Be the last from now on; who is there already stays where it is."""
        self._places[self] = None

    def leave(self) -> None:
        """Let the next one look for room; who has left has no effect."""
        if self._places.pop(self, self) is None and self._places:
            next(iter(self._places)).wake()

    @property
    def is_first(self) -> bool:
        """True if nobody is ahead."""
        return next(iter(self._places)) is self

    def wake(self) -> None:
        """Have the one who waits here look again."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Wait to be woken, at most for so many seconds."""
        self._woken = self._loop.create_future()
        timer = self._loop.call_later(seconds, self.wake)
        try:
            await self._woken
        finally:
            timer.cancel()
            self._woken = None
