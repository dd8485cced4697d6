"""Messages that groups have popped: when each may come again, and what must come again.

popped ──> invisible until its time is over ──> must come again
      ├──> acknowledged in time             ──> does not come again, unless the broker has crashed
      └──> invisible time changed           ──> invisible until the new time is over

A crash may let any message come again; a group in order gets acknowledged messages again together
with an earlier one that is not acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass

from world.acts import QUEUES
from world.acts.pops import POP_GROUPS
from world.acts.pulls import Asked
from world.messages import number_of

from rmq_spark.wire.pop import NORMAL


@dataclass(eq=False)
class Popped:
    """The known state of a message in a group; times in ms are those of the broker's clock."""

    first_asked_at: float
    popped: object = None  # its last delivery, with the receipt handle
    popped_at: float = 0.0
    hidden_until_ms: int = 0  # 0 if unknown
    is_acked: bool = False  # the last delivery was acknowledged in time
    is_asked: bool = False  # an acknowledgement of the last delivery was sent
    was_asked: bool = False  # an acknowledgement of any delivery was sent
    may_be_doubled: bool = False


class Pops:
    """All messages that were popped, by group and message."""

    def __init__(self, ledger, world):
        self._ledger = ledger
        self._world = world
        self._of = {}
        self.topics = {}  # (group, topic) -> begin and end of pops without a response

    def asked(self, group, topic):
        self.topics.setdefault((group, topic), [])

    def unanswered(self, group, topic, asked_at):
        """Record a pop without a response: it may have taken messages."""
        self.topics[group, topic].append((asked_at, self._world.kernel.now))

    def usable(self, group):
        """Return the messages that members of a group may still acknowledge."""
        return [each for (name, _), each in self._of.items() if name == group and not each.is_asked]

    def saw(self, popped, asked_at):
        """Record a message that a group has popped; return its known state."""
        message, group = popped.message, popped.group
        sent = self._ledger.sent.get(number_of(message.body))
        if sent is None or sent.body != message.body or sent.topic != message.topic:
            self._ledger.complain(f"{group} popped {message}, which nobody sent")
        if popped.receipt.retry == NORMAL:
            self._ledger.saw(message)
            if not self._wants(group, sent):
                self._ledger.complain(f"{group} popped {sent}, which its filter rejects")
        known = self._of.get((group, sent))
        if known is None:
            known = self._of[group, sent] = Popped(
                self._first_asked_at(group, sent, asked_at),
                may_be_doubled=sent.is_moved,  # it may be in its queue twice
            )
        else:
            is_known = self._is_known(known)
            if is_known and popped.receipt.pop_time < known.popped.receipt.pop_time:
                return known  # the late response of an earlier delivery
            if is_known:
                self._check_again(known, sent, popped)
        if POP_GROUPS[group].is_in_order:
            self._check_order(sent, popped)
        known.popped, known.popped_at = popped, self._world.kernel.now
        known.is_acked = known.is_asked = False
        known.hidden_until_ms = _end_of(popped.receipt)
        return known

    def _first_asked_at(self, group, sent, asked_at):
        """Return when the first pop was sent that can have taken a message."""
        unanswered = self.topics[group, sent.topic]
        return min([asked_at, *(begin for begin, end in unanswered if end >= sent.sent_at)])

    def _wants(self, group, sent):
        return Asked(sent.topic, sent.queue_id, 0, POP_GROUPS[group].wanted).wants(sent)

    def _is_known(self, known):
        watch = self._world.watch
        return not known.may_be_doubled and watch.is_undisturbed_since(known.first_asked_at)

    def _check_again(self, known, sent, popped):
        what = f"{sent} came to {popped.group} again at {popped.receipt.pop_time} ms"
        if known.is_acked:
            if not POP_GROUPS[popped.group].is_in_order:
                self._ledger.complain(f"{what}, and was acknowledged")
        elif popped.receipt.pop_time < known.hidden_until_ms and not known.is_asked:
            self._ledger.complain(f"{what}, and was invisible until {known.hidden_until_ms} ms")

    def _check_order(self, sent, popped):
        for (group, other), known in self._of.items():
            if (
                group == popped.group
                and (other.topic, other.queue_id) == (sent.topic, sent.queue_id)
                and known.popped is not None
                and known.popped.receipt.pop_time < popped.receipt.pop_time < known.hidden_until_ms
                and not known.is_asked
                and self._is_known(known)
            ):
                self._ledger.complain(f"{sent} came to {group}, and {other} before is invisible")

    # ---- acknowledgements and changes of the invisible time

    def acking(self, known):
        """Record that an acknowledgement is about to be sent."""
        known.is_asked = known.was_asked = True

    def acked(self, known, popped, code):
        """Record the response to an acknowledgement; ``code`` is None without one."""
        if known.popped is not popped:
            return  # delivered again meanwhile
        if code == 0:
            known.is_acked = self._now_ms() <= known.hidden_until_ms
        elif code is not None:
            known.is_asked = False
            if self._is_known(known) and not self._world.watch.may_expire:
                self._ledger.complain(f"the acknowledgement of {popped} was answered {code}")

    def changing(self, known):
        """Record that a change of the invisible time is about to be sent."""
        end_ms, known.hidden_until_ms = known.hidden_until_ms, 0
        return known.popped, end_ms

    def changed(self, known, popped, end_ms, code):
        """Record the response to a change; if it succeeded, ``popped`` has the new receipt."""
        if code is None or self._now_ms() > end_ms:
            known.may_be_doubled = True
        if known.popped is popped and code is not None:
            known.hidden_until_ms = end_ms if code else _end_of(popped.receipt)

    def _now_ms(self):
        return int(self._world.threads.wall_seconds() * 1_000)

    # ---- missing messages

    def pending(self):
        """Yield (group, message) for those that must still come, or come again."""
        if self._world.watch.may_expire:
            return
        ledger, watch = self._ledger, self._world.watch
        for group, topic in self.topics:
            for queue_id in range(QUEUES):
                for sent in ledger.expected(topic, queue_id, 0).values():
                    known = self._of.get((group, sent))
                    if known is None:
                        if self._wants(group, sent):
                            yield group, sent
                    elif not known.was_asked or (
                        not known.is_asked
                        and (self._world.story.is_sync or not watch.crashed_since(known.popped_at))
                    ):
                        yield group, sent

    def check_all_came(self):
        """Check, long after all invisible times, that all messages came, and came again."""
        for group, sent in self.pending():
            known = self._of.get((group, sent))
            how = "at all" if known is None else f"again after {known.popped}"
            self._ledger.complain(f"{sent} never came to {group} {how}")


def _end_of(receipt):
    return receipt.pop_time + receipt.invisible_time
