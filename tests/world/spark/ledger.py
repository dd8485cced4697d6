"""The ledger of Spark's queries and writes: checks them against sent, stored and reported messages.

It knows the sent messages, the result of the last audit, and which queues may have lost messages.
Each program's model checks the program: `rows` readers, `sinks` writers.
"""

from collections import defaultdict
from math import inf

from world.cluster.lies import WORLD_LIES
from world.spark.committed_rows import CommittedModel
from world.spark.rows import ReadModel, StreamModel
from world.spark.sinks import SinkModel

from rmq_spark.wire.message.properties import KEYS

_SETTLED_SECONDS = 2.0
_QUEUES_GO = frozenset({"make again", "change queues", "older copy", "slave"})


class Ledger:
    """The state of one story."""

    def __init__(self, world):
        self._world = world
        self.sent = {}  # by body
        self.sent_with = {}  # sent messages by keys
        self.acknowledged = {}  # time and place by body
        self.stored = defaultdict(dict)  # queue -> body by offset, from the last audit
        self.damaged = {}  # place -> original body of messages whose stored body was changed
        self._first_names = {}
        self._causes = []
        self._replaced = []
        self._streams = []
        self._sinks = []

    def complain(self, what):
        """Report a broken promise."""
        self._world.complain(what)

    def stream(self, query):
        """Return the model of a streaming query."""
        kind = CommittedModel if query.options.get("isolation") == "committed" else StreamModel
        self._streams.append(kind(self, query))
        return self._streams[-1]

    def reads(self, program):
        """Return the model of a program of batch reads."""
        return ReadModel(self, program)

    def sink(self, program):
        """Return the model of a program that writes."""
        self._sinks.append(SinkModel(self, program))
        return self._sinks[-1]

    def is_lied_to(self, queue):
        """Return whether a queue's broker has given wrong responses so far."""
        return any(self.first_name(name) == queue[1] for name in self._world.liars)

    def is_misled(self, queue):
        """Return whether a queue's broker has made wrong claims so far."""
        return any(self.first_name(name) == queue[1] for name in self._world.lied_about)

    @property
    def brokers(self):
        """Return all brokers."""
        return self._world.brokers

    @property
    def sinks(self):
        """Return the models of all programs that write."""
        return self._sinks

    # ---- events

    def renames(self, before, now):
        """Record a broker's new name; the ledger keeps using the first one."""
        self._first_names[now] = self.first_name(before)

    def first_name(self, broker):
        """Return a broker's first name."""
        return self._first_names.get(broker, broker)

    @property
    def new_names(self):
        """Return the brokers' current names, by their first names."""
        return {before: now for now, before in self._first_names.items()}

    def first_physical_offset(self, topic, broker, *rest):
        """Return a queue or place with its broker's first name."""
        return topic, self.first_name(broker), *rest

    def damages(self, body):
        """Record that the stored body of a message is about to be changed."""
        _, place = self.acknowledged[body]
        self.damaged[place] = body

    def sends(self, sent):
        """Record a message that is about to be sent."""
        self.sent[sent.body] = sent
        self.sent_with[sent.keys] = sent

    def is_acknowledged(self, sent, place):
        """Record the acknowledgement of a message at a place."""
        self.acknowledged[sent.body] = self.now, self.first_physical_offset(*place)

    def takes_away(self, *, broker=None, topic=None, expired=False):
        """Record that messages of a broker, or of a topic, may be lost or replaced from now on.

        Expired messages leave a gap before the first remaining one, which a query must notice.
        """
        broker = self.first_name(broker)
        self._causes.append((self.now, broker, topic))
        if not expired:
            self._replaced.append((broker, topic))

    def may_be_gone(self, queue, since=0.0):
        """Return whether a queue has had a trouble since a time."""
        return self.last_cause(queue) >= since

    def can_be_replaced(self, queue):
        """Return whether a queue may have lost messages other than by expiry."""
        return any(
            broker in (None, queue[1]) and topic in (None, queue[0])
            for broker, topic in self._replaced
        )

    @property
    def queues_may_go(self):
        """Return whether a trouble of this story may remove topics or queues from a broker.

        A name server that lies about routes has the same effect.
        """
        story = self._world.story
        lies = {each.arguments["about"] for each in story.troubles if each.kind == "lie"}
        if any(WORLD_LIES[about].is_of_names for about in lies):
            return True
        kinds = {trouble.kind for trouble in story.troubles}
        steps = (step for client in story.clients for step in client.steps)
        kinds |= {step.arguments["trouble"] for step in steps if step.kind == "at"}
        return not kinds.isdisjoint(_QUEUES_GO)

    def last_cause(self, queue):
        """Return the time of the last trouble of a queue."""
        times = [
            time
            for time, broker, topic in self._causes
            if broker in (None, queue[1]) and topic in (None, queue[0])
        ]
        return max(times, default=-inf)

    @property
    def is_calm(self):
        """Return whether all troubles have been over for a little while."""
        calm_since = self._world.calm_since
        return calm_since is not None and calm_since + _SETTLED_SECONDS < self.now

    @property
    def now(self):
        return self._world.kernel.now

    # ---- events of brokers

    def broker_ended(self, name):
        """Record a broker's end; Spark's source does not depend on the broker's memory."""

    def committed(self, group, queue, queue_offset):
        """Record a group's offset that a broker has stored."""
        for stream in self._streams:
            if group in stream.groups:
                stream.group_committed(self.first_physical_offset(*queue), queue_offset)

    def audit_begins(self):
        """Record the start of an audit."""
        self.stored.clear()

    def audited(self, queue, message):
        """Record a stored message found by the audit."""
        if queue[0] != self._world.sinks_topic:
            place = self.first_physical_offset(*queue, message.queue_offset)
            # Its body may have been changed, even to that of another message.
            sent = self.sent_with.get(dict(message.properties).get(KEYS))
            body = message.body if sent is None else sent.body
            self.stored[place[:3]][message.queue_offset] = body
        elif not any(sink.stored(queue, message) for sink in self._sinks):
            self.complain(
                f"{queue} has at {message.queue_offset} what nobody has written: {message.body}"
            )

    # ---- final checks

    def outstanding(self):
        """Return the messages that a query must still read."""
        return [each for stream in self._streams for each in stream.outstanding()]

    def check(self):
        """Check all records."""
        for stream in self._streams:
            stream.check_what_is_gone()
        for sink in self._sinks:
            sink.check()
