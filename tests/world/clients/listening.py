"""Listeners of a simulated world: fast, slow, failing, or with invalid results; the ledger checks
them.

Each call draws a mood. At the end of a story all moods are good, so that all messages are finished.
"""

import asyncio
import time

from world.kernel import Killed

from rmq_spark.client.consumer.dispatch.listeners import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
)

MOODS = ("slow", "very slow", "raise", "exit", "later", "nonsense", "some")
MORE_MOODS = ("coroutine", "generator", "cancelled", "generator exit")
_SECONDS = {"slow": 0.3, "very slow": 4.0}
_SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
_RAISED = {"cancelled": asyncio.CancelledError, "generator exit": GeneratorExit}
_NONSENSE = (False, True, 0, 42, "CONSUME_SUCCESS", [], object)


class Listener:
    """The listener of a push consumer; ``moods`` are those besides a good one."""

    def __init__(self, world, process, reader, moods, dice):
        self._world = world
        self._process = process
        self._reader = reader
        self._moods = moods
        self._dice = dice

    def __call__(self, messages, context):
        if not self._process.is_alive:
            raise Killed  # an unwinding thread's calls do not count
        queue = queue_of(context.queue)
        ledger = self._world.ledger
        call = ledger.begins(self._reader, self._process, queue, messages)
        mood = self.mood()
        done = len(messages) if mood in ("good", *_SECONDS) else 0
        try:
            time.sleep(_SECONDS.get(mood, self._dice.choice([0, 0.001])))
            return self._say(mood, messages, context)
        finally:
            if self._process.is_alive:
                if mood == "some" and not self._reader.is_orderly:
                    done = min(max(context.ack_index + 1, 0), len(messages))
                ledger.ends(call, messages, done)

    def mood(self):
        if self._world.is_calm or self._dice.random() < 0.5:
            return "good"
        return self._dice.choice(self._moods)

    def _say(self, mood, messages, context):
        is_orderly = self._reader.is_orderly
        if mood == "raise":
            raise ValueError("a listener fails")
        if mood == "exit":
            raise SystemExit(1)
        if mood in _RAISED:
            raise _RAISED[mood]
        if mood == "coroutine":
            return _coroutine()
        if mood == "generator":
            return (each for each in messages)
        if mood == "nonsense":
            wrong = ConsumeConcurrentlyStatus if is_orderly else ConsumeOrderlyStatus
            return self._dice.choice([*_NONSENSE, *wrong])
        if mood == "later" or (mood == "some" and is_orderly):
            if is_orderly:
                context.suspend_current_queue_time_ms = self._dice.choice([None, 10, 2_000])
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
            context.delay_level_when_next_consume = self._dice.choice([0, 1, 2])
            return ConsumeConcurrentlyStatus.RECONSUME_LATER
        if mood == "some":
            context.ack_index = self._dice.randint(-2, len(messages))
        return self._dice.choice([None, ConsumeOrderlyStatus.SUCCESS if is_orderly else _SUCCESS])


async def _coroutine():
    pass


def queue_of(queue):
    """Return a queue as the ledger names it."""
    return queue.topic, queue.broker_name, queue.queue_id
