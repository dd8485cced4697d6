"""The ledger of Spark's queries and writes: checks them against what was sent, stored and reported.

It knows what was sent, the result of the last audit, and which queues may have lost messages. Each
program's model knows what the program must have: `rows` for readers, `sinks` for writers.
"""

from __future__ import annotations

from collections import defaultdict
from math import inf

from world.spark.committed_rows import CommittedModel
from world.spark.rows import ReadModel, StreamModel
from world.spark.sinks import SinkModel

from rmq_spark.wire.properties import KEYS

_SETTLED_SECONDS = 2.0
_QUEUES_GO = frozenset({"make again", "change queues", "older copy", "slave"})


class Ledger:
    """All that is known of one story."""

    def __init__(self, world):
        self._world = world
        self.sent = {}  # by body
        self.sent_with = {}  # the same, by keys
        self.acknowledged = {}  # when, and at which place, by body
        self.stored = defaultdict(dict)  # body by offset, by queue: as the last audit has found it
        self.damaged = {}  # body by place: of messages whose stored body is another now
        self._first_names = {}
        self._causes = []
        self._replaced = []
        self._streams = []
        self._sinks = []

    def complain(self, what):
        """Something is not as it must be."""
        self._world.complain(what)

    def stream(self, query):
        """The model of a streaming query."""
        kind = CommittedModel if query.options.get("isolation") == "committed" else StreamModel
        self._streams.append(kind(self, query))
        return self._streams[-1]

    def reads(self, program):
        """The model of a program that reads topics now and then."""
        return ReadModel(self, program)

    def sink(self, program):
        """The model of a program that writes."""
        self._sinks.append(SinkModel(self, program))
        return self._sinks[-1]

    def is_lied_to(self, queue):
        """Whether a queue's broker has given wrong answers by now."""
        return any(self.first_name(name) == queue[1] for name in self._world.liars)

    def is_misled(self, queue):
        """Whether a queue's broker has made claims by now that may be wrong."""
        return any(self.first_name(name) == queue[1] for name in self._world.lied_about)

    @property
    def brokers(self):
        """All brokers."""
        return self._world.brokers

    @property
    def sinks(self):
        """The models of all programs that write."""
        return self._sinks

    # ---- what happens

    def renames(self, before, now):
        """A broker has another name; here it keeps the one that it had first."""
        self._first_names[now] = self.first_name(before)

    def first_name(self, broker):
        """The name that a broker had first."""
        return self._first_names.get(broker, broker)

    @property
    def new_names(self):
        """The names that brokers have now, by those that they had first."""
        return {before: now for now, before in self._first_names.items()}

    def first_physical_offset(self, topic, broker, *rest):
        """A queue, or a place in one, by the name that its broker had first."""
        return topic, self.first_name(broker), *rest

    def damages(self, body):
        """The body that is stored of a message is about to be changed."""
        _, place = self.acknowledged[body]
        self.damaged[place] = body

    def sends(self, sent):
        """Somebody is about to send a message."""
        self.sent[sent.body] = sent
        self.sent_with[sent.keys] = sent

    def is_acknowledged(self, sent, place):
        """A broker has said that a message is stored there."""
        self.acknowledged[sent.body] = self.now, self.first_physical_offset(*place)

    def takes_away(self, *, broker=None, topic=None, expired=False):
        """Messages of a broker, or of a topic, may be gone from now on, or be others.

        Those that have ``expired`` leave a gap before the first that is there,
        which a query cannot overlook.
        """
        broker = self.first_name(broker)
        self._causes.append((self.now, broker, topic))
        if not expired:
            self._replaced.append((broker, topic))

    def may_be_gone(self, queue, since=0.0):
        """Whether something has happened to a queue since a time."""
        return self.last_cause(queue) >= since

    def can_be_replaced(self, queue):
        """Whether a queue may have lost messages, and not only because they had expired."""
        return any(
            broker in (None, queue[1]) and topic in (None, queue[0])
            for broker, topic in self._replaced
        )

    @property
    def queues_may_go(self):
        """Whether something befalls this story by which a broker may lack a topic, or queues of
        it."""
        story = self._world.story
        kinds = {trouble.kind for trouble in story.troubles}
        steps = (step for client in story.clients for step in client.steps)
        kinds |= {step.arguments["trouble"] for step in steps if step.kind == "at"}
        return not kinds.isdisjoint(_QUEUES_GO)

    def last_cause(self, queue):
        """When something has happened to a queue the last time."""
        times = [
            time
            for time, broker, topic in self._causes
            if broker in (None, queue[1]) and topic in (None, queue[0])
        ]
        return max(times, default=-inf)

    @property
    def is_calm(self):
        """Whether all troubles are over, and have been for a little."""
        calm_since = self._world.calm_since
        return calm_since is not None and calm_since + _SETTLED_SECONDS < self.now

    @property
    def now(self):
        return self._world.kernel.now

    # ---- what brokers tell

    def broker_ended(self, name):
        """Nothing is kept in a broker that Spark's source relies on."""

    def committed(self, group, queue, queue_offset):
        """A broker has taken a group's offset."""
        for stream in self._streams:
            if group in stream.groups:
                stream.group_committed(self.first_physical_offset(*queue), queue_offset)

    def audit_begins(self):
        """Everything that is stored is about to be found."""
        self.stored.clear()

    def audited(self, queue, message):
        """That lies there."""
        if queue[0] != self._world.sinks_topic:
            place = self.first_physical_offset(*queue, message.queue_offset)
            # Its body may be another by now, and even that of another message.
            sent = self.sent_with.get(dict(message.properties).get(KEYS))
            body = message.body if sent is None else sent.body
            self.stored[place[:3]][message.queue_offset] = body
        elif not any(sink.stored(queue, message) for sink in self._sinks):
            self.complain(
                f"{queue} has at {message.queue_offset} what nobody has written: {message.body}"
            )

    # ---- when all is quiet

    def outstanding(self):
        """What must still come to some query."""
        return [each for stream in self._streams for each in stream.outstanding()]

    def check(self):
        """Look at all that was written down."""
        for stream in self._streams:
            stream.check_what_is_gone()
        for sink in self._sinks:
            sink.check()
