"""The pull request hold service: which pulls it releases and when, each once, without leftovers."""

import random
from collections import Counter
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from support.brokers.hold_service import Client, Codes, Hold, a_pull
from support.suite.selection import count

from rocketpoll.broker.longpolling.hold_limits import HoldLimits
from rocketpoll.broker.longpolling.pull_request import QUOTA_UNIT_BYTES


def test_arrival_wakes_held_pulls_of_its_queue_only():
    hold = Hold()
    here, there, elsewhere = a_pull(), a_pull(queue_id=1), a_pull(topic="U")
    for pull in (here, there, elsewhere):
        assert hold.service.suspend_pull_request(pull)
    assert hold.arrive("T", 0, 1, [0]) == 1
    assert hold.woken == [here]
    assert (hold.service.hold_count, hold.service.queue_count) == (2, 2)


def test_held_pulls_of_a_queue_are_woken_in_order():
    hold = Hold()
    pulls = [a_pull() for _ in range(5)]
    for pull in pulls:
        hold.service.suspend_pull_request(pull)
    hold.arrive("T", 0, 3, [0, 0, 0])
    assert hold.woken == pulls
    assert (hold.service.hold_count, hold.service.queue_count) == (0, 0)


def test_arrival_before_the_offset_of_a_held_pull_does_not_wake_it():
    hold = Hold()
    hold.service.suspend_pull_request(a_pull(queue_offset=7))
    assert hold.arrive("T", 0, 7, [0]) == 0
    assert hold.arrive("T", 0, 8, [0]) == 1


def test_short_polling_pull_is_woken_only_at_its_deadline():
    hold = Hold(HoldLimits(long_polling_enable=False))
    pull = a_pull(timeout_ms=9_000)
    hold.service.suspend_pull_request(pull)
    hold.ends["T", 0] = 1
    assert hold.arrive("T", 0, 1, [0]) == 0
    assert hold.sweep(5_000) == 0
    assert hold.service.expire(9_000) == 1
    assert hold.woken == [pull]
    assert hold.service.rescued_total == 0


def test_sweep_wakes_pulls_whose_deadline_the_loop_missed():
    hold = Hold()
    pull = a_pull(timeout_ms=5_000)
    hold.service.suspend_pull_request(pull)
    assert hold.sweep(5_999) == 0
    assert hold.woken == []
    assert hold.sweep(6_000) == 1
    assert hold.woken == [pull]


def test_held_pull_with_a_tag_filter_is_woken_by_any_code_of_a_batch():
    hold = Hold()
    pull = a_pull(wants=Codes(65))
    hold.service.suspend_pull_request(pull)
    assert hold.arrive("T", 0, 2, [1, 2]) == 0
    assert hold.arrive("T", 0, 5, [3, 65, 4]) == 1
    assert hold.woken == [pull]


def test_sweep_does_not_match_checked_messages_again():
    hold = Hold()
    hold.service.suspend_pull_request(a_pull(wants=Codes(65)))
    hold.arrive("T", 0, 2, [1, 2])
    hold.ends["T", 0] = 2
    assert hold.sweep(5_000) == 0
    assert hold.service.rescued_total == 0


def test_held_pulls_with_one_filter_share_a_match():
    hold = Hold()
    wants = Codes(0, needs_messages=True)
    pulls = [a_pull(wants=wants) for _ in range(5)] + [a_pull(wants=wants, queue_offset=1)]
    for pull in pulls:
        hold.service.suspend_pull_request(pull)
    hold.arrive("T", 0, 3, [0, 0, 0])
    assert hold.matches_from == [0, 1]
    hold.is_matched = True
    assert hold.arrive("T", 0, 4, [0]) == 6
    assert hold.matches_from == [0, 1, 3]
    assert hold.woken == pulls


def test_held_pull_with_a_property_filter_checks_only_new_messages():
    hold = Hold()
    hold.service.suspend_pull_request(a_pull(queue_offset=3, wants=Codes(0, needs_messages=True)))
    assert hold.arrive("T", 0, 5, [0, 0]) == 0
    assert hold.arrive("T", 0, 9, [0]) == 0
    hold.is_matched = True
    assert hold.arrive("T", 0, 10, [0]) == 1
    assert hold.matches_from == [3, 5, 9]


def test_failing_replay_closes_its_client_and_wakes_the_others():
    hold = Hold()
    first, second = Client(), Client()
    answered = []

    def wake(request):
        if request.connection is first:
            raise OSError("bad sector")
        answered.append(request)

    hold.wake = wake
    for client in (first, second):
        hold.service.suspend_pull_request(a_pull(client))
    assert hold.arrive("T", 0, 1, [0]) == 2
    assert first.closed_because
    assert [pull.connection for pull in answered] == [second]
    assert hold.service.hold_count == 0


def test_topic_release_answers_its_held_and_deferred_pulls():
    hold = Hold(HoldLimits(holds_max=3))
    client = Client()
    pulls = put_off, here, there, elsewhere = (
        a_pull(client, now_ms=1),
        a_pull(client),
        a_pull(queue_id=1),
        a_pull(topic="U"),
    )
    for pull in pulls:
        assert hold.service.suspend_pull_request(pull)
    assert hold.service.deferred_total == 1
    hold.work(hold.service.release("T"))
    assert [pull.header for pull in hold.woken] == [here.header, there.header, put_off.header]
    assert elsewhere not in hold.woken
    assert hold.service.hold_count == 1


def test_held_pull_woken_during_topic_release_is_answered_once():
    hold = Hold()
    first, second = a_pull(), a_pull()
    for pull in (first, second):
        hold.service.suspend_pull_request(pull)
    release = hold.service.release("T")
    next(release)
    hold.arrive("T", 0, 1, [0])
    hold.work(release)
    assert hold.woken == [first, second]


def test_release_all_answers_every_held_pull():
    hold = Hold()
    for queue_id in range(3):
        hold.service.suspend_pull_request(a_pull(queue_id=queue_id))
    hold.service.release_all()
    assert len(hold.woken) == 3
    assert (hold.service.hold_count, hold.service.queue_count) == (0, 0)


def test_pull_beyond_the_hold_limit_is_deferred_for_short_polling_time():
    """If it were answered at once, the client would pull again at once."""
    hold = Hold(HoldLimits(holds_max=3))
    pulls = [a_pull() for _ in range(4)]
    for pull in pulls:
        assert hold.service.suspend_pull_request(pull)
    assert (hold.service.hold_count, hold.service.deferred_total) == (3, 1)
    assert hold.service.next_deadline_ms == 1_000
    assert hold.arrive("T", 0, 1, [0]) == 3
    assert hold.woken == pulls[:3]
    assert hold.service.expire(999) == 0
    assert hold.service.expire(1_000) == 1
    assert (hold.woken[3].connection, hold.woken[3].request) == (
        pulls[3].connection,
        pulls[3].request,
    )
    assert hold.service.next_deadline_ms is None


def test_hold_quota_counts_bytes_of_long_subscriptions():
    """A new client with a short subscription gets its place from a client that holds long ones."""
    hold = Hold(HoldLimits(holds_max=20))
    greedy, modest = Client(), Client()
    for queue_id in range(10):
        long = a_pull(greedy, queue_id=queue_id, subscription="x" * 4 * QUOTA_UNIT_BYTES)
        assert hold.service.suspend_pull_request(long) is (queue_id < 8)
    assert (hold.service.hold_count, hold.service.deferred_total) == (4, 4)
    assert hold.service.suspend_pull_request(a_pull(modest))
    assert (
        hold.service.hold_count == 4
    )  # a pull of the greedy client has left: there is no room to defer it
    assert [pull.connection for pull in hold.woken] == [greedy]
    hold.service.release_all()
    assert hold.service.suspend_pull_request(a_pull(subscription="x" * 40 * QUOTA_UNIT_BYTES))


def test_hold_limit_takes_places_from_the_client_with_most_held_pulls():
    hold = Hold(HoldLimits(holds_max=20))
    greedy, modest = Client(), Client()
    for queue_id in range(20):
        hold.service.suspend_pull_request(a_pull(greedy, queue_id=queue_id))
    for queue_id in range(15):
        hold.service.suspend_pull_request(a_pull(modest, queue_id=queue_id, now_ms=10))
    assert (hold.service.hold_count, hold.service.deferred_total) == (20, 15)
    for queue_id in range(20):
        hold.arrive("T", queue_id, 1, [0])
    woken = Counter(pull.connection for pull in hold.woken)
    assert woken == {greedy: 10, modest: 10}
    # The longest-held pull of the greedy client was deferred, and so was the last pull of the
    # modest one.
    assert hold.service.expire(1_009) == 0
    assert hold.service.expire(1_010) == 15
    assert {pull.header.queue_id for pull in hold.woken[20:] if pull.connection is greedy} == set(
        range(10)
    )
    assert {pull.header.queue_id for pull in hold.woken[20:] if pull.connection is modest} == set(
        range(10, 15)
    )


class Bits:
    """Does work in steps, when the test calls for it."""

    def __init__(self):
        self.all = []

    def __call__(self, steps):
        self.all.append(steps)

    def step(self, count=1):
        """Do at most this number of steps."""
        for _ in range(count):
            if self.all and next(self.all[0], self) is self:
                self.all.pop(0)

    def finish(self):
        while self.all:
            self.step()


def test_arrival_wakes_thousands_of_held_pulls_in_steps_each_once():
    hold = Hold(HoldLimits(holds_max=10_000))
    hold.work = bits = Bits()
    pulls = [a_pull() for _ in range(5_000)]
    for pull in pulls:
        hold.service.suspend_pull_request(pull)
    hold.service.notify_message_arriving("T", 0, 1, [0])
    assert hold.woken == []
    while bits.all:
        before = len(hold.woken)
        bits.step()
        assert len(hold.woken) <= before + 1
    assert hold.woken == pulls


def test_held_pull_of_a_client_closed_before_its_wakeup_is_dropped():
    hold = Hold()
    hold.work = bits = Bits()
    gone, there = Client(), Client()
    for client in (gone, there):
        hold.service.suspend_pull_request(a_pull(client))
    hold.service.notify_message_arriving("T", 0, 1, [0])
    bits.step()
    gone.is_closed = True
    hold.service.discard(gone)
    bits.finish()
    assert [pull.connection for pull in hold.woken] == [there]


def test_release_all_answers_held_pulls_already_being_woken():
    hold = Hold()
    hold.work = bits = Bits()
    pulls = [a_pull() for _ in range(5)]
    for pull in pulls:
        hold.service.suspend_pull_request(pull)
    hold.service.notify_message_arriving("T", 0, 1, [0])
    bits.step(7)
    hold.service.release_all()
    assert hold.woken == pulls
    bits.finish()
    assert hold.woken == pulls


def test_equal_deadlines_expire_in_steps():
    hold = Hold(HoldLimits(holds_max=10_000))
    for _ in range(625):
        hold.service.suspend_pull_request(a_pull())
    assert [hold.service.expire(15_000) for _ in range(4)] == [250, 250, 125, 0]
    assert len(hold.woken) == 625


def test_hold_deadlines_stay_ordered_when_those_of_released_pulls_are_discarded():
    hold = Hold(HoldLimits(holds_max=10_000))
    timeouts_ms = random.Random(7).sample(range(5_000, 20_000), 2_000)
    for queue_id, timeout_ms in enumerate(timeouts_ms):
        hold.service.suspend_pull_request(a_pull(queue_id=queue_id, timeout_ms=timeout_ms))
    for queue_id in range(1_900):
        hold.arrive("T", queue_id, 1)
    hold.service.suspend_pull_request(a_pull(timeout_ms=30_000))
    for deadline_ms in (*sorted(timeouts_ms[1_900:]), 30_000):
        assert hold.service.next_deadline_ms == deadline_ms
        assert hold.service.expire(deadline_ms) == 1
    assert hold.service.next_deadline_ms is None


def test_deferred_pulls_are_limited_and_more_are_refused():
    hold = Hold(HoldLimits(holds_max=2, short_polling_time_ms=300))
    gone = Client()
    assert [hold.service.suspend_pull_request(a_pull(gone)) for _ in range(5)] == [True] * 4 + [
        False
    ]
    assert (hold.service.hold_count, hold.service.deferred_total) == (2, 2)
    hold.service.discard(gone)
    assert [hold.service.suspend_pull_request(a_pull()) for _ in range(5)] == [True] * 4 + [False]
    hold.service.release_all()
    assert len(hold.woken) == 4
    assert hold.service.next_deadline_ms is None


def test_held_pull_at_a_gap_is_not_rescued_by_the_sweep():
    hold = Hold()
    hold.ends["T", 0] = 40
    pull = replace(a_pull(queue_offset=5), no_match_before=40)
    hold.service.suspend_pull_request(pull)
    assert hold.sweep(5_000) == 0
    assert hold.arrive("T", 0, 41, [0]) == 1
    assert hold.service.rescued_total == 0


def test_hold_table_is_empty_after_ten_thousand_queues():
    """RocketMQ keeps a key for every queue with an earlier held pull."""
    hold = Hold()
    client = Client()
    for queue_id in range(10_000):
        hold.service.suspend_pull_request(a_pull(client, queue_id=queue_id))
        hold.arrive("T", queue_id, 1, [0])
    assert (hold.service.hold_count, hold.service.queue_count) == (0, 0)
    assert len(hold.woken) == 10_000


class HoldMachine(RuleBasedStateMachine):
    """Compares the service with a list of held pulls; work is done at once, or in interleaved
    steps."""

    pulls = Bundle("pulls")

    @initialize(at_once=st.booleans())
    def begin(self, at_once):
        limits = HoldLimits(holds_max=8, holds_per_connection_and_queue=2, short_polling_time_ms=7)
        self.hold = Hold(limits)
        self.bits = Bits()
        if not at_once:
            self.hold.work = self.bits
        self.waiting = []
        self.put_off = []
        self.answered = []
        self.now_ms = 0
        self.clients = [Client() for _ in range(4)]
        self.hold.wake = self.answered.append

    def expect(self, leaving):
        """Check that these pulls are answered, and no others, when all work is done."""
        self.bits.finish()
        assert sorted(map(_name_of, self.answered)) == sorted(map(_name_of, leaving))
        self.answered.clear()
        self.waiting = [pull for pull in self.waiting if pull not in leaving]

    def puts_off(self, pull):
        """Put a pull into the list of deferred ones; return False if too many are deferred."""
        if len(self.put_off) >= 8:
            return False
        self.put_off.append(
            (min(pull.deadline_ms, self.now_ms + 7), _name_of(pull), pull.connection)
        )
        return True

    def makes_room(self, victim):
        self.waiting.remove(victim)
        if not self.puts_off(victim):
            self.expect([victim])

    @rule(
        target=pulls,
        client=st.integers(0, 3),
        queue_id=st.integers(0, 2),
        timeout_ms=st.integers(1, 30),
        code=st.none() | st.integers(0, 2),
        group=st.sampled_from("GH"),
    )
    def suspend(self, client, queue_id, timeout_ms, code, group):
        wants = None if code is None else Codes(code)
        end = self.hold.ends["T", queue_id]
        pull = a_pull(
            self.clients[client], "T", queue_id, end, self.now_ms, timeout_ms, wants, group=group
        )
        alike = [
            each
            for each in self.waiting
            if (each.connection, each.queue) == (pull.connection, pull.queue)
            and each.header.consumer_group == group
        ]
        counts = Counter(each.connection for each in self.waiting)
        most = max(counts.values(), default=0)
        is_taken = self.hold.service.suspend_pull_request(pull)
        if len(alike) >= 2:
            self.makes_room(alike[0])
        elif len(self.waiting) >= 8:
            if counts[pull.connection] + 1 >= most:
                assert is_taken is self.puts_off(pull)
                return pull
            oldest = {each.connection: each for each in reversed(self.waiting)}
            held = self.hold.service._holds
            (victim,) = [each for each in oldest.values() if each not in held]
            assert counts[victim.connection] == most
            self.makes_room(victim)
        assert is_taken
        self.waiting.append(pull)
        return pull

    @rule(queue_id=st.integers(0, 2), codes=st.lists(st.integers(0, 2), min_size=1, max_size=3))
    def arrive(self, queue_id, codes):
        self.hold.ends["T", queue_id] += len(codes)
        self.hold.service.notify_message_arriving(
            "T", queue_id, self.hold.ends["T", queue_id], codes
        )
        self.expect(
            [
                pull
                for pull in self.waiting
                if pull.queue == ("T", queue_id)
                and (pull.message_filter is None or set(codes) & set(pull.message_filter.codes))
            ]
        )

    @rule(
        queue_id=st.integers(0, 2),
        arrivals=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=2, max_size=4),
    )
    def arrive_one_into_the_other(self, queue_id, arrivals):
        for code, steps in arrivals:
            self.hold.ends["T", queue_id] += 1
            self.hold.service.notify_message_arriving(
                "T", queue_id, self.hold.ends["T", queue_id], [code]
            )
            self.bits.step(steps)
        codes = {code for code, _ in arrivals}
        self.expect(
            [
                pull
                for pull in self.waiting
                if pull.queue == ("T", queue_id)
                and (pull.message_filter is None or codes & set(pull.message_filter.codes))
            ]
        )

    @rule(ms=st.integers(0, 20))
    def time_passes(self, ms):
        self.now_ms += ms
        self.hold.service.expire(self.now_ms)
        self.bits.finish()
        due = [each for each in self.put_off if each[0] <= self.now_ms]
        waited = [pull for pull in self.answered if pull in self.waiting]
        put_off = [_name_of(pull) for pull in self.answered if pull not in waited]
        assert Counter(put_off) == Counter(name for _, name, _ in due)
        self.put_off = [each for each in self.put_off if each[0] > self.now_ms]
        self.answered[:] = waited
        self.expect([pull for pull in self.waiting if pull.deadline_ms <= self.now_ms])

    @rule(client=st.integers(0, 3))
    def go(self, client):
        gone = self.clients[client]
        gone.is_closed = True
        self.clients[client] = Client()
        self.hold.service.discard(gone)
        self.waiting = [pull for pull in self.waiting if pull.connection is not gone]
        self.put_off = [each for each in self.put_off if each[2] is not gone]
        self.expect([])

    @rule()
    def sweep(self):
        self.hold.sweep(self.now_ms)
        self.expect([])

    @rule(pull=consumes(pulls))
    def a_pull_that_is_over_is_never_answered_again(self, pull):
        if pull not in self.waiting:
            assert pull not in self.answered

    @invariant()
    def the_table_is_what_waits(self):
        if not hasattr(self, "hold"):
            return
        service = self.hold.service
        assert service.hold_count == len(self.waiting) <= 8
        assert service.queue_count == len({pull.queue for pull in self.waiting})
        assert service.rescued_total == 0
        deadlines = [pull.deadline_ms for pull in self.waiting] + [at for at, _, _ in self.put_off]
        assert service.next_deadline_ms == (min(deadlines) if deadlines else None)


def _name_of(pull):
    """Return the name of a pull, also after it was deferred."""
    return id(pull.header)


TestHoldMachine = HoldMachine.TestCase
TestHoldMachine.settings = settings(
    max_examples=count("ROCKETPOLL_HOLD_STORIES", 50, wide=200), stateful_step_count=50
)
