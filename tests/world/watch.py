"""The watch: checks response times, calm periods, and the cleanup after all clients have left.

Requests are answered soon; a held pull gets its message when it arrives, and otherwise ends only at
its timeout; nothing remains of a departed client. During troubles, and a little longer, no times
are checked. Each check covers only what is certain.
"""

import math
from itertools import pairwise

from rmq_spark.wire.codes import ResponseCode
from rocketpoll.broker.server.server import CannotListen
from rocketpoll.broker.store.errors import StoreError

_AFTER_TROUBLE_SECONDS = 8.0
_START_SECONDS = 1.0
_BUSY = {
    ResponseCode.SYSTEM_BUSY,
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.FLUSH_DISK_TIMEOUT,
}
_OF_DISK = ("slow", "lack", "broken", "full")
_OF_EXPIRED = (
    "cannot be redelivered: OFFSET_TOO_SMALL",
    "has not acknowledged it.",
    "is older than fileReservedTime",
)
"""Log lines about expired messages: popped ones, and those of open transactions."""
_ENDING = ("stopping", "shut down")
_KEPT_SECONDS = 72 * 3_600
_ASYNC_FLUSH_SECONDS = 1.0


class Watch:
    """Checks times and leftovers."""

    def __init__(self, world):
        self._world = world
        self._crashed_at = self._ended_at = -1.0
        self._moves_ahead = any(_is_ahead(each) for each in world.story.troubles)
        self._failed_at = None
        self._times_of_day = [(0.0, 0.0)]  # times, and by how much the clock was ahead since then
        self._all_was_flushed_at = -math.inf  # by a clean stop
        self._served = []  # lives that clients found, each with the end of its undisturbed time
        story = world.story
        self._of_disk = [each for each in story.troubles if each.kind in _OF_DISK]
        self.may_expire = any(each.kind == "full" or _is_far_ahead(each) for each in story.troubles)
        """Whether the oldest messages may expire to free disk space."""
        self.may_lose_content = self.may_expire or any(
            each.kind == "broken" for each in story.troubles
        )
        """Whether content of the log or the index may become unreadable."""
        self.can_wipe = not any(_hinders_wiping(each) for each in story.troubles)
        """Whether a full disk lets the broker wipe all bytes that it has accepted."""
        self.slack_seconds = 0.1 + 10 * story.latency_seconds + 10 * story.flush_seconds
        self.troubles_end = max(
            (each.begin + each.seconds + _AFTER_TROUBLE_SECONDS for each in story.troubles),
            default=0.0,
        )

    # ---- events

    def life_ended(self, kind):
        self._ended_at = self._world.kernel.now
        is_flushed = kind == "stop" and not self.is_disk_in_trouble
        if self._world.life.served_since is not None:
            if is_flushed:
                self._all_was_flushed_at = self._ended_at
            self._served.append((self._world.life.served_since, self.calm_since()))
        if kind != "stop" or self.is_disk_in_trouble:  # the life's memory is lost
            self._crashed_at = self._ended_at
        self._failed_at = None

    def clock_moved(self, ahead_seconds):
        """Record that the time of day is this far ahead from now on."""
        self._times_of_day.append((self._world.kernel.now, ahead_seconds))

    @property
    def is_disk_in_trouble(self):
        now = self._world.kernel.now
        return any(each.begin <= now <= each.begin + each.seconds for each in self._of_disk)

    @property
    def may_refuse_a_save(self):
        """Return whether a stop may leave tables unsaved; it waits for a slow disk."""
        now = self._world.kernel.now
        hindering = [each for each in self._of_disk if each.kind != "slow"]
        return any(each.begin <= now <= each.begin + each.seconds for each in hindering)

    @property
    def has_disk_failed(self):
        return self._failed_at is not None

    def disk_failed(self):
        """Record that the broker accepts no messages until its next start."""
        if self._failed_at is None:
            self._failed_at = self._world.kernel.now

    # ---- queries

    def troubles(self, kind, ago_seconds=0.0):
        """Return the troubles of a kind that last now, or did shortly ago."""
        now = self._world.kernel.now
        return [
            trouble
            for trouble in self._world.story.troubles
            if trouble.kind == kind
            and trouble.begin <= now < trouble.begin + trouble.seconds + ago_seconds
        ]

    def is_gone_from_log(self, place):
        """Return whether the log begins past a position, or no broker serves."""
        life = self._world.life
        if life is None or life.served_since is None:
            return True
        return place < life.controller.store.state().min_offset

    def crashed_since(self, time):
        """Return whether the broker was killed, or could not save its tables, since a time."""
        return self._crashed_at >= time

    def is_undisturbed_since(self, time):
        """Return whether no crash, disk trouble or clock change came since a time."""
        return (
            not self.crashed_since(time)
            and self._times_of_day[-1][0] <= time
            and all(
                trouble.begin > self._world.kernel.now
                or trouble.begin + trouble.seconds + _AFTER_TROUBLE_SECONDS < time
                for trouble in self._of_disk
            )
        )

    def delays_pass_since(self, time):
        """Return whether delays that began at a time use the monotonic clock: after a restart, only
        the time of day counts."""
        return not self._moves_ahead or self._ended_at < time

    def was_flushed_since(self, time):
        """Return whether, with ASYNC_FLUSH, data written then was on the disk at the power loss.

        A broker flushes while it serves. One that is killed before the flush, and whose machine
        loses power before the next one serves, has lost the data.
        """
        calm_since, served = self.calm_since(), [*self._served]
        if self._world.life.served_since is not None:
            served.append((self._world.life.served_since, calm_since))
        flush_seconds = _ASYNC_FLUSH_SECONDS + self.slack_seconds
        return time <= self._all_was_flushed_at or any(
            max(time, begin) < min(end, calm_since) - flush_seconds for begin, end in served
        )

    def calm_since(self):
        """Return the time up to which nothing was wrong, or had been over for long."""
        calm = self._world.kernel.now
        if self._failed_at is not None:
            calm = self._failed_at
        for trouble in sorted(self._of_disk, key=lambda trouble: -trouble.begin):
            if trouble.begin < calm < trouble.begin + trouble.seconds + _AFTER_TROUBLE_SECONDS:
                calm = trouble.begin
        return calm

    def is_calm_since(self, time):
        """Return whether the same broker has served since then, and nothing was wrong."""
        world = self._world
        return (
            world.life is not None
            and world.life.is_serving_since(time)
            and self._failed_at is None
            and all(
                trouble.begin > world.kernel.now
                or trouble.begin + trouble.seconds + _AFTER_TROUBLE_SECONDS < time
                for trouble in self._of_disk
            )
        )

    def is_expected(self, record):
        """Return whether a broker's log line is about a trouble, and is not an error of
        the disk."""
        if any(text in record.getMessage() for text in _OF_EXPIRED):
            return self.may_expire
        return record.msg.startswith("accepting clients failed") and bool(self.troubles("accept"))

    def is_excused(self, error):
        """Return whether a broker's logged error is expected: the disk was in trouble, or the
        system could not open the port, which ends a start."""
        if isinstance(error, CannotListen):  # logged after the start was rolled back
            return bool(self.troubles("accept", ago_seconds=_START_SECONDS))
        life = self._world.life
        if life is None or not life.state.has_failed:
            return False
        return error is None or isinstance(error, (OSError, StoreError))

    # ---- reports of clients

    def check_patience(self, connection, asked_at, what):
        """Report a missing response."""
        if connection.is_heard and self.is_calm_since(asked_at):
            self._world.ledger.complain(f"{what} was not answered since {asked_at:.6f} s")

    def check_refusal(self, answer, what):
        """Check a refusal."""
        remark = answer.remark or ""
        if "internal error" in remark:
            self._world.ledger.complain(f"{what} was answered {answer.code} {remark}")
        is_busy = answer.code in _BUSY and not any(word in remark for word in _ENDING)
        if is_busy and self.is_calm_since(self._world.kernel.now - self.slack_seconds):
            self._world.ledger.complain(
                f"{what} was refused in calm weather: {answer.code} {remark}"
            )

    def check_wakefulness(self, asked, asked_at, suspend_seconds, told):
        """Check the response to a pull that may have been held."""
        now = self._world.kernel.now
        if not self.is_calm_since(asked_at - self.slack_seconds):
            return
        queue = self._world.ledger.queues[asked.topic, asked.queue_id]
        if told.code == ResponseCode.PULL_NOT_FOUND:
            if suspend_seconds and now - asked_at < suspend_seconds - self.slack_seconds:
                self._world.ledger.complain(
                    f"{asked} waited {now - asked_at:.3f} s, not {suspend_seconds} s: {told}"
                )
            for queue_offset, sent in queue.at.items():
                is_asked_for = queue_offset >= asked.queue_offset and asked.wants(sent)
                if is_asked_for and self._came_by(sent, now - self.slack_seconds):
                    self._world.ledger.complain(
                        f"{asked} was told of nothing, and {sent} is at {queue_offset}"
                    )
        elif told.messages and suspend_seconds:
            first = queue.at.get(told.messages[0].queue_offset)
            if (
                self._came_by(first, now - self.slack_seconds)
                and asked_at < now - self.slack_seconds
            ):
                self._world.ledger.complain(
                    f"{asked} was told of {first}, stored at {first.stored_at:.3f}, late"
                )

    def check_lateness(self, sent, delivered_at, where):
        """Check that a delayed message was delivered soon after it was due. A restart may make it
        wait for its delay once more; otherwise the monotonic clock counts. Deliveries of earlier
        lives are not known."""
        world, served_since = self._world, self._world.life.served_since
        if served_since is None:
            return
        delivered_at = self._first_at(delivered_at)
        due = sent.stored_at + sent.delay_seconds
        if served_since > sent.sent_at:
            due = max(due, served_since) + sent.delay_seconds
        is_calm = delivered_at >= served_since and self.is_calm_since(
            max(sent.sent_at, served_since)
        )
        if is_calm and delivered_at > due + self.slack_seconds:
            world.ledger.complain(f"{sent}, in {where}, is {delivered_at - due:.3f} s late")

    def _first_at(self, wall_seconds):
        """Return when the time of day first reached a time. A log whose clock is put back keeps the
        latest time that it has seen."""
        world, (_, ahead_now) = self._world, self._times_of_day[-1]
        wall_seconds -= world.threads.wall_seconds() - world.kernel.now - ahead_now
        epochs = [*self._times_of_day, (math.inf, 0.0)]
        for (begin, ahead), (end, _) in pairwise(epochs):
            at = max(begin, wall_seconds - ahead)
            if at <= end:
                return at
        return math.inf

    @staticmethod
    def _came_by(what, time):
        is_transactional = getattr(what, "end", None) is not None
        came_at = getattr(what, "ended_at" if is_transactional else "stored_at", None)
        return came_at is not None and not what.delay_seconds and came_at < time

    # ---- final checks

    def check_nothing_is_left(self, controller, disk):
        """Check that the tables of an unused broker are as in a new one."""
        left = {
            **_left_by_connections(controller),
            **_left_by_members(controller.processors),
            "turns of the loop in a second": controller.server._loop.turns_lately > 200,
            "descriptors more than files": max(disk.open_files - disk.files, 0),
        }
        for what, count in left.items():
            if count:
                self._world.ledger.complain(f"when all clients had gone, {count} {what} were left")

    def check_no_rescue(self, controller):
        """Check that the sweep of the ending life has released no held pull that was overlooked."""
        holds = getattr(controller, "hold_service", None)  # missing if it could not start
        if holds is not None and holds.rescued_total:
            self._world.ledger.complain(f"{holds.rescued_total} waiting pulls were rescued")


def _left_by_connections(controller):
    server, holds, processors = controller.server, controller.hold_service, controller.processors
    lines = server.concurrency_limit.queues
    return {
        "connections": server.connections,
        "bytes in flight": server.in_flight_bytes,
        "unread bytes": server.unread_bytes,
        "readers of unread bytes": len(server.send_buffers._sizes)
        + len(server.send_buffers._since),
        "places of steps": sum(line._used + len(line._waiting) for line in lines),
        "waiting pulls": holds.hold_count,
        "queues with waiting pulls": holds.queue_count,
        "places of waiting pulls": holds._holds.used + holds._deferred.used,
        "deadlines": len(holds._deadlines),
        "arrivals": len(holds._arrivals),
        "send plans": len(processors.sends._cache),
        "sends that wait for the disk": processors.acknowledger.queue().size,
        "parked sends": processors.pending_sends._count + processors.pending_sends._bytes,
        "bytes of awaited answers": processors.pending_replies.bytes,
        "commits": int(controller.store.staged_batches.under_way is not None),
    }


def _left_by_members(processors):
    consumers, producers, room = (
        processors.consumers,
        processors.producers,
        processors.consumers._limits,
    )
    return {
        "members of groups": room._members,
        "clients with subscriptions": len(room._client_bytes),
        "consumers with groups": len(consumers._groups_of),
        "producers with groups": len(producers._groups_of),
        "bytes of subscriptions": room._group_bytes,
        "holders of locks": len(processors.locks._by_connection),
    }


def _hinders_wiping(trouble):
    if trouble.kind == "lack":
        return trouble.arguments["errno"] not in ("ENOSPC", "EDQUOT")
    return trouble.kind == "broken"


def _is_far_ahead(trouble):
    """Return whether the clock moves so far that messages expire."""
    return _is_ahead(trouble) and trouble.arguments["ahead_seconds"] > _KEPT_SECONDS


def _is_ahead(trouble):
    """Return whether the clock moves forward in this trouble."""
    return trouble.kind == "clock" and trouble.arguments["ahead_seconds"] > 0
