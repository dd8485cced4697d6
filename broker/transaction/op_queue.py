"""OpQueue: the half messages that have ended, according to the op messages read so far.

    add          an op message was read; it ends half messages, mostly one
    pop_ended    the check service is at a half message: has it ended?
    progress     the first op message that a restarted broker has to read again

An op message is done when the check service is past all its half messages; if the service already
is past them, as soon as the op message is added. `hold` prevents that for a half message that was
stored again while it was immune, because its producer ends it by its first offset.
"""

from __future__ import annotations

from collections.abc import Iterable


class OpQueue:
    """The op messages from one queue offset on."""

    def __init__(self, begin_offset: int) -> None:
        """Begin without op messages; ``begin_offset`` is that of the first to read."""
        self.next_offset = begin_offset
        """The op message to read next."""
        self._ended: dict[int, int] = {}
        """For each half message that has ended, the queue offset of its op message."""
        self._open: dict[int, int] = {}
        """The number of half messages not taken yet, by the queue offset of their op message."""
        self._held: set[int] = set()
        self._keeps_passed = True

    def add(self, op_offset: int, half_offsets: Iterable[int], passed: int) -> None:
        """Add an op message; half messages before ``passed`` are not taken any more unless held."""
        self.next_offset = op_offset + 1
        ended = self._ended
        count = 0
        for half_offset in half_offsets:
            if half_offset in ended:
                continue
            if half_offset >= passed or self._keeps_passed or half_offset in self._held:
                ended[half_offset] = op_offset
                count += 1
        if count:
            self._open[op_offset] = count

    def skip_to(self, op_offset: int) -> None:
        """Continue at a later op message, because those before it are lost."""
        self.next_offset = op_offset

    def pop_ended(self, half_offset: int) -> bool:
        """Return whether a half message has ended; if so, it no longer needs its op message."""
        op_offset = self._ended.pop(half_offset, None)
        if op_offset is None:
            return False
        left = self._open[op_offset] - 1
        if left:
            self._open[op_offset] = left
        else:
            del self._open[op_offset]
        return True

    def hold(self, half_offset: int) -> None:
        """Keep the op message of a passed half message, because it is stored again."""
        self._held.add(half_offset)

    def release(self, half_offset: int) -> None:
        """Undo the effect of `hold`, because the half message that was stored again has ended."""
        self._held.discard(half_offset)
        self.pop_ended(half_offset)

    def discard_passed(self, passed: int) -> None:
        """Discard op messages of passed half messages from now on, unless these are held.

        Until then all are kept: which half messages are held is unknown until the service has seen
        all that the queue had at the start.
        """
        self._keeps_passed = False
        self.pop_ended_before(passed)

    def pop_ended_before(self, half_offset: int) -> int:
        """Take all half messages before an offset that have ended; return how many have."""
        offsets = [at for at in self._ended if at < half_offset and at not in self._held]
        for at in offsets:
            self.pop_ended(at)
        return len(offsets)

    @property
    def ended_count(self) -> int:
        """The number of half messages that have ended and are not taken."""
        return len(self._ended)

    @property
    def progress(self) -> int:
        """The first op message that is still needed."""
        return min(self._open, default=self.next_offset)
