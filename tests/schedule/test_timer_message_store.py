"""Timer messages are delivered at their millisecond, once, whatever the clock does."""

import random
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.disks.faulty_disk import ManualClock, RecordingDisk, power_loss_states
from support.stores.small_store import components_of, read_all
from support.stores.timers import LATE_MS, RULES, TimerBroker
from support.suite.selection import count as selected_count

from rmq_spark.wire.names import TIMER_TOPIC
from rocketpoll.broker.schedule.real_topic_delivery import MESSAGES_PER_CALL, RETRY_MS
from rocketpoll.broker.schedule.timer_message_store import INDEXED_PER_CALL
from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.results import PutMessageResult, PutMessageStatus

HOUR_MS = 3_600_000
STATES = selected_count("ROCKETPOLL_TIMER_STATES", 5, wide=500)
FULL = PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, remark="full")


@pytest.fixture
def broker(tmp_path):
    opened = TimerBroker(tmp_path)
    yield opened
    opened.close()


@pytest.mark.parametrize("delay_ms", [1, 2, 999, 1_000, 1_001, 2_500, 86_400_000])
def test_timer_message_is_delivered_at_its_millisecond(broker, delay_ms):
    broker.set("x", delay_ms)
    broker.run_until(broker.monotonic_ms + delay_ms)
    assert broker.delivered() == []
    broker.run_until(broker.monotonic_ms + LATE_MS)
    assert broker.delivered() == ["x"]
    assert broker.timers.pending == 0


def test_timer_messages_of_one_second_come_in_order_of_time_then_of_arrival(broker):
    for text, delay_ms in [("c", 2_900), ("a", 2_100), ("b1", 2_500), ("b2", 2_500), ("b3", 2_500)]:
        broker.set(text, delay_ms)
    broker.run_until(broker.monotonic_ms + 4_000)
    assert broker.delivered() == ["a", "b1", "b2", "b3", "c"]


def test_next_call_of_timers_is_that_of_the_next_timer(broker):
    assert broker.deliver_all() is None
    broker.set("far", 10 * HOUR_MS)
    assert 9 * HOUR_MS < broker.deliver_all() < 10 * HOUR_MS
    broker.set("near", 300)
    assert broker.deliver_all() == 301


def test_next_due_is_the_time_of_day_of_the_next_timer(broker):
    assert broker.timers.next_due_ms is None
    far_ms = broker.set("far", 10 * HOUR_MS)
    broker.deliver_all()
    assert far_ms - 1_000 <= broker.timers.next_due_ms <= far_ms
    near_ms = broker.set("near", 300)
    broker.deliver_all()
    assert near_ms - 1_000 <= broker.timers.next_due_ms <= near_ms
    broker.run_until(broker.monotonic_ms + 2_000)
    assert far_ms - 1_000 <= broker.timers.next_due_ms <= far_ms


def test_delivered_timer_message_has_the_properties_of_rocketmq(broker):
    now_ms = broker.clock()
    due_ms = broker.set("x", 1_500, TAGS="A")
    broker.run_until(broker.monotonic_ms + 2_000)
    (found,) = read_all(broker.store, "T", 0)
    assert found.properties == {
        "UNIQ_KEY": "id-x",
        "TAGS": "A",
        "TIMER_DELAY_MS": "1500",
        "TIMER_DELIVER_MS": str(due_ms),
        "TIMER_OUT_MS": str((due_ms - 1) // 1_000 * 1_000),
        "TIMER_ENQUEUE_MS": str(now_ms // 1_000 * 1_000),
        "TIMER_DEQUEUE_MS": str(due_ms + 1),
    }


def test_deliver_limits_timer_messages_per_call(broker):
    for number in range(3 * MESSAGES_PER_CALL):
        broker.set(str(number), 1_500)
    broker.deliver_all()
    broker.wait(1_501)
    seen = []
    while broker.deliver() == 0:
        seen.append(len(broker.delivered()))
    assert seen == [MESSAGES_PER_CALL, 2 * MESSAGES_PER_CALL]
    assert len(broker.delivered()) == 3 * MESSAGES_PER_CALL


def test_refused_timer_message_is_tried_again_and_delays_no_later_one(broker, caplog):
    broker.set("first", 1_500)
    broker.deliver_all()
    broker.wait(1_501)
    broker.refuses = FULL
    assert broker.deliver_all() == RETRY_MS + 1
    broker.refuses = None
    broker.set("second", 100)
    broker.run_until(broker.monotonic_ms + 110)
    assert broker.delivered() == ["second"]
    broker.run_until(broker.monotonic_ms + RETRY_MS)
    assert broker.delivered() == ["second", "first"]
    assert "delivery of timer messages waits: full" in caplog.text


def test_clean_stop_repeats_no_timer_message_within_a_second(broker):
    for number in range(10):
        broker.set(str(number), 1_000 + 50 * number)
    broker.run_until(broker.monotonic_ms + 1_203)
    before = broker.delivered()
    assert before == ["0", "1", "2", "3", "4"]
    for _ in range(2):  # the second start reads the files of the first stop
        broker.restart()
        assert broker.delivered() == before
        assert broker.timers.pending == 5
    broker.run_until(broker.monotonic_ms + 2_000)
    assert broker.delivered() == [str(number) for number in range(10)]


def test_clean_stop_in_a_slot_delivers_no_recalled_timer_message(broker):
    for text, delay_ms in [("first", 1_100), ("recalled", 1_700), ("last", 1_800)]:
        due_ms = broker.set(text, delay_ms)
        if text == "recalled":
            assert broker.recall(text, due_ms)
    broker.run_until(broker.monotonic_ms + 1_200)
    assert broker.delivered() == ["first"]
    for _ in range(2):
        broker.restart()
    assert broker.timers.pending == 1
    broker.run_until(broker.monotonic_ms + 2_000)
    assert broker.delivered() == ["first", "last"]
    assert broker.timers.pending == 0


@pytest.mark.parametrize("back_ms", [1, 5_000, HOUR_MS])
def test_kill_soon_after_the_clock_was_set_back_loses_no_timer_message(broker, back_ms):
    broker.set("old", 1, has_delay=False)
    broker.deliver_all()
    broker.timers.save()
    broker.clock.now_ms -= back_ms
    broker.restart(is_clean=False)
    broker.set("new", 1, has_delay=False)
    broker.deliver_all()
    broker.restart(is_clean=False)
    broker.run_until(broker.monotonic_ms + back_ms + LATE_MS)
    assert sorted(broker.delivered()) == ["new", "old"]
    assert broker.timers.pending == 0


@pytest.mark.parametrize("is_saved", [True, False])
def test_kill_loses_no_timer_message(broker, is_saved):
    for number in range(30):  # several files of the timer log
        broker.set(str(number), 1_000 * (number + 1))
    broker.run_until(broker.monotonic_ms + 3_500)
    if is_saved:
        broker.timers.save()
        for number in range(30, 40):
            broker.set(str(number), 1_000 * (number + 1))
        broker.deliver_all()
    broker.restart(is_clean=False)
    broker.run_until(broker.monotonic_ms + 50_000)
    found = Counter(broker.delivered())
    assert set(found) == {str(number) for number in range(40 if is_saved else 30)}
    repeated = {text for text, count in found.items() if count > 1}
    assert repeated <= {"0", "1", "2"}
    assert broker.timers.pending == 0


def test_kill_repeats_no_timer_message_of_a_second_that_is_over(broker):
    broker.set("x", 1)
    while (again := broker.deliver_all()) is not None:
        broker.wait(again)
    broker.timers.save()
    broker.restart(is_clean=False)
    broker.deliver_all()
    assert broker.delivered() == ["x"]
    assert broker.timers.dropped_total == 0


@pytest.mark.parametrize("lost", ["timerwheel", "timerlog", "config/timercheck", "all"])
def test_lost_index_of_timers_is_built_again_from_the_log(broker, lost, caplog):
    broker.set("past", 1_000)
    for number in range(20):
        broker.set(str(number), 10_000 + number)
    broker.run_until(broker.monotonic_ms + 5_000)
    broker.stop()
    for name in ("timerwheel", "timerlog", "config/timercheck") if lost == "all" else (lost,):
        path = broker.root / "store" / name
        for file in path.iterdir() if path.is_dir() else [path]:
            file.unlink()
    broker.start()
    broker.run_until(broker.monotonic_ms + 10_000)
    found = Counter(broker.delivered())
    has_progress = lost in ("timerwheel", "timerlog")
    assert found == {"past": 1 if has_progress else 2, **{str(each): 1 for each in range(20)}}


def test_timer_message_beyond_the_window_is_stored_again_before_its_file_expires(broker):
    broker.window_ms = HOUR_MS
    due_ms = broker.set("x", 3 * HOUR_MS + 1_234)
    broker.run_until(broker.monotonic_ms + 2 * HOUR_MS + 1_000)
    rolled = read_all(broker.store, TIMER_TOPIC, 0)
    assert [each.properties.get("TIMER_ROLL_TIMES") for each in rolled] == [None, "1", "2"]
    assert {each.properties["TIMER_DELIVER_MS"] for each in rolled} == {str(due_ms)}
    assert broker.timers.pending == 1
    broker.run_until(broker.monotonic_ms + HOUR_MS + 234)
    assert broker.delivered() == []
    broker.run_until(broker.monotonic_ms + LATE_MS)
    assert broker.delivered() == ["x"]


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("delay_ms", [1_700, HOUR_MS])
def test_recalled_timer_message_is_not_delivered(broker, delay_ms, is_restarted):
    due_ms = broker.set("recalled", delay_ms)
    broker.set("other", delay_ms)
    broker.deliver_all()
    assert broker.recall("recalled", due_ms)
    if is_restarted:
        broker.restart()
    broker.run_until(broker.monotonic_ms + delay_ms + LATE_MS)
    assert broker.delivered() == ["other"]
    assert broker.timers.recalled_total == 1
    assert broker.timers.pending == 0


@pytest.mark.parametrize("is_saved", [False, True])
def test_recall_counts_after_a_kill_although_its_message_is_overdue_at_the_start(broker, is_saved):
    due_ms = broker.set("recalled", 1_100)
    if is_saved:
        broker.deliver_all()
        broker.timers.save()
    for number in range(3 * INDEXED_PER_CALL):
        broker.set(str(number), 1_200 + number)
    assert broker.recall("recalled", due_ms)
    broker.wait(5_000)
    broker.restart(is_clean=False)
    broker.run_until(broker.monotonic_ms + LATE_MS)
    assert Counter(broker.delivered()) == {str(each): 1 for each in range(3 * INDEXED_PER_CALL)}
    assert broker.timers.recalled_total == 1
    assert broker.timers.pending == 0


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("delay_ms", [1_700, HOUR_MS])
def test_recall_of_another_topic_recalls_nothing(broker, delay_ms, is_restarted):
    due_ms = broker.set("x", delay_ms)
    broker.deliver_all()
    assert broker.recall("x", due_ms, topic="U")
    if is_restarted:
        broker.restart()
    broker.run_until(broker.monotonic_ms + delay_ms + LATE_MS)
    assert broker.delivered() == ["x"]


def test_recall_counts_even_while_it_is_not_visible(broker):
    due_ms = broker.set("x", 2_500)
    broker.run_until(broker.monotonic_ms + (due_ms - 1) // 1_000 * 1_000 - broker.clock())
    broker.timers.recall("T", "id-x", RULES.slot_ms(due_ms) + 1, broker.monotonic_ms)
    broker.run_until(broker.monotonic_ms + 3_000)
    assert broker.delivered() == []


def test_timer_message_of_a_deleted_topic_is_dropped(broker, caplog):
    broker.set("x", 2_000)
    broker.store.delete_topic("T")
    broker.run_until(broker.monotonic_ms + 3_000)
    assert broker.delivered() == []
    assert broker.timers.dropped_total == 1
    assert "its topic T was deleted while it waited" in caplog.text


@pytest.mark.parametrize("set_by_ms", [-HOUR_MS, HOUR_MS, 700, -700])
def test_timers_follow_elapsed_time_when_the_clock_is_set(broker, set_by_ms):
    broker.set("before", 10_000)
    broker.deliver_all()
    broker.clock.now_ms += set_by_ms
    broker.set("after", 10_000, 1)
    broker.run_until(broker.monotonic_ms + 10_000)
    assert broker.delivered() == []
    broker.run_until(broker.monotonic_ms + LATE_MS)
    assert broker.delivered() == ["before", "after"]


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("set_by_ms", [-HOUR_MS, HOUR_MS])
def test_timers_set_by_a_clock_that_was_set_are_on_time_after_a_restart(
    broker, set_by_ms, is_clean
):
    broker.set("first", 1_000, 1)
    broker.run_until(broker.monotonic_ms + 2_000)
    broker.timers.save()
    broker.clock.now_ms += set_by_ms
    due_ms = broker.set("x", 60_000)
    broker.deliver_all()
    broker.restart(is_clean=is_clean)
    broker.run_until(broker.monotonic_ms + due_ms - broker.clock())
    assert "x" not in broker.delivered()
    broker.run_until(broker.monotonic_ms + LATE_MS)
    assert "x" in broker.delivered()


class PausingClock(ManualClock):
    """A clock that lets other threads run before its reading, a number of times."""

    pauses = 0

    def __call__(self):
        if self.pauses:
            self.pauses -= 1
            self.broker.wait(15)
        return super().__call__()


@pytest.mark.parametrize("pauses", [1, 5])
def test_pause_while_the_clocks_are_read_makes_no_timer_message_early(tmp_path, pauses):
    clock = PausingClock()
    clock.broker = broker = TimerBroker(tmp_path, clock)
    deliver_ms = broker.set("x", 2_000)
    clock.pauses = pauses
    broker.deliver()
    clock.pauses = 0
    broker.run_until(broker.monotonic_ms + deliver_ms - clock())
    assert broker.delivered() == []
    broker.run_until(broker.monotonic_ms + LATE_MS)
    assert broker.delivered() == ["x"]
    broker.close()


def test_timer_set_after_the_clock_went_back_by_more_than_the_wheel_is_delivered(broker):
    broker.clock.now_ms -= 300 * 24 * HOUR_MS
    broker.set("x", 2_000, has_delay=False)
    broker.deliver_all()
    broker.restart()
    broker.run_until(broker.monotonic_ms + 1_999)
    assert broker.delivered() == []
    broker.run_until(broker.monotonic_ms + LATE_MS + 1)
    assert broker.delivered() == ["x"]


def test_timer_beyond_the_window_is_on_time_after_the_clock_was_set(broker):
    broker.window_ms = HOUR_MS
    broker.set("x", 2 * HOUR_MS)
    broker.deliver_all()
    broker.clock.now_ms -= 3_000
    broker.run_until(broker.monotonic_ms + 2 * HOUR_MS)
    assert broker.delivered() == []
    broker.run_until(broker.monotonic_ms + LATE_MS)
    assert broker.delivered() == ["x"]


def test_timers_due_while_the_broker_was_away_are_delivered_at_the_start(broker):
    for number in range(5):
        broker.set(str(number), HOUR_MS * (number + 1))
    broker.restart()
    broker.wait(20 * 24 * HOUR_MS)  # longer than the wheel
    broker.restart(is_clean=False)
    broker.set("new", 5_000)
    broker.deliver_all()
    assert broker.delivered() == ["0", "1", "2", "3", "4"]
    broker.run_until(broker.monotonic_ms + 6_000)
    assert broker.delivered() == ["0", "1", "2", "3", "4", "new"]


def test_timer_message_whose_file_was_deleted_is_logged_and_counted(tmp_path, caplog):
    broker = TimerBroker(tmp_path, mapped_file_size_commit_log=4096)
    broker.set("x", 2 * HOUR_MS)
    broker.deliver_all()
    for number in range(100):
        broker.set(str(number), 1)
    broker.run_until(broker.monotonic_ms + 1_000)
    for file in sorted((tmp_path / "store" / "commitlog").iterdir())[:-1]:
        components_of(broker.store).log.files.delete_before(int(file.name) + 4096)
    broker.run_until(broker.monotonic_ms + 2 * HOUR_MS)
    assert "x" not in broker.delivered()
    assert broker.timers.dropped_total == 1
    assert "was deleted with old files of the log before it was due" in caplog.text
    broker.close()


class TimerMachine(RuleBasedStateMachine):
    """Random times, refusals, recalls, restarts, kills and clock changes. Each message arrives at
    least once, in time, and never early, in elapsed time. A restart uses the time of day, but no
    message waits longer than its delay."""

    def __init__(self):
        super().__init__()
        self.directory = TemporaryDirectory()
        self.broker = TimerBroker(Path(self.directory.name))
        self.broker.window_ms = HOUR_MS
        self.low_ms, self.high_ms, self.deliver_ms, self.delay_ms = {}, {}, {}, {}
        self.recalled, self.perhaps_recalled = set(), set()
        self.seen_ms, self.may_come_again, self.beyond_window = {}, set(), set()
        self.clock_was_set = False
        self.count = 0

    def teardown(self):
        self.broker.close()
        self.directory.cleanup()

    @rule(
        delay_ms=st.sampled_from([1, 900, 1_000, 5_500, 3_000_000, 9_000_000]),
        queue_id=st.integers(0, 3),
        has_delay=st.booleans(),
    )
    def set(self, delay_ms, queue_id, has_delay):
        text = str(self.count)
        self.count += 1
        self.deliver_ms[text] = self.broker.set(text, delay_ms, queue_id, has_delay=has_delay)
        self.low_ms[text] = self.high_ms[text] = self.broker.monotonic_ms + delay_ms
        if has_delay:
            self.delay_ms[text] = delay_ms
        if delay_ms > self.broker.window_ms:
            self.beyond_window.add(text)
        self.broker.deliver_all()

    @rule(ms=st.sampled_from([1, 500, 1_000, 5_000, 2_000_000, 9_000_000]))
    def wait(self, ms):
        self.broker.run_until(self.broker.monotonic_ms + ms)

    @rule(ms=st.sampled_from([1, 1_000, 90_000, 9_000_000, 40 * 24 * HOUR_MS]))
    def be_away(self, ms):
        self.broker.stop()
        self.broker.wait(ms)
        self.broker.start()
        self._go_by_the_clock()

    def _go_by_the_clock(self):
        """Recompute the expected delivery times of waiting messages after a restart.

        A starting broker compares all timers with its time of day.
        """
        for text in self.low_ms.keys() - self.seen_ms.keys():
            left_ms = self.deliver_ms[text] - self.broker.clock()
            high_ms = self.broker.monotonic_ms + max(left_ms, 0) + LATE_MS
            left_ms = min(left_ms, self.delay_ms.get(text, left_ms))
            low_ms = self.broker.monotonic_ms + left_ms
            # Two kinds may keep their remaining time: those stored again, and delays that an
            # earlier start has shortened.
            if text in self.beyond_window or text in self.delay_ms:
                low_ms = min(low_ms, self.low_ms[text])
                high_ms = max(high_ms, self.high_ms[text])
            self.low_ms[text], self.high_ms[text] = low_ms, high_ms
        self.broker.deliver_all()

    @rule(ms=st.sampled_from([1, 700, 3_000, HOUR_MS, 300 * 24 * HOUR_MS]), is_back=st.booleans())
    def set_clock(self, ms, is_back):
        self.broker.clock.now_ms += -ms if is_back else ms
        self.clock_was_set = True
        # a recall may miss its message if the clock is set before it
        self.perhaps_recalled |= self.recalled
        self.recalled = set()

    @rule(data=st.data())
    def recall(self, data):
        waiting = sorted(self.deliver_ms.keys() - set(self.broker.delivered()))
        if waiting and not self.clock_was_set:
            text = data.draw(st.sampled_from(waiting))
            if self.broker.recall(text, self.deliver_ms[text]):
                self.recalled.add(text)

    @rule()
    def refuse(self):
        self.broker.refuses = FULL
        self.broker.deliver()
        self.broker.refuses = None
        self.broker.run_until(self.broker.monotonic_ms + RETRY_MS + LATE_MS)

    @rule(is_saved=st.booleans(), is_clean=st.booleans())
    def restart(self, is_saved, is_clean):
        self.broker.deliver_all()
        self._see()
        if is_saved:
            self.broker.timers.save()
        if not is_clean:  # messages delivered within the last second may come again
            since_ms = 0 if not is_saved else self.broker.monotonic_ms - RULES.precision_ms
            self.may_come_again |= {t for t, at_ms in self.seen_ms.items() if at_ms >= since_ms}
            if not is_saved:  # and so may those stored again, because their file could have expired
                self.may_come_again |= self.beyond_window
            if self.clock_was_set:  # some may be sorted twice
                self.may_come_again |= self.low_ms.keys() - self.seen_ms.keys()
        self.broker.restart(is_clean=is_clean)
        self._go_by_the_clock()

    def _see(self):
        for text in self.broker.delivered():
            self.seen_ms.setdefault(text, self.broker.monotonic_ms)

    @rule()
    def deliver(self):
        self.broker.deliver_all()
        now_ms = self.broker.monotonic_ms - LATE_MS
        due = {text for text, due_ms in self.high_ms.items() if due_ms <= now_ms}
        assert due - self.recalled - self.perhaps_recalled <= set(self.broker.delivered())

    @invariant()
    def nothing_comes_early_or_again(self):
        found = Counter(self.broker.delivered())
        self._see()
        assert all(self.low_ms[text] <= self.broker.monotonic_ms for text in found)
        assert not self.recalled & set(found)
        assert {text for text, count in found.items() if count > 1} <= self.may_come_again


TimerMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestTimers = TimerMachine.TestCase


def test_power_loss_at_any_write_loses_no_acknowledged_timer_message(tmp_path):
    root = tmp_path / "run"
    root.mkdir()
    disk = RecordingDisk(LocalDisk(), root)
    broker = TimerBroker(root, disk=disk, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    broker.window_ms = 4_000
    acknowledged = []
    for number in range(12):
        for delay_ms in (300, 1_800, 9_000):
            text = f"{number}-{delay_ms}"
            broker.set(text, delay_ms)
            broker.store.wait_flushed()
            acknowledged.append((len(disk.operations), text))
        broker.timers.record_arrival()
        broker.run_until(broker.monotonic_ms + 700)
        broker.store.wait_flushed()
        if number % 3 == 1:
            broker.timers.save()
        if number == 7:
            broker.restart()
    broker.close()
    clock = ManualClock(broker.clock() + HOUR_MS)
    dice = random.Random(7)
    count = len(disk.operations)
    into = tmp_path / "states"
    into.mkdir()
    for point in sorted(dice.sample(range(count // 4, count), STATES)):
        for state in power_loss_states(disk.log(point), dice, 2, into):
            left = TimerBroker(state, clock=clock, flush_disk_type=FlushDiskType.SYNC_FLUSH)
            for _ in range(4):  # messages stored again are visible after the flush
                left.run_until(left.monotonic_ms + 5_000)
                left.store.wait_flushed()
                left.timers.record_arrival()
            due = {text for at, text in acknowledged if at <= point}
            assert due <= set(left.delivered())
            left.close()
