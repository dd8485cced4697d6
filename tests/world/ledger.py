"""The ledger: checks a broker against all that its clients have seen of it.

Acts record their requests and responses; the ledger complains at once about what cannot be: a
message that is lost, altered, in two places, in another's place, out of order, too early, or found
although it was refused or deleted; or one that a pull has skipped.

    acknowledged by a promise to be on the disk, or seen ──> must be found, whatever happens
    acknowledged without that promise                    ──> must be found unless the power fails
    neither                                              ──> may be there or not, once

`life_ended` records what a crash may take.
"""

from collections import defaultdict

from world.batches import Batches
from world.messages import Sent, body_of, number_of
from world.pops import Pops
from world.returns import Returns
from world.stage import Broken

from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.message.properties import decode_properties

_NOT_DELIVERED = ("WAIT", "DELAY")
_OWN_TOPICS = ("%RETRY%", "%DLQ%")


class Queue:
    """A queue of a topic as clients know it, since the topic was created."""

    def __init__(self, gaps_from):
        self.at = {}  # queue offset -> message, acknowledged or seen there
        self.must = {}  # messages that must be found from now on -> since when
        # messages acknowledged before a flush that a kill has left in memory
        self.in_memory = set()
        self.gaps = set()  # offsets that a power loss has left without a message
        self.gaps_from = gaps_from  # from this offset on, the next audit may find more gaps
        self.connections = {}  # connection -> its last message seen here, and the offset

    @property
    def known_end(self):
        return max(self.at, default=-1) + 1

    @property
    def certain_end(self):
        """Return the offset past which no consumer can be."""
        return max(self.must, default=-1) + 1


class Ledger:
    """The state of a broker as far as clients know it."""

    def __init__(self, world, *, is_sync):
        self._world = world
        self._is_sync = is_sync
        self.sent = {}
        self.queues = defaultdict(self._new_queue)
        self._has_lost_power = False
        self.generations = defaultdict(int)
        self.uncertain_topics = set()  # being deleted, or the result of the deletion is unknown
        self.returns = Returns(self, world)
        self.batches = Batches(self)
        self.pops = Pops(self, world)
        self.life = 0
        self._wiped = []  # wiped in this life

    def complain(self, what):
        """Report a broken promise."""
        raise Broken(f"at {self._world.kernel.now:.6f} s, in life {self._world.lives}: {what}")

    # ---- sends

    def send(self, connection, topic, queue_id, size, properties, *, delay_seconds=0.0):
        """Record a message that is about to be sent."""
        number = len(self.sent) + 1
        sent = self.sent[number] = Sent(
            number=number,
            topic=topic,
            queue_id=queue_id,
            body=body_of(number, size),
            properties={**properties, "number": str(number % 7)},
            connection=connection,
            sent_at=self._world.kernel.now,
            generation=self.generations[topic],
            delay_seconds=delay_seconds,
            is_ambiguous=topic in self.uncertain_topics,
        )
        return sent

    def prepare(self, connection, topic, queue_id, size, properties):
        """Record a half message that is about to be sent; it must not be visible before
        its commit."""
        sent = self.send(connection, topic, queue_id, size, properties)
        sent.end = "open"
        return sent

    def decide(self, sent, end):
        """Record a producer's decision on a transaction."""
        sent.end, sent.decided_at = end, self._world.kernel.now

    def checked(self, number):
        """Return the message of a transaction that the broker checks."""
        sent = self.sent.get(number)
        if sent is None or sent.end is None:
            self.complain(f"a check of {number} is about no transaction")
        return sent

    def stage(self, batch, topic, queue_id, size, properties):
        """Record a row that is about to be staged; it must not be visible before its batch is
        committed."""
        sent = self.send(batch, topic, queue_id, size, properties)
        sent.state, sent.batch = "staged", batch
        return sent

    @property
    def may_expire(self):
        """Record that the oldest messages may expire."""
        return self._world.watch.may_expire

    def stored(self, sent, queue_offset, *, waits=True):
        """Record an acknowledged message at this place; with ``waits`` it is promised to be on the
        disk."""
        is_certain = not self._is_sync or waits
        is_certain |= sent.batch is not None
        if sent.state == "unknown" and not is_certain:
            return  # reported after a crash, which may have lost it
        sent.state = "stored"
        sent.is_certain = is_certain
        sent.stored_at = self._world.kernel.now
        if sent.is_moved or self._is_of_the_past(sent):
            return
        self._put(sent, queue_offset)
        if sent.is_certain:
            self.queues[sent.topic, sent.queue_id].must[queue_offset] = self._world.kernel.now

    def refused(self, sent):
        """Record that the broker refused to store the message."""
        if sent.seen:
            self.complain(f"{sent} was seen, and then refused")
        sent.state = "refused"

    def refused_without_room(self, sent):
        """Record a refusal for lack of disk space; the broker has wiped the written bytes, but not
        flushed."""
        if self._world.watch.can_wipe:
            self.refused(sent)
            self._wiped.append(sent)
        else:
            self.unknown(sent)

    def unknown(self, sent):
        """Record that the result of a send is unknown."""
        if sent.state == "under way":
            sent.state = "unknown"

    # ---- received messages

    def saw(self, message):
        """Record a message that a client received from a queue; return which one it is."""
        sent = self.sent.get(number_of(message.body))
        where = f"{message.topic}/{message.queue_id} at {message.queue_offset}"
        if sent is None:
            self.complain(f"in {where} is a message that nobody sent: {message.body[:40]!r}")
        self._check_content(sent, message, where)
        self._check_visible(sent, where)
        if message.topic.startswith(_OWN_TOPICS):
            self.returns.saw(sent, message, where)
            self._see(
                message.topic,
                message.queue_id,
                message.queue_offset,
                (sent, message.reconsume_times),
            )
            return sent
        if (message.topic, message.queue_id) != (sent.topic, sent.queue_id):
            self.complain(f"{sent} is in {where}")
        if sent.topic in self.uncertain_topics or sent.is_ambiguous:
            return sent
        if sent.generation < self.generations[sent.topic]:
            self.complain(f"{sent} was deleted with its topic, and is in {where}")
        if sent.is_moved:
            self._check_moved(sent, message, where)
        if sent.batch is not None:
            self.batches.saw(sent)
        self._put(sent, message.queue_offset)
        self._see(sent.topic, sent.queue_id, message.queue_offset, sent)
        return sent

    def _check_visible(self, sent, where):
        if sent.state == "refused":
            self.complain(f"{sent} was refused, and is in {where}")
        if sent.state == "staged":
            self.complain(f"{sent} was staged and never committed, and is in {where}")
        if sent.end in ("open", "rollback"):
            self.complain(f"{sent} was never committed, and is in {where}")

    def _check_content(self, sent, message, where):
        if message.body != sent.body:
            self.complain(
                f"{sent} in {where} has another body: {len(message.body)} bytes, not "
                f"{len(sent.body)}"
            )
        properties = decode_properties(message.properties_text)
        expected = {
            name: value for name, value in sent.properties.items() if name not in _NOT_DELIVERED
        }
        if {name: properties.get(name) for name in expected} != expected:
            self.complain(f"{sent} in {where} has properties {properties}, not {expected}")

    def _check_delayed(self, sent, message, where):
        now, watch = self._world.kernel.now, self._world.watch
        is_known = watch.delays_pass_since(sent.sent_at)
        if now < sent.due and is_known:
            self.complain(f"{sent}, in {where}, is {sent.due - now:.3f} s early")
        if not sent.seen and sent.stored_at is not None:
            watch.check_lateness(sent, message.store_timestamp / 1000, where)
        if (
            message.queue_offset not in sent.seen
            and sent.seen
            and not watch.crashed_since(sent.due if is_known else sent.sent_at)
        ):
            self.complain(
                f"{sent} was delivered twice, at {list(sent.seen)} and {message.queue_offset}"
            )

    def _check_moved(self, sent, message, where):
        if sent.delay_seconds:
            self._check_delayed(sent, message, where)
            return
        watch = self._world.watch
        is_lost = watch.crashed_since(sent.sent_at) and not self._is_sync
        if (
            message.queue_offset not in sent.seen
            and sent.seen
            and not is_lost
            and not watch.may_lose_content
        ):
            self.complain(
                f"{sent} was committed {sent.ends} times and delivered twice, at "
                f"{list(sent.seen)} and {message.queue_offset}"
            )

    def _put(self, sent, queue_offset):
        """Record a message's offset, which no other message may have."""
        queue = self.queues[sent.topic, sent.queue_id]
        self._occupy(queue, queue_offset, sent)
        if not sent.is_moved and sent.queue_offset not in (None, queue_offset):
            self.complain(f"{sent} is at {queue_offset}, and at {sent.queue_offset}")
        sent.queue_offset = queue_offset
        sent.seen.setdefault(queue_offset, self._world.kernel.now)
        if not sent.is_moved:
            self._check_order(queue, sent, queue_offset)

    def _check_order(self, queue, sent, queue_offset):
        """Check that messages of one connection to one queue are in order."""
        places = queue.connections.setdefault(sent.connection, {})
        places[sent.number] = queue_offset
        for number, other in places.items():
            if (number < sent.number) != (other < queue_offset) and number != sent.number:
                self.complain(
                    f"{sent} is at {queue_offset}, and message {number} of the same client at "
                    f"{other}"
                )

    def _see(self, topic, queue_id, queue_offset, what):
        queue = self.queues[topic, queue_id]
        self._occupy(queue, queue_offset, what)
        queue.in_memory.discard(queue_offset)
        if self._is_sync or getattr(what, "batch", None) is not None:
            queue.must.setdefault(queue_offset, self._world.kernel.now)

    def _occupy(self, queue, queue_offset, what):
        there = queue.at.setdefault(queue_offset, what)
        if there != what:
            self.complain(f"{what} is at {queue_offset}, where {there} was")

    def _is_of_the_past(self, sent):
        return (
            sent.is_ambiguous
            or sent.generation < self.generations[sent.topic]
            or sent.topic in self.uncertain_topics
        )

    # ---- checks of pulls

    def expected(self, topic, queue_id, start, wanted=lambda _: True):
        """Return the messages that must be found from an offset on, as far as known now."""
        queue = self.queues[topic, queue_id]
        return {
            queue_offset: queue.at[queue_offset]
            for queue_offset in queue.must
            if start <= queue_offset and wanted(queue.at[queue_offset])
        }

    def pulled(self, asked, must, told):
        """Check the response to a pull; ``must`` is what `expected` returned when it was sent."""
        where = f"a pull of {asked.topic}/{asked.queue_id} from {asked.queue_offset}"
        last = asked.queue_offset - 1
        for message in told.messages:
            if not last < message.queue_offset < told.next_offset:
                self.complain(
                    f"{where} got {message.queue_offset} behind {last}, and goes on at "
                    f"{told.next_offset}"
                )
            last = message.queue_offset
            sent = self.saw(message)
            if not asked.wants(sent):
                self.complain(f"{where} got {sent}, which its filter does not let through")
        found = {message.queue_offset for message in told.messages}
        queue = self.queues[asked.topic, asked.queue_id]
        for queue_offset, what in must.items():
            is_expired = self._world.watch.may_expire and queue_offset < told.min_offset
            is_passed_over = queue_offset < told.next_offset and queue_offset not in found
            if is_passed_over and not is_expired and queue.at.get(queue_offset) is what:
                self.complain(
                    f"{where} was answered {told}, and has passed over {what} at {queue_offset}"
                )
            is_cut = told.code == ResponseCode.PULL_OFFSET_MOVED and told.max_offset <= queue_offset
            if is_cut and what.seen and queue.at.get(queue_offset) is what:
                self.complain(
                    f"{where} was sent back, {told}, and {what} was seen at {queue_offset}"
                )

    def told_first(self, topic, queue_id, known, first):
        """Check a queue's reported first offset; ``known`` is all that `expected` returned at the
        request."""
        queue = self.queues[topic, queue_id]
        before = {at: what for at, what in known.items() if at < first}
        before = {at: what for at, what in before.items() if queue.at.get(at) is what}
        if before and not self.may_expire:
            at = max(before)
            self.complain(
                f"{topic}/{queue_id} is said to begin at {first}: {before[at]} is at {at}"
            )
        placed = [at for at, what in before.items() if _place_of(what) is not None]
        if placed:  # all others precede it in the log, too
            self._check_expired(topic, queue_id, max(placed), before[max(placed)])

    # ---- deleted topics

    def deleting(self, topic):
        """Record a deletion that has begun: the topic's state is unknown until the response."""
        self.uncertain_topics.add(topic)
        self._forget(topic)
        for sent in self.sent.values():
            if sent.topic == topic and sent.state in ("under way", "unknown"):
                sent.is_ambiguous = True

    def deleted(self, topic):
        """Record a deletion. Messages sent meanwhile may belong to the next topic of this name."""
        self.uncertain_topics.discard(topic)
        self.generations[topic] += 1
        self._forget(topic)

    def _forget(self, topic):
        for key in [key for key in self.queues if key[0] == topic]:
            del self.queues[key]

    # ---- crashes and later starts

    def life_ended(self, kind):
        """Record the end of a broker's life: "stop", "kill" or "power"."""
        for sent in self.sent.values():
            self.unknown(sent)
            since = sent.stored_at if sent.decided_at is None else sent.decided_at
            if kind == "power" and sent.is_certain and not self._is_durable(since, sent):
                sent.is_certain = False
        self._has_lost_power |= kind == "power"
        if kind == "power":  # a power loss may restore earlier content of a page
            for sent in self._wiped:
                sent.state = "unknown"
        self._wiped.clear()
        for queue in self.queues.values():
            if kind == "power":
                self._lose_what_is_uncertain(queue)
            else:
                self._keep_what_was_written(queue, is_flushed=kind == "stop")
        self.returns.life_ended(kind, self._is_durable)
        self.life += 1

    def _is_durable(self, since, what=None):
        """Return whether a message acknowledged then must survive a power loss.

        A commit waits for the disk, however messages are flushed.
        """
        if isinstance(what, Sent) and what.batch is not None:
            return True
        return self._is_sync or self._world.watch.was_flushed_since(since)

    def _new_queue(self):
        """Return a new queue of unknown state: a power loss may have taken unseen messages."""
        return Queue(gaps_from=0 if self._has_lost_power else None)

    def _keep_what_was_written(self, queue, *, is_flushed):
        """Keep acknowledged messages: the system lives, with their data in its memory."""
        for queue_offset, what in queue.at.items():
            if not isinstance(what, Sent) or what.state == "stored":
                if self._is_sync and queue_offset not in queue.must:
                    queue.in_memory.add(queue_offset)
                queue.must.setdefault(queue_offset, self._world.kernel.now)
        if is_flushed:
            queue.in_memory.clear()

    def _lose_what_is_uncertain(self, queue):
        queue.must = {
            at: since
            for at, since in queue.must.items()
            if at not in queue.in_memory and self._is_durable(since, queue.at[at])
        }
        queue.in_memory.clear()
        for queue_offset in queue.at.keys() - queue.must.keys():
            what = queue.at.pop(queue_offset)
            if isinstance(what, Sent):
                what.queue_offset = None
                what.seen.pop(queue_offset, None)
                places = queue.connections.get(what.connection, {})
                places.pop(what.number, None)
        known = max(queue.must, default=-1) + 1
        queue.gaps_from = known if queue.gaps_from is None else min(known, queue.gaps_from)

    def audited(self, topic, queue_id, must, found, low, high):
        """Check a queue that was read completely; ``must`` was known when the read began."""
        if topic in self.uncertain_topics:
            return
        queue = self.queues[topic, queue_id]
        for queue_offset, what in must.items():
            if self._world.watch.may_expire and queue_offset < low:
                self._check_expired(topic, queue_id, queue_offset, what)
                continue
            if queue_offset not in found and queue.at.get(queue_offset) is what:
                self.complain(
                    f"{what} is lost: it was at {queue_offset}, and {topic}/{queue_id} holds {low} "
                    f"to {high}"
                )
        for queue_offset in range(low, high):
            if queue_offset in found or queue_offset in queue.gaps:
                continue
            gaps_left = self.batches.gaps_max[topic, queue_id] - len(queue.gaps)
            is_explained = queue.gaps_from is not None and queue_offset >= queue.gaps_from
            if not is_explained and gaps_left <= 0:
                self.complain(
                    f"{topic}/{queue_id} has nothing at {queue_offset}, and holds {low} to {high}"
                )
            queue.gaps.add(queue_offset)
        queue.gaps_from = None

    def _check_expired(self, topic, queue_id, queue_offset, what):
        """Check that old messages expire with their file of the log, and no others."""
        place = _place_of(what)
        if place is not None and not self._world.watch.is_gone_from_log(place):
            self.complain(
                f"{what} is hidden: it was at {queue_offset} of {topic}/{queue_id} and at {place} "
                "of the log, which still holds that place"
            )

    def is_to_be_found(self, sent):
        """Return whether the message must be in its queue, visible to all."""
        queue = self.queues[sent.topic, sent.queue_id]
        if self._world.watch.may_expire:
            return False
        return sent.queue_offset in queue.must and queue.at.get(sent.queue_offset) is sent

    def check_deliveries(self):
        """Check, long after all delays, that each stored message was delivered."""
        if self._world.watch.may_expire:
            return
        for sent in self.sent.values():
            if (
                sent.delay_seconds
                and sent.is_certain
                and not sent.seen
                and not self._is_of_the_past(sent)
            ):
                self.complain(f"{sent} with a delay of {sent.delay_seconds} s was never delivered")
            if sent.end == "commit" and sent.is_certain and not sent.seen:
                self.complain(f"{sent} was committed and never delivered")
        self.returns.check_deliveries()


def _place_of(what):
    """Return the physical offset of a queue's message, if a client knows it."""
    return getattr(what, "physical_offset", None)
