"""Members that pop: programs with a SimpleConsumer, and what must come to their group.

received      invisible to the group for its time, which a member may change
acknowledged  in time: comes again only after a trouble
    in order      or behind an earlier message of its queue that comes again
in order      nothing comes before all earlier messages of its queue are acknowledged, unless
              together with them
forgotten     comes again
in the end    each group that pops has had, and acknowledged, all that is stored
    without an answer   if the broker has stored the acknowledgement; otherwise, it comes again
"""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass

from world.clients.acts import TOPICS, act

from rmq_spark.client.consumer.simple_consumer import SimpleConsumer
from rmq_spark.client.errors import ClientError
from rmq_spark.wire.bodies.pop import PopCheckPoint
from rmq_spark.wire.pop import POP_CK, PopReceipt, real_topic
from rocketpoll.broker.pop.revive_log import acked_offsets, decode_revive_message

POP = "pop_in_group"
_START_SECONDS = 30.0
_START_AGAIN_SECONDS = 1.0
_TRY_AGAIN_SECONDS = 0.3
_LOOK_AGAIN_SECONDS = 1.0
_RECEIVE_SECONDS = 30.0
"""Seconds for a receive in addition to its poll time, to connect to both brokers."""
_CLOSE_SECONDS = 2.0 + 0.1
_TIMES_MAX = 6
"""Number of deliveries after which a member always acknowledges: the 17th would be a
dead letter."""


@dataclass(eq=False)
class _Known:
    """The known state of a message in a group; times are the story's."""

    first_at: float
    batch: int  # the number of its last batch
    hidden_until: float  # a lower bound
    was_hidden_until: float = 0.0  # before the last change
    is_acknowledged: bool = False  # in time, so it does not come again
    may_be_doubled: bool = False  # its time was changed late, so it comes for both times
    settling: object = None  # its message, if the broker may have the acknowledgement
    is_settled: bool = False  # acknowledged, in time or late: it may come again, but need not


@dataclass(eq=False)
class _Place:
    """A position in a queue that a group pops in order."""

    body: bytes
    batch: int  # the number of the last batch with it
    is_settling: bool = False  # it was acknowledged at least once


class Pops:
    """All groups that pop."""

    def __init__(self, ledger, world):
        self._ledger = ledger
        self._world = world
        self._groups = {}  # group -> by body
        self._in_order = {}  # group -> queue -> place by queue offset
        self._batches = itertools.count()
        self._stored = set()  # acknowledgements in the brokers' revive topics
        self.unanswered = 0  # acknowledgements that the broker may have

    @property
    def has_groups(self):
        """True if any group pops."""
        return bool(self._groups)

    def joins(self, group, *, in_order):
        """Record a member of a group."""
        self._groups.setdefault(group, {})
        if in_order:
            self._in_order.setdefault(group, {})

    def received(self, group, batch, asked_at, invisible_ms):
        """Check the messages of a batch against their known state; return that by body."""
        number = next(self._batches)
        if group in self._in_order:
            self._check_order(group, batch, number)
        return {
            message.body: self._received(group, message, number, asked_at, invisible_ms)
            for message in batch
        }

    def _received(self, group, message, batch, asked_at, invisible_ms):
        body, messages = message.body, self._groups[group]
        if self._ledger.sent.get(body) != message.topic:
            self._ledger.complain(
                f"{group} popped what nobody sent: {body[:40]} of {message.topic}"
            )
        known = messages.get(body)
        is_doubled = known is not None and known.may_be_doubled
        if (
            known is not None
            and not is_doubled
            and not self._is_behind_another(group, message, known)
            and self._ledger.is_undisturbed_since(known.first_at)
        ):
            again = f"{body[:24]} came to {group} again"
            if known.is_acknowledged:
                self._ledger.complain(f"{again}, and was acknowledged")
            if self._world.kernel.now < known.hidden_until:
                self._ledger.complain(f"{again}, and is invisible until {known.hidden_until:.3f} s")
        first_at = asked_at if known is None else known.first_at
        hidden_until = _hidden_until(asked_at, invisible_ms)
        found = _Known(first_at, batch, hidden_until, may_be_doubled=is_doubled)
        messages[body] = found
        return found

    def _is_behind_another(self, group, message, known):
        """Return whether an acknowledged message may come again, because an earlier one did."""
        if group not in self._in_order or known.settling is None:
            return False
        places = self._in_order[group][message.queue]
        return any(
            queue_offset < message.queue_offset and place.batch > known.batch
            for queue_offset, place in places.items()
        )

    def _check_order(self, group, batch, number):
        queues = self._in_order[group]
        for message in batch:
            places = queues.setdefault(message.queue, {})
            early = [
                place.body[:24]
                for queue_offset, place in places.items()
                if queue_offset < message.queue_offset
                and not place.is_settling
                and place.batch != number
            ]
            if early:
                self._ledger.complain(f"{message.body[:24]} came to {group} before {early}")
            place = places.setdefault(message.queue_offset, _Place(message.body, number))
            if place.body != message.body:  # its queue has lost its end
                places[message.queue_offset] = place = _Place(message.body, number)
            place.batch = number

    def changing(self, known):
        """Record that the invisible time of a delivery is about to change."""
        known.was_hidden_until, known.hidden_until = known.hidden_until, 0.0

    def changed(self, group, body, known, asked_at, invisible_ms):
        """Record a new invisible time of a delivery."""
        known.hidden_until = _hidden_until(asked_at, invisible_ms)
        if self._world.kernel.now >= known.was_hidden_until:
            known.may_be_doubled = self._groups[group][body].may_be_doubled = True

    def acknowledging(self, group, deliveries):
        """Record that the broker may have these acknowledgements from now on."""
        for message, known in deliveries:
            known.settling = message
            if group in self._in_order:
                self._in_order[group][message.queue][message.queue_offset].is_settling = True

    def acknowledged(self, deliveries):
        for known in deliveries:
            known.is_settled = True
            known.is_acknowledged |= self._world.kernel.now < known.hidden_until

    def audited(self, broker_name, message):
        """Record a message of a broker's revive topic."""
        content = decode_revive_message(message)
        if content is not None and not isinstance(content, PopCheckPoint):
            self._stored.update(
                (
                    content.consumer_group,
                    content.topic,
                    broker_name,
                    content.queue_id,
                    queue_offset,
                    content.pop_time,
                )
                for queue_offset in acked_offsets(content)
            )

    def _is_settled(self, group, known):
        """Return whether a message need not come again, because its acknowledgement counts.

        The response to an acknowledgement may be lost. In order, acknowledgements move the group's
        offset.
        """
        if known is None or known.is_settled or known.settling is None:
            return known is not None and known.is_settled
        receipt = PopReceipt.decode(known.settling.properties[POP_CK])
        topic = real_topic(known.settling.topic, group, receipt.retry)
        queue = topic, receipt.broker_name, receipt.queue_id
        if group in self._in_order:
            stored = self._world.stored_offset(group, queue)
            return stored is not None and stored > receipt.queue_offset
        return (group, *queue, receipt.queue_offset, receipt.pop_time) in self._stored

    def outstanding(self, stored):
        """Return messages that a group must still get, or get again; ``stored`` is by queue."""
        if not self.has_groups:
            return []
        must = set(self._ledger.acknowledged)
        for queue, bodies in stored.items():
            if queue[0] in TOPICS:
                must.update(bodies.values())
        return [
            f"{group}: {body[:24]}"
            for group, messages in self._groups.items()
            for body in must
            if not self._is_settled(group, messages.get(body))
        ]


class Popping:
    """The member of one process; a thread of the process receives."""

    def __init__(self, life, group, *, in_order, count, invisible_ms, timeout_ms, carelessness):
        self._life = life
        self._world = life.world
        self._group = group
        self._in_order = in_order
        self._count = count
        self._invisible_ms = invisible_ms
        self._timeout_ms = timeout_ms
        self._carelessness = carelessness
        self._pops = life.world.ledger.pops
        self.consumer = None
        self._instance = None

    def begin(self):
        """Join the group, with retries."""
        world, process = self._world, self._life.process
        self._pops.joins(self._group, in_order=self._in_order)
        while True:
            self._instance = self._life.new_instance()
            self.consumer = consumer = SimpleConsumer(
                self._group, instance=self._instance, start="earliest", in_order=self._in_order
            )
            try:
                for topic in TOPICS:
                    consumer.subscribe(topic)
                with world.watch.within(process, "start of a member that pops", _START_SECONDS):
                    consumer.start()
            except ClientError as error:
                world.note(f"{process.name} cannot start to pop: {error}")
                consumer.close()
                self._instance.shutdown()
                time.sleep(_START_AGAIN_SECONDS)
            else:
                break
        threading.Thread(target=self._pop_on, args=(consumer,), name=f"{process.name} pops").start()

    def end(self):
        """Leave the group."""
        with self._world.watch.within(self._life.process, "close of a consumer", _CLOSE_SECONDS):
            self.consumer.close()
        self._instance.shutdown()

    def _pop_on(self, consumer):
        while consumer.is_running:
            try:
                self._pop_once(consumer)
            except ClientError as error:  # noqa: PERF203  # retried
                self._world.note(f"{self._life.process.name} pops: {error}")
                time.sleep(_TRY_AGAIN_SECONDS)

    def _pop_once(self, consumer):
        world, asked_at = self._world, self._world.kernel.now
        seconds = self._timeout_ms / 1_000 + _RECEIVE_SECONDS
        with world.watch.within(self._life.process, "receive", seconds):
            found = consumer.receive(
                self._count, invisible_ms=self._invisible_ms, timeout_ms=self._timeout_ms
            )
        if not found:
            time.sleep(_LOOK_AGAIN_SECONDS)
        known = self._pops.received(self._group, found, asked_at, self._invisible_ms)
        done = []
        for message in found:
            careful = world.is_calm or message.reconsume_times >= _TIMES_MAX
            if careful or self._life.dice.random() >= self._carelessness:
                done.append((message, known[message.body]))
            elif self._life.dice.random() < 0.5:
                self._change(consumer, message, known[message.body])
        if self._life.dice.random() < 0.5:
            self._acknowledge(consumer, done)
        else:
            for each in done:
                self._acknowledge(consumer, [each])

    def _acknowledge(self, consumer, deliveries):
        if deliveries:
            self._pops.acknowledging(self._group, deliveries)
            try:
                consumer.ack([message for message, _ in deliveries])
            except ClientError:
                self._pops.unanswered += len(deliveries)
                raise
            self._pops.acknowledged([known for _, known in deliveries])

    def _change(self, consumer, message, known):
        """Change the invisible time of a message; sometimes, acknowledge with the new receipt."""
        world, invisible_ms = self._world, self._life.dice.choice([0, 1_000, 4_000])
        self._pops.changing(known)
        asked_at = world.kernel.now
        renewed = consumer.change_invisible_duration(message, invisible_ms)
        self._pops.changed(self._group, message.body, known, asked_at, invisible_ms)
        if self._life.dice.random() < 0.3:
            self._acknowledge(consumer, [(renewed, known)])


def _hidden_until(asked_at, invisible_ms):
    """Return the earliest end of the invisible time, for a broker that counts in whole
    milliseconds."""
    return asked_at + (invisible_ms - 1) / 1_000


@act(lambda dice: {"seconds": dice.choice([0.0, 0.5, 5.0])})
def rejoin(life, seconds):
    """Leave the group that pops, and join it again."""
    life.popping.end()
    time.sleep(seconds)
    life.popping.begin()
