"""Surveys: read a value for each topic or group of a cluster, one after the other, in a thread.

There may be thousands of names, so a page gets what is known so far, and says how much is missing.

    a page asks ──> a pass over all names, those of the page first ──> values, as they are read

A pass starts only if a page asks. The next one starts 30 seconds later at the earliest, and takes a
tenth of the time at most: after a pass of ten seconds, the survey rests for ninety. Meanwhile it
reads only new names.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from rmq_spark.cli.groups.diagnosis import (
    STILL_MS,
    GroupCondition,
    GroupExamination,
    OffsetWatch,
    current_time_ms,
    examine_group,
)
from rmq_spark.client.admin.admin import TopicSize
from rmq_spark.client.admin.lag import count_messages
from rmq_spark.client.errors import ClientError, RouteNotFound

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin

AGE_SECONDS_MAX: Final = 30.0
WAIT_SECONDS_MAX: Final = 0.5
_PAUSE_FACTOR: Final = 9.0
_FORGOTTEN_SECONDS: Final = 300.0
"""The time for which values are shown after their next read was due."""

_log = logging.getLogger(__name__)

Value = TypeVar("Value")


@dataclass(frozen=True)
class SurveyResult(Generic[Value]):
    """The values that a survey has read so far, for the names that a page requests.

    Attributes:
        values: Values by name.
        missing_count: Number of names that were not read yet.
        error: The error that ended the last pass early, or None.
    """

    values: Mapping[str, Value]
    missing_count: int
    error: ClientError | None

    @property
    def is_complete(self) -> bool:
        """True if all names were read at least once."""
        return not self.missing_count


class Survey(Generic[Value]):
    """Reads a value for each of many names in a thread, on request."""

    def __init__(
        self,
        title: str,
        read: Callable[[str], Value],
        needs_reread: Callable[[Value], bool] = lambda _: False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with nothing known.

        Args:
            title: What is read, for the thread and the log.
            read: Reads the value for a name; a name that raises RouteNotFound has none.
            needs_reread: Whether a value needs a second look, a few seconds after the pass.
            now: The monotonic clock, in seconds.
        """
        self._title = title
        self._read = read
        self._needs_reread = needs_reread
        self._now = now
        self._changed = threading.Condition()
        self._stop_event = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_reading = False
        self._next_pass_at = float("-inf")
        self._known: dict[str, Value | None] = {}
        self._urgent: Sequence[str] = ()
        self._error: ClientError | None = None

    def get(self, names: Iterable[str], first: Sequence[str] = ()) -> SurveyResult[Value]:
        """Return what is known of all names, and start a pass if the values are old.

        The pass begins with ``first``, the names that a page shows. The call waits, at most half a
        second, until these names have been read for the first time, or all names if ``first`` is
        empty. It does not wait while known values are read again.
        """
        wanted = tuple(names)
        with self._changed:
            is_due = self._now() >= self._next_pass_at
            unknown = [name for name in wanted if name not in self._known]
            is_starting = self._thread is None and (is_due or bool(unknown))
            if is_starting:
                self._start_pass(wanted if is_due else unknown, wanted, is_full=is_due)
            is_new = is_starting or any(name not in self._known for name in first or wanted)
            self._urgent = first
            if is_new:
                self._changed.wait_for(
                    lambda: (
                        not self._is_reading
                        or (first and all(name in self._known for name in first))
                    ),
                    WAIT_SECONDS_MAX,
                )
            values = {
                name: value for name in wanted if (value := self._known.get(name)) is not None
            }
            missing = sum(name not in self._known for name in wanted)
            return SurveyResult(values, missing, self._error)

    def discard(self, name: str) -> None:
        """Forget the value of a name that the console has changed; the next page reads it."""
        with self._changed:
            self._known.pop(name, None)

    def stop(self) -> None:
        """Stop the thread that reads."""
        self._stop_event.set()

    def _start_pass(self, names: Sequence[str], all_names: Sequence[str], *, is_full: bool) -> None:
        thread = threading.Thread(
            target=self._run, args=(names, all_names), name=self._title, daemon=True
        )
        started_at = self._now()
        if started_at > self._next_pass_at + _FORGOTTEN_SECONDS:
            self._known.clear()
        thread.start()
        self._thread, self._is_reading, self._error = thread, True, None
        if is_full:
            self._next_pass_at = started_at + AGE_SECONDS_MAX

    def _run(self, names: Sequence[str], all_names: Sequence[str]) -> None:
        error, has_failed, started_at = None, False, self._now()
        try:
            for name in self._in_order(names):
                self._read_value(name)
        except ClientError as caught:
            error, has_failed = caught, True
        except Exception:  # noqa: BLE001  # the next pass may succeed
            has_failed = True
            _log.exception("reading %s failed", self._title)
        with self._changed:
            for name in self._known.keys() - set(all_names):
                del self._known[name]
            self._error = error
            paused_until = self._now() + _PAUSE_FACTOR * (self._now() - started_at)
            self._next_pass_at = max(self._next_pass_at, paused_until)
            if has_failed:
                self._next_pass_at = float("-inf")  # the next page reads again at once
            self._is_reading = False
            self._changed.notify_all()
        if not has_failed:
            self._reread_unsettled()
        with self._changed:
            self._thread = None

    def _in_order(self, names: Iterable[str]) -> Iterator[str]:
        """Yield all names once; names that a page shows and that were never read come first."""
        done = set[str]()
        pending = deque(names)
        while pending and not self._stop_event.is_set():
            with self._changed:
                unknown = (each for each in self._urgent if each not in self._known)
                urgent = next((each for each in unknown if each not in done), None)
            name = pending.popleft() if urgent is None else urgent
            if name not in done:
                done.add(name)
                yield name

    def _read_value(self, name: str) -> None:
        try:
            value = self._read(name)
        except RouteNotFound:  # deleted meanwhile, or a broker's own topic without a route
            value = None
        with self._changed:
            self._known[name] = value
            self._changed.notify_all()

    def _reread_unsettled(self) -> None:
        with self._changed:
            unsettled = [
                name
                for name, value in self._known.items()
                if value is not None and self._needs_reread(value)
            ]
        if not unsettled or self._stop_event.wait(STILL_MS / 1_000):
            return
        try:
            for name in unsettled:
                if self._stop_event.is_set():
                    return
                self._read_value(name)
        except ClientError:  # the next pass reports the error
            return
        except Exception:  # noqa: BLE001  # the next pass may succeed
            _log.exception("reading %s again failed", self._title)


# ---- The surveys of a console.


@dataclass(frozen=True)
class Surveys:
    """The surveys of a console, of all topics and groups.

    Attributes:
        sizes: The sizes of topics.
        groups: The conditions of groups; those that may be stuck are examined twice.
        dead_letters: The number of messages in topics of dead letters.
        offsets: The offsets of groups seen so far, which show whether the groups proceed.
    """

    sizes: Survey[TopicSize]
    groups: Survey[GroupExamination]
    dead_letters: Survey[int]
    offsets: OffsetWatch

    @classmethod
    def of(cls, admin: Admin) -> Surveys:
        """Return the surveys of a cluster, which have read nothing yet."""
        watch = OffsetWatch()

        def examine(name: str) -> GroupExamination:
            return examine_group(admin, name, watch, current_time_ms(), with_members=False)

        return cls(
            Survey("TopicSizes", admin.topic_size),
            Survey("GroupConditions", examine, may_be_stuck),
            Survey("DeadLetterCounts", lambda topic: count_messages(admin, topic)),
            watch,
        )

    def stop(self) -> None:
        """Stop all surveys."""
        for survey in (self.sizes, self.groups, self.dead_letters):
            survey.stop()


def may_be_stuck(examination: GroupExamination) -> bool:
    """Return whether a message of a group has waited long, but the group may still proceed."""
    return examination.condition is GroupCondition.BEHIND and examination.queue is not None
