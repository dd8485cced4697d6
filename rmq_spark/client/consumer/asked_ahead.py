"""AskedAhead: first offsets of queues that begin together, asked for some at a time.

    256 queues ──▶ the first that begins asks for all of its broker, 16 at a time ──▶ kept
                                the others find theirs, for a second, and ask for nothing

Where a network takes milliseconds, a member of many queues would begin them one after the other.
What a first offset is, and who asks for it, is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from rmq_spark.client.consumer.process_queue import Clock
from rmq_spark.client.errors import CONNECTION_FAULTS
from rmq_spark.client.threads.at_once import for_each
from rmq_spark.client.threads.mutex import mutex
from rmq_spark.wire.message_queue import MessageQueue

AT_ONCE_MAX: Final = 16
"""Most first offsets that are asked for at a time."""

KEPT_MS: Final = 1_000
"""Milliseconds for which an answer counts: another member may move the group's offset meanwhile."""


class AskedAhead:
    """First offsets of one member's queues. Methods may be called from any thread."""

    def __init__(self, ask: Callable[[MessageQueue], int], clock: Clock) -> None:
        """Take the function that asks a queue's broker, for one queue, and waits for it."""
        self._ask = ask
        self._clock = clock
        self._mutex = mutex()
        self._expected: dict[MessageQueue, None] = {}
        self._asked: dict[MessageQueue, object] = {}  # by whom
        self._found: dict[MessageQueue, tuple[int, int]] = {}  # the offset, and when it was asked

    def expect(self, queues: Iterable[MessageQueue]) -> None:
        """Note that these queues begin soon, so that they may be asked for with others."""
        with self._mutex:
            for queue in queues:
                self._forget(queue)
                self._expected[queue] = None

    def forget(self, queue: MessageQueue) -> None:
        """Note that a queue was given up."""
        with self._mutex:
            self._forget(queue)

    def _forget(self, queue: MessageQueue) -> None:
        for each in (self._expected, self._asked, self._found):
            each.pop(queue, None)

    def of(self, queue: MessageQueue) -> int:
        """Return the first offset of a queue; raise an error if it cannot be found out."""
        me, now_ms = object(), self._clock()
        with self._mutex:
            found = self._found.get(queue)
            self._forget(queue)
            if found is not None and now_ms - found[1] <= KEPT_MS:
                return found[0]
            broker = queue.broker_name
            others = [each for each in self._expected if each.broker_name == broker]
            for each in others:
                del self._expected[each]
                self._asked[each] = me
        if not others:
            return self._ask(queue)
        outcomes = self._ask_each([queue, *others])
        with self._mutex:
            for each in others:
                if self._asked.get(each) is me:  # and was not given up meanwhile
                    del self._asked[each]
                    if isinstance(outcome := outcomes[each], int):
                        self._found[each] = outcome, now_ms
        own = outcomes[queue]
        if isinstance(own, Exception):
            raise own
        return own

    def _ask_each(self, queues: list[MessageQueue]) -> dict[MessageQueue, int | Exception]:
        """Ask for several queues of one broker; once it is silent, for no more of them."""
        return for_each(
            queues,
            self._ask,
            most=AT_ONCE_MAX,
            name="asks for first offsets",
            last=CONNECTION_FAULTS,
        )
