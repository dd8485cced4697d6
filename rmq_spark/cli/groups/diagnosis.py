"""Diagnosis of consumer groups: which of them are stuck, and why, in words.

    one group      its state ──> diagnose_group ──> GroupDiagnosis: a title, sentences, a queue
    many groups    their summaries ──> examine_groups ──> a GroupExamination each

A group is stuck in a queue if its next message has waited for 30 s, a member has the queue, and the
group's offset has not moved for 6 s: consumers commit every 5 s. `OffsetWatch` keeps the offsets
that it has seen. ``rocketpoll group``, ``cluster health``, ``top`` and the console share this
module.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq_spark.cli.groups.group_state import GroupSummary, queue_text, summarize_group
from rmq_spark.cli.shell.output import format_age
from rmq_spark.client.admin.lag import GroupState, QueueState, query_lag
from rmq_spark.client.errors import RouteNotFound
from rmq_spark.errors import format_count
from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin
    from rmq_spark.client.admin.lag import Lag

WAIT_MS: Final = 30_000
"""The next message of a stuck group has waited for at least this long."""
STILL_MS: Final = 6_000
"""The offset of a stuck group has not moved for at least this long; consumers commit every 5 s."""
_QUEUES_EXAMINED_MAX: Final = 64
"""The most queues examined of each of many groups: the least recently consumed ones."""
_QUEUES_NAMED_MAX: Final = 5
NEVER_MS: Final = 1 << 63
"""A time later than all others, by which queues without a waiting message sort last."""


class GroupCondition(Enum):
    """Conditions of a group."""

    OK = "ok"
    BEHIND = "behind"
    UNASSIGNED = "unassigned"
    STUCK = "stuck"
    OFFLINE = "offline"


class _SeenOffset(NamedTuple):
    consumer_offset: int | None
    since_ms: int  # when this offset was first seen
    seen_ms: int
    has_moved: bool


class OffsetWatch:
    """Remembers the offsets of groups with lag, and whether they move."""

    def __init__(self, now_ms: Callable[[], int] | None = None) -> None:
        self._now_ms = now_ms or current_time_ms
        self._seen: dict[tuple[str, MessageQueue], _SeenOffset] = {}

    def observe(self, group: str, lags: Iterable[Lag]) -> None:
        """Record the offsets of a group; forget queues without lag."""
        now_ms = self._now_ms()
        for lag in lags:
            key = (group, lag.queue)
            if not lag.messages:
                self._seen.pop(key, None)
                continue
            seen = self._seen.get(key)
            if seen is None or seen.consumer_offset != lag.consumer_offset:
                has_moved = seen is not None
                seen = _SeenOffset(lag.consumer_offset, now_ms, now_ms, has_moved)
            self._seen[key] = seen._replace(seen_ms=now_ms)

    def is_moving(self, group: str, queue: MessageQueue) -> bool | None:
        """Return whether a group proceeds in a queue; None if that is not known yet."""
        seen = self._seen.get((group, queue))
        if seen is None:
            return None
        if seen.seen_ms - seen.since_ms >= STILL_MS:
            return False
        return True if seen.has_moved else None


# ---- One group.


class GroupDiagnosis(NamedTuple):
    """The condition of a group, with the reasons in words.

    Attributes:
        condition: The condition, in a word.
        title: The problem, in a few words.
        text: Sentences that explain the problem and say what to do.
        queue: The queue whose next message to look at, or to skip; None if that cannot help.
    """

    condition: GroupCondition
    title: str
    text: str
    queue: QueueState | None = None


def diagnose_group(
    state: GroupState, now_ms: int, *, is_moving: bool | None = None
) -> GroupDiagnosis:
    """Return the diagnosis of a group: the reason for its lag, if it has any.

    ``is_moving`` says whether the group proceeds in its `longest_waiting_queue`; None if its offset
    was read only once.
    """
    oldest = longest_waiting_queue(state)
    if oldest is None:
        text = (
            "The group has consumed every message. A failed message is redelivered after its "
            "delay, and counts as waiting for retry from then on."
        )
        if state.waiting_for_retry:
            due = format_count(state.waiting_for_retry, "failed message")
            text = f"The group has tried every message. Due for another try: {due}."
        if state.in_flight:
            text = f"Members have received every message. {_describe_in_flight(state)}"
        if not state.members:
            return GroupDiagnosis(GroupCondition.OFFLINE, "No consumer is online", text)
        return GroupDiagnosis(GroupCondition.OK, "No lag", text)
    if not state.members:
        text = "Messages wait for a consumer. Start the group's consumers."
        return GroupDiagnosis(GroupCondition.OFFLINE, "No consumer is online", text)
    unassigned = [each for each in state.queues if each.lag.messages and each.member is None]
    if unassigned and not state.is_popping:
        names = ", ".join(queue_text(each.lag.queue) for each in unassigned[:_QUEUES_NAMED_MAX])
        more = f" and {len(unassigned) - _QUEUES_NAMED_MAX:,} more" * (
            len(unassigned) > _QUEUES_NAMED_MAX
        )
        return GroupDiagnosis(
            GroupCondition.UNASSIGNED,
            "Queues without a member",
            f"No member reports {names}{more}. A member may be busy, or the members of the group "
            "subscribe to different topics.",
        )
    waiting_since_ms = oldest.waiting_since_ms or now_ms
    queue_name = f"{oldest.lag.queue.topic} {queue_text(oldest.lag.queue)}"
    waits = f"Its next message was stored {format_age((now_ms - waiting_since_ms) / 1_000)}."
    if now_ms - waiting_since_ms < WAIT_MS:
        text = f"The message that has waited longest is in {queue_name}. {waits}"
        return GroupDiagnosis(GroupCondition.BEHIND, "Nearly up to date", text)
    if is_moving:
        text = f"{waits} The group's offset moves. If the lag grows, add members and queues."
        return GroupDiagnosis(GroupCondition.BEHIND, f"Furthest behind: {queue_name}", text, oldest)
    if state.is_popping:
        return _diagnose_popping(state, oldest, waits, is_moving=is_moving)
    is_hanging = oldest.last_tried_ms is not None and now_ms - oldest.last_tried_ms >= WAIT_MS
    is_stuck = is_hanging or is_moving is False
    return GroupDiagnosis(
        GroupCondition.STUCK if is_stuck else GroupCondition.BEHIND,
        f"{'Stuck' if is_stuck else 'Furthest behind'}: {queue_name}",
        " ".join((waits, *_describe_last_try(oldest, now_ms, is_moving=is_moving))),
        oldest,
    )


def _diagnose_popping(
    state: GroupState, oldest: QueueState, waits: str, *, is_moving: bool | None
) -> GroupDiagnosis:
    """Return why a group that pops has lag; its queues belong to no member."""
    queue_name = f"{oldest.lag.queue.topic} {queue_text(oldest.lag.queue)}"
    sentences, is_stuck = [waits], is_moving is False
    if is_stuck:
        sentences.append(
            "Members pop nothing there: they are busy with what they have, or subscribe to other "
            "topics. Add members, or acknowledge messages earlier."
        )
    if state.in_flight:
        sentences.append(_describe_in_flight(state))
    return GroupDiagnosis(
        GroupCondition.STUCK if is_stuck else GroupCondition.BEHIND,
        f"{'Stuck' if is_stuck else 'Furthest behind'}: {queue_name}",
        " ".join(sentences),
        oldest,
    )


def _describe_in_flight(state: GroupState) -> str:
    count = format_count(state.in_flight or 0, "message is", "messages are")
    return f"{count} in flight: received, and not acknowledged yet."


def diagnose_groups(
    admin: Admin, states: Sequence[GroupState], sleep: Callable[[float], None]
) -> list[GroupDiagnosis]:
    """Return why groups have lag; after six seconds, read again those that may be stuck."""
    found = [diagnose_group(state, current_time_ms()) for state in states]
    watch = OffsetWatch()
    unknown = {}
    for at, (state, diagnosis) in enumerate(zip(states, found, strict=True)):
        if diagnosis.condition is GroupCondition.BEHIND and diagnosis.queue is not None:
            unknown[at] = diagnosis.queue.lag.queue
            watch.observe(state.name, [diagnosis.queue.lag])
    if unknown:
        sleep(STILL_MS / 1_000)
    for at, queue in unknown.items():
        state = states[at]
        watch.observe(state.name, query_lag(admin, state.name, queue.topic))
        is_moving = watch.is_moving(state.name, queue)
        found[at] = diagnose_group(state, current_time_ms(), is_moving=is_moving)
    return found


def longest_waiting_queue(state: GroupState) -> QueueState | None:
    """Return the queue whose next message has waited longest; None if no queue has lag."""
    behind = (each for each in state.queues if each.lag.messages)
    return min(
        behind, key=lambda each: (each.waiting_since_ms or NEVER_MS, each.lag.queue), default=None
    )


def _describe_last_try(state: QueueState, now_ms: int, *, is_moving: bool | None) -> Iterator[str]:
    """Yield in words whether a member's listener fails or hangs, if the member reports it."""
    if state.last_tried_ms is None:
        if is_moving is False:
            yield "The group's offset does not move there."
        return
    if now_ms - state.last_tried_ms < WAIT_MS:
        yield "Its member has just tried it: the listener fails, or is slow."
        return
    ago = format_age((now_ms - state.last_tried_ms) / 1_000)
    yield (
        f"Its member last tried a message {ago}: the listener hangs, or still works on it. Restart "
        "the member, even if you skip the message."
    )


# ---- Many groups, in few requests: one for the progress of each, one for the members of those that
# have lag, and a few for the next messages of those that may be stuck.


class GroupExamination(NamedTuple):
    """The condition of one of many groups.

    Attributes:
        summary: The state of the group, from its brokers.
        condition: The condition, in a word.
        queue: The queue in which the group is or may be stuck, or None.
        waiting_since_ms: Store time, in ms since the epoch, of the message that has waited longest,
            if the group may be stuck or has no consumer online.
    """

    summary: GroupSummary
    condition: GroupCondition
    queue: MessageQueue | None = None
    waiting_since_ms: int | None = None


def examine_group(
    admin: Admin, name: str, watch: OffsetWatch, now_ms: int, *, with_members: bool = True
) -> GroupExamination:
    """Examine a group once; it is found stuck only if ``watch`` has seen it before.

    Args:
        admin: The client.
        name: The group.
        watch: The offsets seen before; the present offsets are added.
        now_ms: The time of day, in milliseconds.
        with_members: Whether to ask for the members of a group that has no lag.
    """
    summary = summarize_group(admin, name, with_members=with_members)
    watch.observe(name, summary.lags)
    if not summary.behind:
        is_offline = with_members and not summary.member_count
        condition = GroupCondition.OFFLINE if is_offline else GroupCondition.OK
        return GroupExamination(summary, condition)
    if not summary.member_count:
        found = _longest_wait(admin, summary.lags, NEVER_MS)
        since_ms = None if found is None else found[1]
        return GroupExamination(summary, GroupCondition.OFFLINE, waiting_since_ms=since_ms)
    found = _longest_wait(admin, summary.lags, now_ms - WAIT_MS)
    if found is None:
        return GroupExamination(summary, GroupCondition.BEHIND)
    queue, since_ms = found
    is_stuck = watch.is_moving(name, queue) is False
    condition = GroupCondition.STUCK if is_stuck else GroupCondition.BEHIND
    return GroupExamination(summary, condition, queue, since_ms)


def examine_groups(
    admin: Admin,
    names: Iterable[str],
    watch: OffsetWatch,
    sleep: Callable[[float], None],
    *,
    with_members: bool = True,
) -> Mapping[str, GroupExamination]:
    """Examine groups; after six seconds, examine again those that may be stuck."""
    found = {
        name: examine_group(admin, name, watch, current_time_ms(), with_members=with_members)
        for name in names
    }
    unknown = [
        name
        for name, each in found.items()
        if each.queue is not None and watch.is_moving(name, each.queue) is None
    ]
    if unknown:
        sleep(STILL_MS / 1_000)
        found.update(
            (name, examine_group(admin, name, watch, current_time_ms())) for name in unknown
        )
    return found


def _longest_wait(
    admin: Admin, lags: Iterable[Lag], until_ms: int
) -> tuple[MessageQueue, int] | None:
    """Return the queue whose next message has waited longest, and since when.

    Messages stored after ``until_ms`` are ignored. The next message of a queue is newer than the
    one consumed last, so queues whose last consumed message is too new are not queried.
    """
    old = sorted(
        (each for each in lags if each.messages and each.last_timestamp <= until_ms),
        key=lambda each: each.last_timestamp,
    )
    oldest: tuple[int, MessageQueue] | None = None
    for lag in old[:_QUEUES_EXAMINED_MAX]:
        if oldest is not None and lag.last_timestamp > oldest[0]:
            break
        stored_ms = _next_stored_ms(admin, lag)
        if stored_ms is not None and stored_ms <= until_ms:
            found = (stored_ms, lag.queue)
            oldest = found if oldest is None else min(oldest, found)
    return None if oldest is None else (oldest[1], oldest[0])


def _next_stored_ms(admin: Admin, lag: Lag) -> int | None:
    """Return the store time of the message that a group consumes next; None if it is unknown."""
    try:
        found = admin.message_at(lag.queue, lag.consumer_offset or 0)
        if found is None:  # it may have been deleted
            first = admin.topic_offsets(lag.queue.topic)[lag.queue].min_offset
            found = admin.message_at(lag.queue, max(first, lag.consumer_offset or 0))
    except (RouteNotFound, KeyError):  # the topic was deleted
        return None
    return None if found is None else found.store_timestamp


def wait_for_moves(seconds: float) -> None:
    """Sleep until groups can be examined again; print this in a terminal."""
    if not sys.stderr.isatty():
        time.sleep(seconds)
        return
    note = f"watching for {seconds:.0f} s whether offsets move ..."
    sys.stderr.write(note)
    sys.stderr.flush()
    try:
        time.sleep(seconds)
    finally:
        sys.stderr.write(f"\r{'':{len(note)}}\r")
        sys.stderr.flush()


def current_time_ms() -> int:
    """Return the time of day, in milliseconds."""
    return int(time.time() * 1_000)
