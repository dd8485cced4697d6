"""Crews: the threads that do a consumer's work in the background, its own or those of several.

    OwnCrew      threads of one consumer; they end with it
    SharedCrew   few threads for any number of consumers; each ends its own part alone

    lanes        what is asked of brokers, in order, a lane for each
    retry lanes  messages that are given back, several at a time
    services     what is done again and again

Nothing here knows what a consumer is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from rmq_spark.client.concurrency.per_broker_executor import Lanes
from rmq_spark.client.concurrency.scheduler import Action, ScheduledTasks, Task, Workers, stop_all

_GIVING_BACK: Final = 4
_SERVICES: Final = 3
_SHARED_SERVICES: Final = 8


class Crew(Protocol):
    """Gives a consumer the threads for its background work."""

    def lanes(self, name: str) -> Lanes:
        """Return lanes in which the tasks for a broker are done in order."""

    def retry_lanes(self, name: str) -> Lanes:
        """Return lanes in which several tasks for a broker are done at a time."""

    def services(self, name: str) -> Workers:
        """Return threads for what is done again and again."""


class OwnCrew:
    """Makes threads for one consumer alone."""

    def lanes(self, name: str) -> Lanes:
        """Return lanes of a thread for each broker."""
        return Lanes(name)

    def retry_lanes(self, name: str) -> Lanes:
        """Return lanes of up to four threads for each broker."""
        return Lanes(f"{name} gives back", threads_max=_GIVING_BACK)

    def services(self, name: str) -> Workers:
        """Return up to three threads."""
        return ScheduledTasks(f"{name} services", _SERVICES)


class SharedCrew:
    """Lends the same threads to several consumers, until it is stopped."""

    def __init__(self, name: str) -> None:
        self._lanes = Lanes(name)
        self._retry_lanes = Lanes(f"{name} gives back", threads_max=_GIVING_BACK)
        self._services = ScheduledTasks(f"{name} services", _SHARED_SERVICES)

    def lanes(self, name: str) -> Lanes:
        """Return lanes that share a thread for each broker."""
        return Lanes(name, make=_part_of(self._lanes))

    def retry_lanes(self, name: str) -> Lanes:
        """Return lanes that share up to four threads for each broker."""
        return Lanes(name, make=_part_of(self._retry_lanes))

    def services(self, name: str) -> Workers:  # noqa: ARG002  # the threads have the crew's name
        """Return a part of up to eight threads."""
        return Part(self._services)

    @property
    def thread_count(self) -> int:
        """Number of threads that are alive."""
        return sum(each.thread_count for each in (self._lanes, self._retry_lanes, self._services))

    def stop(self, wait_ms: int = 0) -> None:
        """Let the threads end; wait at most so long, in sum, for what is under way."""
        stop_all((self._lanes, self._retry_lanes, self._services), wait_ms)


class Part:
    """One user's part of threads that others use as well: it can be stopped alone."""

    thread_count: Final = 0
    """Number of threads of this part's own: there are none."""

    def __init__(self, whole: Workers) -> None:
        self._whole = whole
        self._is_stopped = False

    def schedule(self, action: Action, delay_ms: int = 0) -> Task:
        """Have an action run after a delay in milliseconds; a stopped part forgets it."""
        return self._whole.schedule(lambda: self._run(action), delay_ms)

    def _run(self, action: Action) -> None:
        if not self._is_stopped:
            action()

    def stop(self, wait_ms: int) -> bool:  # noqa: ARG002  # the threads go on for others
        """Begin none of this part's tasks from now on; return True, as no thread ends."""
        self._is_stopped = True
        return True


def _part_of(lanes: Lanes) -> Callable[[str], Workers]:
    return lambda broker: Part(lanes.of(broker))
