"""Moves: an operator or a user sets a group to another offset; checks of the result.

    back       all messages from the offset on begin again, or for the first time
    forward    no earlier message begins any more, a moment later

A message that a departed member is still processing counts as finished when it ends: if the group
is moved to its current position, this cannot be told from an end before the move.

Both hold for a reported move, unless another one of the same queue came at the same time or later,
or its broker was down or unreachable around that time: of two concurrent requests, or requests to a
dying broker, one wins.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from math import inf

_BEFORE_SECONDS = 60.0
_BEHIND_SECONDS = 15.0
"""Seconds before and after a move within which a trouble may prevent it: connections may have died
unnoticed, and offsets reach the disk only after seconds."""

_GRACE_SECONDS = 4.0
"""Seconds by which a message that was already on its way to a listener may begin late."""


@dataclass(eq=False)
class Move:
    """One move; it counts if it was stored and reported."""

    group: str
    queue: tuple
    began_at: float
    queue_offset: int | None = None
    ended_at: float = inf

    def is_over_before(self, other):
        """Return whether another move has begun after this one had ended."""
        return self.ended_at < other.began_at


class Moves:
    """All moves of a story."""

    def __init__(self, world):
        self._world = world
        self._moves = []
        self._troubles = []

    def troubled(self, seconds, broker=None):
        """Record that a broker, or any, may be unreachable for this time."""
        now = self._world.kernel.now
        self._troubles.append((now, now + seconds, broker))

    def is_untroubled(self, broker, since, until):
        """Return whether a broker was reachable from one time to another."""
        return not any(
            began <= until and ended >= since
            for began, ended, name in self._troubles
            if name in (None, broker)
        )

    @contextlib.contextmanager
    def moving(self, group, queues):
        """Return a function that records a group's reported new offset in a queue."""
        kernel = self._world.kernel
        moves = {queue: Move(group, queue, kernel.now) for queue in queues}
        self._moves += moves.values()

        def moved(queue, queue_offset):
            if queue in moves:
                moves[queue].queue_offset = queue_offset

        yield moved
        for move in moves.values():
            move.ended_at = kernel.now

    def disturb(self, group, queue):
        """Record a change of the group's offset without any promise."""
        move = Move(group, queue, self._world.kernel.now)
        self._moves.append(move)
        return move

    def is_where_it_was(self, group, queue, since, but=None):
        """Return whether no move but one has changed a group's offset in a queue since a time."""
        return not any(
            move.group == group and move.queue == queue and move.ended_at > since
            for move in self._moves
            if move is not but
        )

    def of(self, group):
        """Return the moves of a group whose promises hold."""
        return [move for move in self._moves if move.group == group and self._counts(move)]

    def _counts(self, move):
        rivals = (each for each in self._moves if each is not move and each.group == move.group)
        return (
            move.queue_offset is not None
            and all(each.is_over_before(move) for each in rivals if each.queue == move.queue)
            and self.is_untroubled(
                move.queue[1], move.began_at - _BEFORE_SECONDS, move.ended_at + _BEHIND_SECONDS
            )
        )

    def missing(self, reader, offsets):
        """Return the messages that a reader must get again and has not; ``offsets`` returns a
        queue's."""
        for move in self.of(reader.group):
            for offset in offsets(move.queue):
                place = (*move.queue, offset)
                begun = reader.begun.get(place, ())
                if reader.ended_behind(place, move.began_at, move.ended_at):
                    continue
                if offset >= move.queue_offset and not any(at >= move.began_at for at in begun):
                    yield (
                        f"{reader.name}: {offset} of {move.queue}, as it was moved to "
                        f"{move.queue_offset} at {move.ended_at:.6f} s; it began at {begun}"
                    )

    def check(self, reader, offsets, complain):
        """Check that a reader got nothing from before the offset to which it was moved."""
        for move in self.of(reader.group):
            for offset in offsets(move.queue):
                begun = reader.begun.get((*move.queue, offset), ())
                late = [at for at in begun if at > move.ended_at + _GRACE_SECONDS]
                if offset < move.queue_offset and late:
                    complain(
                        f"{reader.name} was moved to {move.queue_offset} of {move.queue} at "
                        f"{move.ended_at:.6f} s, and {offset} has begun at {late}"
                    )
