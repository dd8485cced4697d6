"""The ledger of clients: checks what their listeners finished and what brokers were told.

    committed past a message     by then a listener had finished it, or had sent it back
    acknowledged to a producer   is stored, and finished by every group in the end, or among its
                                 dead letters
    orderly                      nothing begins before all earlier messages have ended, one
                                 listener a queue
    a message again              only after an event for which at-least-once allows this
    finished before a shutdown   is not delivered again to a group's only member, or to a machine
                                 of a group in BROADCASTING
    a group that was moved       continues there (`moves`)
    messages that a filter drops need not be delivered (`filters`)

For a recreated topic only messages count, not places: messages sent afterwards are delivered to
all. But an offset that was under way to a broker at that time is stored for the new queue, and one
in the file of a machine that did not consume the topic stays there: nobody can tell the difference,
and a reader that begins there skips earlier messages.

A reader must get every message: a group, or in BROADCASTING each machine of one. A place is where a
message is stored: topic, broker, queue and offset. The auditor reads from the brokers what is
stored where.
"""

from collections import defaultdict
from functools import partial
from itertools import accumulate
from math import inf

from world.clients.moves import Moves
from world.clients.pops import Pops
from world.clients.readers import Call, Reader
from world.clients.transactions import Transactions

_NOTICED_SECONDS = 2.0
"""Seconds for which members may still begin messages under locks that a broker has lost in a
restart."""

_BELIEVED_SECONDS = 30.0
"""Seconds for which a member trusts a lock without a response from the broker, whose connection may
have died unnoticed."""

_KEPT_SECONDS = 15.0
"""Seconds for which a broker may have an offset in memory only."""

_BEGUN_SECONDS = 5.0
"""Seconds within which a started member has the first offsets of its queues."""

_TOLD_SECONDS = 1.0
"""Seconds by which a consumer may notice late that a listener has ended."""


class Ledger:
    """The state of one story."""

    def __init__(self, world):
        self._world = world
        self.sent = {}  # topic by body
        self.acknowledged = {}  # place, or None, by body
        self.readers = {}
        self.stored = defaultdict(dict)  # by queue: body by offset
        self._disturbances = []  # end time and group
        self._disturbed_at = defaultdict(float)  # time of the last one by group
        self._forgot_locks = {}  # time of the last loss by broker
        self._held_up_until = {}  # by broker
        self._silenced = set()  # brokers whose connections may have died unnoticed
        self.moves = Moves(world)
        self.pops = Pops(self, world)
        self.transactions = Transactions(self, world)
        self.tags = {}  # by body, if it has a tag
        self.sent_at = {}  # by body
        self.recreated_topics = {}  # time of the last recreation by topic
        self.unreadable = {}  # time of the first log line by unreadable place

    def complain(self, what):
        """Report a broken promise."""
        self._world.complain(what)

    def disturbed(self, seconds, group=None):
        """Record that a group, or any, may see messages again that begin within these seconds."""
        self._disturbances.append((self._world.kernel.now + seconds, group))
        self._disturbed_at[group] = self._world.kernel.now

    def silenced(self, name):
        """Record that connections to a broker have died unnoticed."""
        self._silenced.add(name)

    def held_up(self, name, seconds):
        """Record that requests to a broker are delayed for this time."""
        self._held_up_until[name] = self._world.kernel.now + seconds + _NOTICED_SECONDS

    def broker_ended(self, name):
        """Record a broker's end: it forgets its queue locks, and offsets that it has not saved."""
        now = self._forgot_locks[name] = self._world.kernel.now
        for reader in self.readers.values():
            for queue, (time, _) in list(reader.first_commits.items()):
                if queue[1] == name and now - time < _KEPT_SECONDS:
                    del reader.first_commits[queue]

    def _is_settled_since(self, group, time):
        """Return whether nothing has happened since then that moves a queue to another member."""
        return not any(until >= time and to in (None, group) for until, to in self._disturbances)

    def is_undisturbed_since(self, time):
        """Return whether no trouble has lasted until then, or begun later."""
        return self._is_settled_since(None, time)

    # ---- producers

    def sends(self, body, topic, tag=None):
        self.sent[body] = topic
        self.tags[body] = tag
        self.sent_at[body] = self._world.kernel.now

    def is_acknowledged(self, body, place=None):
        self.acknowledged[body] = place

    # ---- listeners

    def reader(self, name, **more):
        """Return the reader of this name; create it on first use."""
        return self.readers.setdefault(name, Reader(name, **more))

    def begins(self, reader, process, queue, messages):
        """Record that a listener gets messages of a queue."""
        now = self._world.kernel.now
        call = Call(reader, process, queue, [message.queue_offset for message in messages], now)
        has_places = queue[0] not in self.recreated_topics
        if reader.is_orderly and has_places:
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
            self.transactions.saw(message.body, f"{place}, for {reader.name}")
            if self.sent.get(message.body) not in self.recreated_topics:
                self._check_filter(reader, process, place, message.body)
                self._check_floor(reader, queue, message.queue_offset)
                self._check_repeat(reader, place, message.body)
            reader.begun[place].append(now)
            reader.came_as[place] = message.body
            reader.begun_first.setdefault(message.body, now)
        reader.calls[call] = None
        return call

    def _check_filter(self, reader, process, place, body):
        topic, tag, sent_at = self.sent[body], self.tags[body], self.sent_at[body]
        host, now = process.host, self._world.kernel.now
        if place[0] == topic and reader.filters.leave_out(topic, tag, host, sent_at, now):
            self.complain(f"{process} got {place}, of tag {tag}, which it does not want")

    def _check_floor(self, reader, queue, offset):
        """Check that messages finished before a clean shutdown do not begin again."""
        since, floor = reader.floors.get(queue, (0.0, 0))
        now, broker = self._world.kernel.now, queue[1]
        if (
            offset < floor
            and self.moves.is_untroubled(broker, since - _BELIEVED_SECONDS, now)
            and self.moves.is_where_it_was(reader.group, queue, since)
        ):
            self.complain(
                f"{reader.name} got {offset} of {queue} once more, which was finished, as all "
                f"before {floor} was, when it was shut down at {since:.6f} s"
            )

    def is_made_again(self, topic, old_ends):
        """Record a recreated topic, for which a machine in BROADCASTING has the old offsets in a
        file.

        If the machine does not consume the topic now, or not all of its queues, it continues at
        those offsets.
        """
        self.recreated_topics[topic] = self._world.kernel.now
        for reader in self.readers.values():
            for queue, offset in old_ends.items() if reader.is_broadcasting else ():
                reader.keeps_old_offset(queue, offset)

    def leaves_busy(self, reader, process):
        """Record that a member was shut down while its listeners are still running."""
        for call in [each for each in reader.calls if each.process is process]:
            for offset in call.offsets:
                reader.left_at_it[(*call.queue, offset)] = self._world.kernel.now

    def was_shut_down(self, reader, finished, began_at):
        """Record a reader's clean shutdown, and the offsets up to which it had finished each queue
        before."""
        for queue, offset in finished.items():
            is_first_time = self.moves.is_where_it_was(reader.group, queue, 0.0)
            if queue[0] not in self.recreated_topics and is_first_time:
                reader.floors[queue] = began_at, offset

    def finished_by(self, reader):
        """Return how far a reader has finished each queue, as far as its consumer knows."""
        now = self._world.kernel.now - _TOLD_SECONDS
        since = max(self._disturbed_at[None], self._disturbed_at[reader.group])
        queues = dict.fromkeys(place[:3] for place in reader.begun)
        return {queue: reader.finished_up_to(queue, since, now) for queue in queues}

    def _check_repeat(self, reader, place, body):
        """Check that a finished message comes again only if a disturbance has happened since it
        first began. Failed messages, and those that a listener held too long, come through the
        retry topic."""
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
        """Record the end of a listener's call: its first ``done`` messages are finished."""
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
        """Return whether a second listener may have a queue that another one is processing."""
        if (
            other.reader.is_broadcasting
        ):  # without locks, one consumer begins where another has ended
            return not self._is_settled_since(other.reader.group, other.began_at)
        broker = other.queue[1]
        noticed = _BELIEVED_SECONDS if broker in self._silenced else _NOTICED_SECONDS
        return self._forgot_locks.get(broker, -inf) >= other.began_at - noticed

    # ---- offsets

    def committed(self, group, queue, queue_offset):
        """Record a group's offset that a broker has stored."""
        reader, now = self.readers.get(group), self._world.kernel.now
        if reader is None:
            return
        if queue[0] in self.recreated_topics:
            if self.recreated_topics[queue[0]] <= now <= self._held_up_until.get(queue[1], -inf):
                reader.keeps_old_offset(queue, queue_offset)
        else:
            reader.commits.append((now, queue, queue_offset))
            reader.first_commits.setdefault(queue, (now, queue_offset))

    def check_committed(self, group, queue, queue_offset, since):
        """Check that a group's offset has been stored since a time."""
        reader = self.readers.get(group)
        if reader is None or queue[0] in self.recreated_topics:
            return
        if not any(
            time >= since and (where, offset) == (queue, queue_offset)
            for time, where, offset in reader.commits
        ):
            self.complain(f"{group} was to go on at {queue_offset} of {queue}, which nobody stored")

    def is_present(self, reader):
        """Record the start of a member. A machine in BROADCASTING whose topic was recreated has the
        old offsets: if it has received no new message, it continues at a queue's end."""
        now = self._world.kernel.now
        for topic in reader.topics if reader.is_broadcasting else ():
            since = self.recreated_topics.get(topic, inf)
            if since < now and not any(
                self.sent.get(body) == topic and self.sent_at[body] > since
                for body in reader.bodies
            ):
                reader.skipped_until[topic] = now + _BEGUN_SECONDS

    def skips(self, group, queue, queue_offset):
        """Record that a group continues at this offset: earlier messages need not be finished."""
        for reader in self.readers.values():
            if reader.group == group:
                reader.skipped[queue] = max(reader.skipped[queue], queue_offset)
                reader.skipped_until[queue[0]] = self._world.kernel.now
                reader.floors.pop(queue, None)

    def cannot_be_read(self, place):
        """Record a consumer's log line about an unreadable message at a place."""
        self.unreadable.setdefault(place, self._world.kernel.now)

    def was_lied_to(self, name):
        """Record that a broker has made wrong claims: its content and commits up to now do not
        count."""
        now, groups = self._world.kernel.now, {reader.group for reader in self.readers.values()}
        own = [(f"%RETRY%{group}", name, 0) for group in groups]
        queues = [queue for queue in (*self._world.queues(), *own) if queue[1] == name]
        for reader in self.readers.values():
            reader.commits = [each for each in reader.commits if each[1][1] != name]
            for queue in queues:
                end = self._world.end_of(queue)
                reader.skipped[queue] = max(reader.skipped[queue], end)
                reader.floors.pop(queue, None)
                reader.first_commits[queue] = now, end
                if queue[0] in self.recreated_topics:
                    reader.skipped_until[queue[0]] = now

    # ---- final checks

    def audited(self, queue, queue_offset, body):
        """Record a stored message found by the audit."""
        self.stored[queue][queue_offset] = body
        self.transactions.saw(body, f"{queue} at {queue_offset}")

    def outstanding(self):
        """Return the messages that must still be delivered, as reader and body."""
        readers = self.readers.values()
        return (
            [
                f"{reader.name}: {_name(body)} of {queue[0]}"
                for reader in readers
                for queue, body in self._of(reader)
                if body not in reader.bodies and not self._is_settled(reader, body)
            ]
            + [
                missing
                for reader in readers
                if not reader.is_broadcasting
                for missing in self.moves.missing(reader, partial(self._offsets_for, reader))
            ]
            + [
                f"{reader.name}: an offset of {queue}"
                for reader in readers
                for queue in self._world.queues()
                if queue[0] not in self.recreated_topics and reader.lacks_offset(queue)
            ]
            + self.pops.outstanding(self.stored)
            + self.transactions.outstanding()
        )

    def _of(self, reader):
        """Return queue and body of all messages that a reader must get."""
        for queue, bodies in self.stored.items():
            if queue[0] in reader.topics and queue[0] not in self.recreated_topics:
                for offset, body in bodies.items():
                    if offset >= reader.begins_at(queue) and not self.may_pass_over(reader, body):
                        yield queue, body
        places = {
            body: (*queue, offset)
            for queue, bodies in self.stored.items()
            for offset, body in bodies.items()
        }
        for body in self.acknowledged:
            topic = self.sent[body]
            if topic in self.recreated_topics:
                since = max(self.recreated_topics[topic], reader.skipped_until.get(topic, 0.0))
                must_come = self.sent_at[body] > since and not reader.may_have_begun_behind(
                    places.get(body)
                )
            else:
                must_come = body not in places
            if topic in reader.topics and must_come and not self.may_pass_over(reader, body):
                yield (topic,), body

    def may_pass_over(self, reader, body):
        """Return whether a member's filter left out this message when it was stored."""
        topic, tag, sent_at = self.sent[body], self.tags[body], self.sent_at[body]
        return reader.filters.may_leave_out(topic, tag, sent_at)

    def _offsets_for(self, reader, queue):
        """Return the offsets of all messages in a queue that a reader must get."""
        if queue[0] in self.recreated_topics or queue[0] not in reader.topics:
            return []
        return [
            offset
            for offset, body in sorted(self.stored[queue].items())
            if not self.may_pass_over(reader, body)
        ]

    def _is_settled(self, reader, body):
        if reader.is_broadcasting:
            return any(
                (*queue, offset) in reader.failed or (*queue, offset) in self.unreadable
                for queue, bodies in self.stored.items()
                for offset, found in bodies.items()
                if found == body
            )
        dead = f"%DLQ%{reader.group}"
        return any(
            body in bodies.values() for queue, bodies in self.stored.items() if queue[0] == dead
        )

    def counts(self):
        """Return the number of deliveries, and of redeliveries."""
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
        """Check all records."""
        for body, place in self.acknowledged.items():
            if place is None or place[0] in self.recreated_topics:
                continue
            if self.stored[place[:3]].get(place[3]) != body:
                self.complain(f"{_name(body)} was acknowledged at {place}, where it is not")
        self.transactions.check_repeats(self.stored)
        for reader in self.readers.values():
            self._check_places(reader)
            self._check_commits(reader)
            if not reader.is_broadcasting:
                self.moves.check(reader, partial(self._offsets_for, reader), self.complain)
            if reader.is_orderly:
                self._check_order(reader)

    def _check_places(self, reader):
        """Check that each message is stored at the place that its reader saw."""
        renumbered = self._world.renumbered
        for place, body in reader.came_as.items():
            if (
                place[0] not in self.recreated_topics
                and place[1] not in renumbered
                and self.stored[place[:3]].get(place[3]) != body
            ):
                self.complain(f"{reader.name} got {_name(body)} at {place}, where it is not")

    def _check_commits(self, reader):
        passed = {}
        for time, queue, queue_offset in reader.commits:
            first = max(passed.get(queue, 0), reader.begins_at(queue))
            for offset in sorted(
                each for each in self.stored[queue] if first <= each < queue_offset
            ):
                place = (*queue, offset)
                if not self._must_be_finished(reader, queue, offset):
                    continue
                if min(reader.dealt_with(place), self.unreadable.get(place, inf)) > time:
                    self.complain(
                        f"{reader.name} committed {queue_offset} of {queue} at {time:.6f} s, "
                        f"and {offset} was dealt with at {reader.dealt_with(place):.6f} s"
                    )
            passed[queue] = max(passed.get(queue, 0), queue_offset)

    def _must_be_finished(self, reader, queue, offset):
        body = self.stored[queue].get(offset)
        return body is not None and not (
            queue[0] == self.sent.get(body) and self.may_pass_over(reader, body)
        )

    def _check_order(self, reader):
        for queue, calls in reader.firsts.items():
            offsets = sorted(
                offset
                for offset in self.stored[queue]
                if offset >= reader.begins_at(queue)
                and self._must_be_finished(reader, queue, offset)
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
        """Return when an orderly reader first finished this place."""
        failed = reader.failed.get(place, ())
        given_up_at = failed[reader.tries_max - 1] if len(failed) >= reader.tries_max else inf
        unreadable_at = self.unreadable.get(place, inf)
        return min(reader.finished.get(place, inf), given_up_at, unreadable_at)


def _name(body):
    return bytes(body[:24]).rstrip(b".").decode()
