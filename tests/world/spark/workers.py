"""Spark's Python workers in a simulated world: separate processes that run requests and are killed.

Requests and results are plain data, as over the sockets of Spark: bytes and text. A worker's error
is pickled, like all that Spark transfers.
"""

from __future__ import annotations

import pickle
import threading
from typing import NamedTuple

from world.machine import Process
from world.tasks import Promise


class Crashed(Exception):
    """The worker is dead, and has not answered."""


class Answer(NamedTuple):
    """What a worker says: a value, or an error."""

    value: object = None
    error: BaseException | None = None


class Worker:
    """One process; one thing at a time is asked of it."""

    def __init__(self, world, name, host):
        self.process = Process(world.kernel, name, host)
        self.name = name
        self.has = {}
        """Objects of this process, by name."""
        self.context = None
        """What Spark says to the task that it runs."""

    @property
    def is_alive(self):
        return self.process.is_alive

    def ask(self, work):
        """Have a function called in the process: a promise of its answer."""
        answer = Promise()
        if not self.process.is_alive:
            answer.keep(Answer(error=Crashed(self.name)))
            return answer

        def died():
            answer.keep(Answer(error=Crashed(self.name)))

        def run():
            try:
                found = Answer(work())
            except Exception as error:
                found = Answer(error=_carried(error))
            self.process.forget(died)
            answer.keep(found)

        self.process.on_death(died)
        thread = threading.Thread(target=run, name=self.name)
        thread.belongs_to(self.process)
        thread.start()
        return answer

    def kill(self):
        self.process.kill()

    def end(self):
        """It ends by itself: what it has open, the system closes."""
        self.process.kill()


def _carried(error):
    """The same error, as it arrives where it is read."""
    carried = pickle.loads(pickle.dumps(error))  # noqa: S301  # what Spark does
    assert str(carried) == str(error), f"{error!r} is another when it has been pickled: {carried!r}"
    return carried
