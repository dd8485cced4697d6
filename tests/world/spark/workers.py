"""Spark's Python workers in a simulated world: separate processes that run requests and are killed.

Requests and results are plain data, as over Spark's sockets: bytes and text. A worker's error is
pickled, like all that Spark transfers.
"""

from __future__ import annotations

import pickle
import threading
from typing import NamedTuple

from world.machine import Process
from world.tasks import Promise


class Crashed(Exception):
    """Raised when the worker was killed before it responded."""


class Answer(NamedTuple):
    """A worker's response: a value, or an error."""

    value: object = None
    error: BaseException | None = None


class Worker:
    """A worker process, which runs one request at a time."""

    def __init__(self, world, name, host):
        self.process = Process(world.kernel, name, host)
        self.name = name
        self.has = {}
        """Objects of this process, by name."""
        self.context = None
        """The task context that Spark provides."""

    @property
    def is_alive(self):
        return self.process.is_alive

    def ask(self, work):
        """Call a function in the process; return a promise of its result."""
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
        """End the process normally; the system closes what it has open."""
        self.process.kill()


def _carried(error):
    """Return the error as the receiving process unpickles it."""
    carried = pickle.loads(pickle.dumps(error))  # noqa: S301  # as Spark does
    assert str(carried) == str(error), f"{error!r} is another when it has been pickled: {carried!r}"
    return carried
