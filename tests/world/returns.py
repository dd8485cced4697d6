"""Messages that consumers have sent back: how often each may return, when, and where.

given back with its n-th try ──> %RETRY%group with try n+1, after a delay ──> given back again ...
                             └─> %DLQ%group with try n+1, at once, if that was the last
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(eq=False)
class GivenBack:
    """One request of a consumer to send a message back."""

    asked_at: float
    delay_seconds: float
    topic: str
    is_certain: bool = False  # acknowledged: it must come
    answered_at: float = 0.0


@dataclass
class Tries:
    """All requests that lead to the same try of the same message, and where it was seen."""

    asked: list = field(default_factory=list)
    seen: dict = field(default_factory=dict)


class Returns:
    """All messages that were sent back."""

    def __init__(self, ledger, world):
        self._ledger = ledger
        self._world = world
        self._tries = defaultdict(Tries)  # by topic, message and number of tries

    def send_back(self, group, sent, tries, *, delay_seconds, is_last):
        """Record that a consumer is about to send a message back."""
        topic = f"%DLQ%{group}" if is_last else f"%RETRY%{group}"
        given = GivenBack(self._world.kernel.now, 0.0 if is_last else delay_seconds, topic)
        self._tries[topic, sent, tries + 1].asked.append(given)
        return given

    def answered(self, given, *, is_done):
        given.is_certain = is_done
        given.answered_at = self._world.kernel.now

    def refused(self, given):
        """Record that the broker refused to store it."""
        for tries in self._tries.values():
            if given in tries.asked:
                tries.asked.remove(given)

    def saw(self, sent, message, where):
        """Record the arrival of a message for another try."""
        tries = self._tries.get((message.topic, sent, message.reconsume_times))
        if tries is None or not tries.asked:
            self._ledger.complain(
                f"{sent} is in {where} as try {message.reconsume_times}, which nobody asked for"
            )
        now = self._world.kernel.now
        due = min(given.asked_at + given.delay_seconds for given in tries.asked)
        first_asked_at = min(given.asked_at for given in tries.asked)
        is_known = self._world.watch.delays_pass_since(first_asked_at)
        if now < due and is_known:
            self._ledger.complain(
                f"try {message.reconsume_times} of {sent} in {where} is {due - now:.3f} s early"
            )
        place = message.queue_id, message.queue_offset
        tries.seen.setdefault(place, now)
        if len(tries.seen) > len(tries.asked) and not self._world.watch.crashed_since(
            due if is_known else first_asked_at
        ):
            self._ledger.complain(
                f"{sent} came as try {message.reconsume_times} at {list(tries.seen)}"
            )

    def life_ended(self, kind, is_durable):
        """Record a crash: messages that were seen without a promise may be lost, and come again
        elsewhere. ``is_durable`` returns whether what was acknowledged at a time survives a power
        loss."""
        if kind == "power":
            for tries in self._tries.values():
                tries.seen.clear()
                for given in tries.asked:
                    given.is_certain = given.is_certain and is_durable(given.answered_at)

    def topics(self):
        return list(dict.fromkeys(topic for topic, _, _ in self._tries))

    def check_deliveries(self):
        for (topic, sent, number), tries in self._tries.items():
            certain = sum(given.is_certain for given in tries.asked)
            if len(tries.seen) < certain:
                self._ledger.complain(
                    f"{sent} came {len(tries.seen)} times to {topic} as try {number}, not {certain}"
                )
