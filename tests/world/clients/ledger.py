"""The ledger: what must be true of clients, by what their listeners finished and
what brokers were told.

    committed past a message     by then a listener had finished it, or had given it back
    acknowledged to a producer   is stored, and finished by every group in the end, or among its
                                 dead letters
    orderly                      nothing begins before all that lies before it has ended, one
                                 listener a queue
    a message once more          only where something had happened that at-least-once allows this
                                 for

A reader is who must have every message: a group, or in BROADCASTING each machine of one. A place is
where a message lies: topic, broker, queue and offset. What lies where, the auditor finds out from
the brokers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf

_NOTICED_SECONDS = 2.0
"""So long after a broker has forgotten its locks, members may still begin with
what they were granted."""

_BELIEVED_SECONDS = 30.0
"""So long a member believes in a lock whose broker has told it of nothing since: its
connection may have died without a word."""


@dataclass(eq=False)
class Call:
    """A listener at work."""

    reader: Reader
    process: object
    queue: tuple
    offsets: list
    began_at: float


@dataclass(eq=False)
class Reader:
    """Who must have every message of some topics."""

    name: str
    group: str
    topics: tuple
    is_orderly: bool = False
    is_broadcasting: bool = False
    gives_back_after: float = inf
    """Seconds that a listener may have a message before it is given back."""

    tries_max: float = inf
    """So many times an orderly listener gets a message before it is a dead letter."""

    begun: dict = field(default_factory=lambda: defaultdict(list))  # when, by place
    firsts: dict = field(
        default_factory=lambda: defaultdict(list)
    )  # offset and time of each call, by queue
    finished: dict = field(default_factory=dict)  # when first, by place
    failed: dict = field(default_factory=lambda: defaultdict(list))  # when, by place
    bodies: set = field(default_factory=set)
    commits: list = field(default_factory=list)
    skipped: dict = field(default_factory=lambda: defaultdict(int))  # by queue, up to where
    calls: dict = field(default_factory=dict)
    begun_first: dict = field(default_factory=dict)  # when first, by body
    comes_again: set = field(default_factory=set)  # bodies that failed once, or took too long
    delivered: int = 0
    repeats: int = 0
    settled: int = 0
    """So many of what was delivered must not have been repeats, by what has happened till then."""

    def dealt_with(self, place):
        """When it was first so that the message at a place might be committed."""
        times = [self.finished.get(place, inf), *self.failed.get(place, ())]
        times += [begun + self.gives_back_after for begun in self.begun.get(place, ())]
        return min(times)


class Ledger:
    """All that is known of one story."""

    def __init__(self, world):
        self._world = world
        self.sent = {}  # topic by body
        self.acknowledged = {}  # place, or None, by body
        self.readers = {}
        self.stored = defaultdict(dict)  # by queue: body by offset
        self._disturbances = []  # until when, to whom
        self._forgot_locks = {}  # when last, by broker
        self._silenced = set()  # brokers whose connections may have died without a word

    def complain(self, what):
        """Something is not as it must be."""
        self._world.complain(what)

    def disturbed(self, seconds, group=None):
        """What a group, or any, begins before so many seconds are over, it may see once more."""
        self._disturbances.append((self._world.kernel.now + seconds, group))

    def silenced(self, name):
        """Connections to a broker have died, and nobody was told."""
        self._silenced.add(name)

    def broker_ended(self, name):
        """Who had which queue locked, it knows no more; nor the offsets that it had not saved."""
        self._forgot_locks[name] = self._world.kernel.now

    def _is_settled_since(self, group, time):
        """Whether nothing has happened since then by which a queue goes elsewhere."""
        return not any(until >= time and to in (None, group) for until, to in self._disturbances)

    # ---- producers

    def sends(self, body, topic):
        self.sent[body] = topic

    def is_acknowledged(self, body, place=None):
        self.acknowledged[body] = place

    # ---- listeners

    def reader(self, name, **more):
        """The one of this name; made, if there is none."""
        return self.readers.setdefault(name, Reader(name, **more))

    def begins(self, reader, process, queue, messages):
        """A listener gets messages of a queue."""
        now = self._world.kernel.now
        call = Call(reader, process, queue, [message.queue_offset for message in messages], now)
        if reader.is_orderly:
            self._check_alone(call)
            reader.firsts[queue].append((call.offsets[0], now))
        if call.offsets != sorted(set(call.offsets)):
            self.complain(f"{reader.name} got {call.offsets} of {queue} in this order")
        for message in messages:
            place = (*queue, message.queue_offset)
            if message.body not in self.sent:
                self.complain(
                    f"{reader.name} got what nobody has sent: {message.body[:40]} at {place}"
                )
            self._check_repeat(reader, place, message.body)
            reader.begun[place].append(now)
            reader.begun_first.setdefault(message.body, now)
        reader.calls[call] = None
        return call

    def _check_repeat(self, reader, place, body):
        """What is finished comes again only where something has happened since it first began.

        By the retry topic comes what has failed, or what a listener had for too long.
        """
        reader.delivered += 1
        is_given_back = place[0] == f"%RETRY%{reader.group}"
        is_repeat = place in reader.finished or (is_given_back and body in reader.bodies)
        reader.repeats += is_repeat
        since = reader.begun[place][0] if reader.begun[place] else reader.begun_first.get(body)
        is_settled = self._is_settled_since(
            reader.group, self._world.kernel.now if since is None else since
        ) and not (is_given_back and body in reader.comes_again)
        reader.settled += is_settled
        if is_repeat and is_settled:
            self.complain(f"{reader.name} got {place} once more, and nothing had happened")

    def ends(self, call, messages, done):
        """The listener has ended: so many of the first messages are finished."""
        now = self._world.kernel.now
        reader = call.reader
        del reader.calls[call]
        for number, message in enumerate(messages):
            place = (*call.queue, message.queue_offset)
            if number < done:
                reader.finished.setdefault(place, now)
                reader.bodies.add(message.body)
            else:
                reader.failed[place].append(now)
            if number >= done or now - call.began_at >= reader.gives_back_after:
                reader.comes_again.add(message.body)

    def _check_alone(self, call):
        for other in [each for each in call.reader.calls if each.queue == call.queue]:
            if not other.process.is_alive:
                del call.reader.calls[other]
            elif not self._may_both_be_at_it(other):
                self.complain(
                    f"{call.reader.name}: {call.process} and {other.process} are both at "
                    f"{call.queue}, with {call.offsets} and, since {other.began_at:.3f} s, "
                    f"{other.offsets}"
                )

    def _may_both_be_at_it(self, other):
        """Whether nothing need keep a second listener from a queue that another has."""
        if (
            other.reader.is_broadcasting
        ):  # nothing is locked: one consumer begins where another has ended
            return not self._is_settled_since(other.reader.group, other.began_at)
        broker = other.queue[1]
        noticed = _BELIEVED_SECONDS if broker in self._silenced else _NOTICED_SECONDS
        return self._forgot_locks.get(broker, -inf) >= other.began_at - noticed

    # ---- offsets

    def committed(self, group, queue, queue_offset):
        """A broker has taken a group's offset."""
        reader = self.readers.get(group)
        if reader is not None:
            reader.commits.append((self._world.kernel.now, queue, queue_offset))

    def skips(self, group, queue, queue_offset):
        """Somebody has a group go on at this offset: what lies before it need not be finished."""
        for reader in self.readers.values():
            if reader.group == group:
                reader.skipped[queue] = max(reader.skipped[queue], queue_offset)

    # ---- when all is quiet

    def audited(self, queue, queue_offset, body):
        """That lies there."""
        self.stored[queue][queue_offset] = body

    def outstanding(self):
        """What must still come to some reader: reader and body."""
        return [
            f"{reader.name}: {_name(body)} of {queue[0]}"
            for reader in self.readers.values()
            for queue, body in self._of(reader)
            if body not in reader.bodies and not self._is_settled(reader, body)
        ]

    def _of(self, reader):
        """Queue and body of all that a reader must have."""
        for queue, bodies in self.stored.items():
            if queue[0] in reader.topics:
                for offset, body in bodies.items():
                    if offset >= reader.skipped[queue]:
                        yield queue, body
        lie = {body for bodies in self.stored.values() for body in bodies.values()}
        for body in self.acknowledged:
            if self.sent[body] in reader.topics and body not in lie:
                yield (self.sent[body],), body

    def _is_settled(self, reader, body):
        if reader.is_broadcasting:
            return any(
                (*queue, offset) in reader.failed
                for queue, bodies in self.stored.items()
                for offset, found in bodies.items()
                if found == body
            )
        dead = f"%DLQ%{reader.group}"
        return any(
            body in bodies.values() for queue, bodies in self.stored.items() if queue[0] == dead
        )

    def counts(self):
        """How much came to readers, and how much of it once more."""
        readers = self.readers.values()
        return {
            "messages came to listeners or programs that poll": sum(
                each.delivered for each in readers
            ),
            "of these were repeats": sum(each.repeats for each in readers),
            "must not have been, by what had happened till then, and were not": sum(
                each.settled for each in readers
            ),
        }

    def check(self):
        """Look at all that was written down."""
        for body, place in self.acknowledged.items():
            if place is not None and self.stored[place[:3]].get(place[3]) != body:
                self.complain(f"{_name(body)} was acknowledged at {place}, where it is not")
        for reader in self.readers.values():
            self._check_commits(reader)
            if reader.is_orderly:
                self._check_order(reader)

    def _check_commits(self, reader):
        passed = {}
        for time, queue, queue_offset in reader.commits:
            for offset in range(max(passed.get(queue, 0), reader.skipped[queue]), queue_offset):
                place = (*queue, offset)
                if offset in self.stored[queue] and reader.dealt_with(place) > time:
                    self.complain(
                        f"{reader.name} committed {queue_offset} of {queue} at {time:.6f} s, "
                        f"and {offset} was dealt with at {reader.dealt_with(place):.6f} s"
                    )
            passed[queue] = max(passed.get(queue, 0), queue_offset)

    def _check_order(self, reader):
        for queue, calls in reader.firsts.items():
            offsets = sorted(
                offset for offset in self.stored[queue] if offset >= reader.skipped[queue]
            )
            ends = accumulate((self._over(reader, (*queue, offset)) for offset in offsets), max)
            end_before = dict(zip(offsets[1:], ends, strict=False))
            for offset, time in calls:
                if end_before.get(offset, 0.0) > time:
                    self.complain(
                        f"{reader.name} got {offset} of {queue} at {time:.6f} s, and something "
                        f"before it had its end at {end_before[offset]:.6f} s"
                    )

    def _over(self, reader, place):
        """When an orderly reader was first through with it."""
        failed = reader.failed.get(place, ())
        given_up_at = failed[reader.tries_max - 1] if len(failed) >= reader.tries_max else inf
        return min(reader.finished.get(place, inf), given_up_at)


def _name(body):
    return bytes(body[:24]).rstrip(b".").decode()
