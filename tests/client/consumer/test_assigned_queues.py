"""Which offsets of a queue count as consumed, through seeks, pauses and reassignment."""

import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.messages.received_messages import QUEUE, several

from rmq_spark.client.consumer.queues.assigned_queues import (
    AssignedQueue,
    AssignedQueues,
    ConsumeRequest,
    PollOutcome,
)
from rmq_spark.client.consumer.queues.queue_identity import QueueFingerprint, StartPosition
from rmq_spark.wire.message_queue import MessageQueue

OTHER, OF_U = MessageQueue("T", "broker-a", 1), MessageQueue("U", "broker-a", 0)


@pytest.fixture
def assigned():
    assigned = AssignedQueue(QUEUE, lambda: 0)
    assigned.set_first_offset(0, StartPosition(10, QueueFingerprint()))
    return assigned


def pulled(assigned, epoch, *offsets, then):
    messages = several(*offsets)
    assert assigned.add_pulled(epoch, messages, then)
    return ConsumeRequest(assigned, epoch, messages)


def test_assigned_queue_has_no_offset_at_first():
    assigned = AssignedQueue(QUEUE, lambda: 0)
    assert assigned.pull_position() == (0, None)
    assert assigned.consume_offset is None


def test_poll_result_counts_as_consumed_after_confirmation(assigned):
    request = pulled(assigned, 0, 10, 11, then=12)
    assert assigned.pull_position() == (0, 12)
    assert assigned.acquire(request) is PollOutcome.ACQUIRED
    assert (assigned.delivered_offset, assigned.consume_offset) == (12, 10)
    assigned.confirm_delivered()
    assert assigned.consume_offset == 12


def test_only_delivered_pulls_count_as_consumed(assigned):
    first = pulled(assigned, 0, 10, 11, then=15)
    pulled(assigned, 0, 17, then=18)
    assigned.acquire(first)
    assigned.confirm_delivered()
    assert assigned.consume_offset == 17


def test_rewind_to_delivered_discards_waiting_pull_and_keeps_taken_one(assigned):
    first = pulled(assigned, 0, 10, 11, then=15)
    waits = pulled(assigned, 0, 17, then=18)
    assigned.acquire(first)
    assigned.rewind_to_delivered()
    assert assigned.acquire(waits) is PollOutcome.STALE
    assert assigned.pull_position() == (1, 17)
    assert (assigned.consume_offset, assigned.returned_offset) == (10, 10)
    assigned.confirm_delivered()
    assert assigned.consume_offset == 17


@pytest.mark.parametrize("how", ["rewind_to_delivered", "rewind_to_returned"])
def test_rewind_keeps_queue_fingerprint_and_seek_replaces_it(assigned, how):
    known = assigned.fingerprint
    getattr(assigned, how)()
    assert assigned.pull_position() == (1, 10)
    assert assigned.fingerprint is known
    assigned.seek(10)
    assert assigned.fingerprint is not known


def test_rewind_without_offset_has_no_effect():
    assigned = AssignedQueue(QUEUE, lambda: 0)
    assigned.rewind_to_delivered()
    assert assigned.pull_position() == (0, None)


def test_filtered_out_offsets_count_as_consumed(assigned):
    assert assigned.add_pulled(0, (), 500)
    assert assigned.consume_offset == 500


def test_late_pull_response_after_a_seek_is_ignored(assigned):
    epoch, _ = assigned.pull_position()
    waiting = pulled(assigned, epoch, 10, then=11)
    assigned.seek(3)
    assert not assigned.add_pulled(epoch, several(11), 12)
    assert assigned.acquire(waiting) is PollOutcome.STALE
    assert assigned.pull_position() == (1, 3)
    assert (assigned.consume_offset, assigned.delivered_offset) == (3, 3)
    assert assigned.process_queue.message_count == 0


def test_late_first_offset_does_not_undo_a_seek():
    assigned = AssignedQueue(QUEUE, lambda: 0)
    assigned.seek(7)
    assigned.set_first_offset(0, StartPosition(99, QueueFingerprint()))
    assigned.set_first_offset(1, StartPosition(99, QueueFingerprint()))
    assert assigned.pull_position() == (1, 7)


def test_late_pull_response_after_the_queue_is_dropped_is_ignored(assigned):
    waiting = pulled(assigned, 0, 10, then=11)
    assert assigned.drop() == 10
    assert not assigned.add_pulled(0, several(11), 12)
    assert assigned.acquire(waiting) is PollOutcome.STALE
    assigned.confirm_delivered()
    assert assigned.consume_offset == 10


def test_revoked_queue_counts_no_returned_messages_before_their_confirmation(assigned):
    assigned.acquire(pulled(assigned, 0, 10, 11, then=12))
    assert assigned.drop() == 10


def test_paused_queue_keeps_its_pulled_messages(assigned):
    request = pulled(assigned, 0, 10, then=11)
    assigned.is_paused = True
    assert assigned.acquire(request) is PollOutcome.PAUSED
    assigned.is_paused = False
    assert assigned.acquire(request) is PollOutcome.ACQUIRED


def test_replacing_one_topics_queues_keeps_the_queues_of_other_topics():
    queues = AssignedQueues(lambda: 0)
    new, gone = queues.replace([QUEUE, OTHER], "T")
    assert ([each.queue for each in new], gone) == ([QUEUE, OTHER], [])
    queues.replace([OF_U], "U")
    kept = queues.get(OTHER)
    new, gone = queues.replace([OTHER], "T")
    assert (new, [each.queue for each in gone]) == ([], [QUEUE])
    assert queues.queues == {OTHER, OF_U}
    assert queues.get(OTHER) is kept


def test_assigned_queues_are_replaced_per_topic():
    queues = AssignedQueues(lambda: 0)
    for _ in range(2):
        new, gone = queues.replace([QUEUE, OTHER], "T")
        assert ([each.queue for each in new], gone) == ([QUEUE, OTHER], [])
        new, gone = queues.replace([], "T")
        assert (new, [each.queue for each in gone]) == ([], [QUEUE, OTHER])
        assert queues.replace([], "T") == ([], [])


def test_replacing_assigned_queues_without_a_topic_replaces_all_topics():
    queues = AssignedQueues(lambda: 0)
    queues.replace([QUEUE, OF_U])
    _, gone = queues.replace([OTHER])
    assert {each.queue for each in gone} == {QUEUE, OF_U}
    assert [each.queue for each in queues.all()] == [OTHER]


def test_reassigned_queue_gets_new_state():
    queues = AssignedQueues(lambda: 0)
    (first,), _ = queues.replace([QUEUE])
    queues.replace([])
    (second,), _ = queues.replace([QUEUE])
    assert first is not second


def test_ten_thousand_revocations_in_flight_lose_nothing():
    """Two members own a queue alternately; each pull is answered before or after its revocation."""
    dice, committed, returned, end = random.Random(28), 0, set(), 0
    for _ in range(10_000):
        end += dice.randrange(3)
        assigned = AssignedQueue(QUEUE, lambda: 0)
        assigned.set_first_offset(0, StartPosition(committed, QueueFingerprint()))
        for _ in range(dice.randrange(3)):
            epoch, offset = assigned.pull_position()
            messages = several(*range(offset, end))
            if assigned.add_pulled(epoch, messages, end) and messages:
                request = ConsumeRequest(assigned, epoch, messages)
                if dice.random() < 0.8 and assigned.acquire(request) is PollOutcome.ACQUIRED:
                    returned.update(range(offset, end))
                    if dice.random() < 0.8:
                        assigned.confirm_delivered()
        in_flight = assigned.pull_position()
        committed = assigned.drop()
        assert not assigned.add_pulled(in_flight[0], several(*range(in_flight[1], end)), end)
        assigned.confirm_delivered()
        assert assigned.consume_offset == committed
        assert set(range(committed)) <= returned


def handed_out(assigned, request, *, asking_confirms=True):
    assert assigned.acquire(request, one_by_one=True) is PollOutcome.ACQUIRED
    assigned.cursor.confirms_on_next = asking_confirms
    return assigned.cursor


def offsets_of(cursor, count):
    return [cursor.next().queue_offset for _ in range(count)]


def test_handed_out_message_counts_as_returned_and_earlier_ones_as_processed(assigned):
    cursor = handed_out(assigned, pulled(assigned, 0, 10, 11, 12, then=15))
    assert (assigned.delivered_offset, assigned.consume_offset) == (10, 10)
    assert offsets_of(cursor, 1) == [10]
    assert (assigned.delivered_offset, assigned.consume_offset) == (11, 10)
    assert offsets_of(cursor, 2) == [11, 12]
    assert assigned.process_queue.message_count == 0
    assert (assigned.delivered_offset, assigned.consume_offset) == (15, 12)
    assert cursor.next() is None
    assert assigned.close_cursor() is None


def test_handout_without_auto_commit_does_not_confirm_by_asking_for_more(assigned):
    cursor = handed_out(assigned, pulled(assigned, 0, 10, 11, 12, then=13), asking_confirms=False)
    offsets_of(cursor, 2)
    assigned.confirm_delivered()
    offsets_of(cursor, 1)
    assert (assigned.delivered_offset, assigned.consume_offset) == (13, 12)


@pytest.mark.parametrize("end", ["seek", "drop", "rewind_to_returned", "rewind_to_delivered"])
def test_handout_ends_with_seek_drop_or_rewind(assigned, end):
    cursor = handed_out(assigned, pulled(assigned, 0, 10, 11, 12, then=13))
    offsets_of(cursor, 2)
    getattr(assigned, end)(*[50] if end == "seek" else [])
    assert cursor.next() is None
    assert assigned.close_cursor() is None
    if end != "drop":
        assert assigned.pull_position() == (1, 50 if end == "seek" else 12)
    assert assigned.consume_offset == (50 if end == "seek" else 11)


def test_paused_assigned_queue_hands_out_no_messages(assigned):
    request = pulled(assigned, 0, 10, 11, then=12)
    assigned.is_paused = True
    assert assigned.acquire(request, one_by_one=True) is PollOutcome.PAUSED
    assigned.is_paused = False
    cursor = handed_out(assigned, request)
    offsets_of(cursor, 1)
    assigned.is_paused = True
    assert cursor.next() is None
    assigned.is_paused = False
    assert offsets_of(cursor, 1) == [11]


class HandedOutAsTaken(RuleBasedStateMachine):
    """Compares two queues on the same events: one returns batches, the other single messages."""

    @initialize(confirms=st.booleans())
    def start(self, confirms):
        self.singly, self.handing = self.both = [AssignedQueue(QUEUE, lambda: 0) for _ in range(2)]
        for each in self.both:
            each.set_first_offset(0, StartPosition(0, QueueFingerprint()))
        self.confirms, self.waiting, self.damaged = confirms, [], []

    @rule(gaps=st.lists(st.integers(0, 2), max_size=5), is_damaged=st.booleans())
    def pull(self, gaps, is_damaged):
        epoch, offset = self.singly.pull_position()
        offsets = [offset + number + sum(gaps[: number + 1]) for number in range(len(gaps))]
        messages = list(several(*offsets))
        damaged = [messages.pop()] if messages and is_damaged else []
        for each in self.both:
            assert each.add_pulled(epoch, messages, (offsets or [offset])[-1] + 2, damaged)
        self.waiting += messages
        self.damaged += damaged

    @precondition(lambda self: self.waiting)
    @rule()
    def ask(self):
        self._ask()

    @precondition(lambda self: len(self.waiting) > 2)
    @rule()
    def ask_thrice(self):
        for _ in range(3):
            self._ask()

    def _ask(self):
        epoch, message = self.singly.pull_position()[0], self.waiting.pop(0)
        if self.confirms:
            self.singly.confirm_delivered()
        assert (
            self.singly.acquire(ConsumeRequest(self.singly, epoch, (message,)))
            is PollOutcome.ACQUIRED
        )
        self.singly.returned_offset = self.singly.delivered_offset
        found = self.handing.cursor and self.handing.cursor.next()
        if found is None:
            if self.confirms:
                self.handing.confirm_delivered()
            request = ConsumeRequest(self.handing, epoch, (message, *self.waiting))
            found = handed_out(self.handing, request, asking_confirms=self.confirms).next()
        assert found is message

    @rule()
    def commit(self):
        for each in self.both:
            each.confirm_delivered()

    @precondition(lambda self: self.damaged)
    @rule()
    def bury(self):
        buried = self.damaged.pop()
        for each in self.both:
            each.acknowledge_unreadable(each.pull_position()[0], buried)

    @rule()
    def end(self):
        left = self.handing.close_cursor()
        assert left is None or list(left.messages) == self.waiting[: len(left.messages)]

    @rule(
        how=st.sampled_from(["seek", "rewind_to_returned", "rewind_to_delivered"]),
        offset=st.integers(0, 9),
    )
    def go_elsewhere(self, how, offset):
        for each in self.both:
            getattr(each, how)(*[offset] if how == "seek" else [])
        self.waiting, self.damaged = [], []

    @rule()
    def look(self):
        one, other = map(self._seen, self.both)
        assert one == other

    @staticmethod
    def _seen(assigned):
        return (
            assigned.consume_offset,
            assigned.delivered_offset,
            assigned.returned_offset,
            assigned.process_queue.message_count,
            assigned.pull_position(),
        )

    def teardown(self):
        if hasattr(self, "both"):
            assert self.handing.drop() == self.singly.drop()


TestHandedOutAsTaken = HandedOutAsTaken.TestCase


class NothingIsSkipped(RuleBasedStateMachine):
    """Random pulls, seeks and revocations: each message counts as consumed only after it was
    returned."""

    @initialize()
    def start(self):
        self.assigned, self.under_way, self.waiting = AssignedQueue(QUEUE, lambda: 0), [], []
        self.assigned.set_first_offset(0, StartPosition(0, QueueFingerprint()))
        self.returned, self.from_offset = [], 0

    @rule()
    def pull(self):
        self.under_way.append(self.assigned.pull_position())

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), gaps=st.lists(st.integers(0, 2), max_size=4))
    def answer(self, data, gaps):
        epoch, offset = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        now_epoch, now_offset = self.assigned.pull_position()
        if epoch == now_epoch and offset != now_offset:
            return  # a task has one pending pull per epoch
        end, offsets = offset, []
        for gap in gaps:
            offsets.append(end + gap)
            end += gap + 1
        messages = several(*offsets)
        if self.assigned.add_pulled(epoch, messages, end) and messages:
            self.waiting.append(ConsumeRequest(self.assigned, epoch, messages))

    @precondition(lambda self: self.waiting)
    @rule()
    def poll(self):
        self.assigned.confirm_delivered()
        request = self.waiting.pop(0)
        if self.assigned.acquire(request) is PollOutcome.ACQUIRED:
            self.returned += [each.queue_offset for each in request.messages]

    @rule(offset=st.integers(0, 40))
    def seek(self, offset):
        self.assigned.seek(offset)
        self.returned, self.from_offset = [], offset

    @precondition(lambda self: len(self.returned) > 4)
    @rule()
    def revoke(self):
        self.assigned.drop()

    @invariant()
    def no_message_that_waits_or_is_yet_to_come_counts_as_consumed(self):
        if not hasattr(self, "assigned"):
            return
        assert self.returned == sorted(set(self.returned))
        consumed = self.assigned.consume_offset
        live = [each for each in self.waiting if each.epoch == self.assigned.pull_position()[0]]
        for request in live:
            assert all(each.queue_offset >= consumed for each in request.messages)
        assert consumed >= self.from_offset or self.assigned.is_dropped


TestNothingIsSkipped = NothingIsSkipped.TestCase


@pytest.mark.parametrize(("found", "dealt_with"), [(11, 10), (4, 4)])
def test_restarted_queue_confirms_only_processed_messages(assigned, found, dealt_with):
    request = pulled(assigned, 0, 10, 11, then=12)
    assert assigned.acquire(request) is PollOutcome.ACQUIRED
    epoch = assigned.restart_at(0, found)
    assert assigned.pull_position() == (epoch, found)
    assert assigned.consume_offset == dealt_with
    assigned.confirm_delivered()
    assert assigned.consume_offset == found
