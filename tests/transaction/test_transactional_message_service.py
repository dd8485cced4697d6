"""Checks of half messages: each transaction ends as its producer says, after any kill."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.brokers.state_tables import offsets_in
from support.disks.faulty_disk import ManualClock
from support.stores.small_store import (
    StoreThatRefuses,
    bodies,
    crash,
    message,
    open_store,
    read_all,
)

from rmq_spark.wire.message.properties import change_properties
from rmq_spark.wire.names import CHECK_GROUP, CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from rocketpoll.broker.schedule.schedule_message_service import StartTime
from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.results import PutMessageResult, PutMessageStatus
from rocketpoll.broker.transaction.half_message import (
    CHECK_TIMES,
    op_message,
    prepared_queue_offset,
    to_committed,
    to_half_topic,
)
from rocketpoll.broker.transaction.transactional_message_service import (
    OPS_PER_CALL,
    CheckRules,
    TransactionalMessageService,
)

TIMEOUT_MS, INTERVAL_MS, CHECKS_MAX, HOURS = 6_000, 30_000, 3, 72
DAY_MS = 86_400_000
FULL = PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, remark="full")


class Broker:
    """A store and the checks of its half messages, which can be restarted."""

    def __init__(self, root, **store):
        self.root = root
        self.store_settings = {"mapped_file_size_commit_log": 1 << 20, **store}
        self.clock = ManualClock()
        self.monotonic_ms = 40_000
        self.asked = []
        self.has_producer = True
        self.is_topic_ready = True
        self.refuses = None
        self.on_check = self.asked.append
        self.start()

    def start(self):
        self.store = open_store(self.root / "store", clock=self.clock, **self.store_settings)
        self.offsets = offsets_in(self.root / "config")
        self.offsets.clamp(lambda *queue: self.store.queue_offsets(*queue).next)
        self.service = TransactionalMessageService(
            StoreThatRefuses(self.store, self.put),
            self.offsets,
            CheckRules(TIMEOUT_MS, INTERVAL_MS, CHECKS_MAX, lambda: HOURS),
            lambda result, then: then(self.store.wait_until_stored(result)),
            lambda _: self.is_topic_ready,
            self.send_check,
            self.clock,
            StartTime(self.clock(), self.monotonic_ms),
            self.store.losses,
        )

    def put(self, target):
        return self.refuses or self.store.put_message(target)

    def send_check(self, half):
        self.on_check(half)
        return self.has_producer

    def stop(self):
        self.store.wait_flushed()
        self.service.save_final()
        self.offsets.save()
        self.store.shutdown()

    def restart(self):
        self.stop()
        self.start()

    def restart_after_kill(self):
        crash(self.store)
        self.start()

    def prepare(self, text, **properties):
        """Store a half message; return it as stored."""
        each = replace(
            message(text, TRAN_MSG="true", PGROUP="P", UNIQ_KEY=f"id {text}", **properties),
            born_timestamp=self.clock(),
        )
        return self.stored(to_half_topic(each))

    def stored(self, half):
        result = self.store.wait_until_stored(self.store.put_message(half))
        return replace(
            half, queue_offset=result.queue_offset, physical_offset=result.physical_offset
        )

    def commit(self, half):
        self.store.put_message(to_committed(half))
        self.roll_back(half)

    def roll_back(self, half):
        result = self.store.put_message(op_message(half, self.clock()))
        self.store.wait_until_stored(result)

    def wait(self, ms):
        self.monotonic_ms += ms
        self.clock.now_ms += ms

    def check(self, ms=INTERVAL_MS):
        """Advance the clock, and run a round of checks if it is due; return the checked bodies."""
        self.asked.clear()
        self.wait(ms)
        self.store.wait_flushed()
        while self.service.check(self.monotonic_ms) == self.monotonic_ms:
            pass
        return [half.body.decode() for half in self.asked]

    def progress(self):
        return tuple(
            self.offsets.query(CHECK_GROUP, topic, 0) for topic in (HALF_TOPIC, OP_HALF_TOPIC)
        )


@pytest.fixture
def broker(tmp_path):
    opened = Broker(tmp_path)
    yield opened
    opened.store.shutdown()


def test_check_round_checks_open_half_messages_and_records_its_progress(broker):
    halves = [broker.prepare(number) for number in range(5)]
    broker.commit(halves[1])
    broker.roll_back(halves[3])
    assert broker.check() == ["0", "2", "4"]
    assert [half.queue_offset for half in broker.asked] == [5, 6, 7]
    assert [half.properties[CHECK_TIMES] for half in broker.asked] == ["1"] * 3
    broker.store.wait_flushed()
    broker.service.check(broker.monotonic_ms)
    assert broker.progress() == (5, 2)
    assert broker.service.pending_count == 3


def test_check_progress_is_recorded_after_checked_half_messages_are_flushed(tmp_path, monkeypatch):
    broker = Broker(tmp_path, flush_interval_commit_log_ms=3_600_000)
    broker.prepare("x")
    with monkeypatch.context() as slow:
        slow.setattr(broker.store, "flush_future", lambda _: None)
        assert broker.check() == ["x"]
        assert broker.progress() == (None, None)
    broker.store.wait_flushed()
    broker.service.check(broker.monotonic_ms)
    assert broker.progress()[0] == 1
    broker.store.shutdown()


def test_young_half_message_ends_a_round_and_is_checked_in_the_next(broker):
    broker.prepare("old")
    broker.wait(INTERVAL_MS - TIMEOUT_MS)
    broker.prepare("young")
    assert broker.check(TIMEOUT_MS) == ["old"]
    assert sorted(broker.check()) == ["old", "young"]


def test_immune_half_message_is_not_checked_before_its_time_and_its_first_place_counts(broker):
    first = broker.prepare("immune", CHECK_IMMUNITY_TIME_IN_SECONDS="70")
    other = broker.prepare("other", CHECK_IMMUNITY_TIME_IN_SECONDS="70")
    assert broker.check() == []
    assert broker.check() == []
    again = read_all(broker.store, HALF_TOPIC, 0)[-1]
    assert prepared_queue_offset(again) == other.queue_offset
    broker.commit(first)  # its producer knows only the first position
    assert broker.check() == ["other"]
    assert bodies(broker.store) == ["immune"]
    assert broker.service.pending_count == 1


def test_end_at_the_first_place_of_a_checked_half_message_ends_its_checks(broker):
    first = broker.prepare("slow")
    assert broker.check() == ["slow"]
    assert broker.check() == ["slow"]
    broker.commit(first)  # its producer knows only the first position
    assert broker.check() == []
    assert bodies(broker.store) == ["slow"]
    assert broker.service.pending_count == 0


@pytest.mark.parametrize("restart", [Broker.restart, Broker.restart_after_kill])
def test_end_of_an_immune_half_message_counts_after_a_restart(broker, restart):
    half = broker.prepare("immune", CHECK_IMMUNITY_TIME_IN_SECONDS="70")
    assert broker.check() == []
    broker.store.wait_flushed()
    broker.service.check(broker.monotonic_ms)
    broker.offsets.save()
    broker.commit(half)
    broker.store.wait_flushed()
    restart(broker)
    for _ in range(3):
        assert broker.check() == []
    assert bodies(broker.store) == ["immune"]


def test_half_message_is_discarded_after_the_last_check(broker, caplog):
    broker.prepare("x")
    for times in range(1, CHECKS_MAX + 1):
        assert broker.check() == ["x"]
        assert broker.asked[0].properties[CHECK_TIMES] == str(times)
    broker.is_topic_ready = False
    assert broker.check() == []
    assert broker.service.pending_count == 1
    broker.is_topic_ready = True
    assert broker.check() == []
    (given_up,) = read_all(broker.store, CHECK_MAX_TIME_TOPIC, 0)
    assert given_up.body == b"x"
    assert given_up.properties["REAL_TOPIC"] == "T"
    assert broker.service.given_up_total == 1
    assert broker.service.pending_count == 0
    assert "half message id x is given up" in caplog.text
    [loss] = broker.store.losses.recent()
    assert loss.text.startswith("half message id x is given up")


@pytest.mark.parametrize("days", [-400, 400])
def test_half_messages_are_not_discarded_when_the_time_of_day_is_set(broker, days):
    broker.prepare("before")
    assert broker.check() == ["before"]
    broker.clock.now_ms += days * DAY_MS
    broker.prepare("after")
    broker.check()
    assert broker.service.given_up_total == 0
    assert broker.service.pending_count == 2


def test_half_message_older_than_file_reserved_time_is_discarded(broker):
    broker.prepare("x")
    assert broker.check() == ["x"]
    broker.wait(HOURS * 3_600_000)
    assert broker.check() == []
    assert broker.service.given_up_total == 1


def test_half_message_that_grows_too_long_is_discarded_unchanged(broker):
    half = broker.prepare("x")
    room = 32_767 - len(half.properties_text) - 25
    broker.roll_back(half)
    long = replace(
        half, properties_text=change_properties(half.properties_text, {"more": "y" * (room - 6)})
    )
    broker.stored(long)
    assert broker.check() == []
    (given_up,) = read_all(broker.store, CHECK_MAX_TIME_TOPIC, 0)
    assert given_up.properties["more"] == "y" * (room - 6)


def test_check_round_waits_while_the_store_refuses_messages(broker):
    broker.prepare("x")
    broker.refuses = FULL
    broker.wait(INTERVAL_MS)
    again = broker.service.check(broker.monotonic_ms)
    assert again == broker.monotonic_ms + 1_000
    assert broker.asked == []
    broker.refuses = None
    broker.wait(1_000)
    broker.service.check(broker.monotonic_ms)
    assert [half.body for half in broker.asked] == [b"x"]


def test_half_message_whose_end_was_requested_is_not_checked_before_its_op_message_is_read(broker):
    half = broker.prepare("x")
    broker.service.begin_end(half.queue_offset)
    assert broker.check() == []
    broker.service.cancel_end(half.queue_offset)  # the op message could not be stored
    assert broker.check() == ["x"]


def test_check_without_a_connected_producer_is_counted(broker):
    broker.has_producer = False
    broker.prepare("x")
    broker.check()
    assert (broker.service.checks_total, broker.service.unsent_checks_total) == (1, 1)


def test_check_round_does_a_bounded_amount_of_work_per_call(broker):
    for number in range(OPS_PER_CALL + 50):
        broker.roll_back(broker.prepare(number))
    broker.wait(INTERVAL_MS)
    calls = 1
    while broker.service.check(broker.monotonic_ms) == broker.monotonic_ms:
        calls += 1
    assert calls > 1
    assert broker.service.pending_count == 0


def test_half_messages_that_were_deleted_with_old_files_are_counted(tmp_path, caplog):
    broker = Broker(
        tmp_path,
        mapped_file_size_commit_log=4_096,
        file_reserved_time_hours=1,
        delete_when_hours=tuple(range(24)),
    )
    broker.roll_back(broker.prepare("earlier"))
    assert broker.check() == []
    broker.store.wait_flushed()
    broker.service.check(broker.monotonic_ms)
    assert broker.progress() == (1, 1)
    ended = broker.prepare("ended")
    broker.prepare("lost")
    for _ in range(3):
        broker.store.put_message(message("x" * 3_000, topic="other"))
    broker.clock.now_ms += 4_000 * DAY_MS
    broker.store.put_message(message("x" * 3_000, topic="other"))
    broker.roll_back(ended)
    broker.store.save_checkpoint()
    assert broker.store.clean() > 0
    assert broker.check() == []
    assert broker.service.lost_total == 1
    assert "checks of transactions continue at 3 instead of 2" in caplog.text
    [loss] = broker.store.losses.recent()
    assert loss.text.startswith("checks of transactions continue at 3 instead of 2")
    broker.store.shutdown()


class TransactionMachine(RuleBasedStateMachine):
    """Producers decide each transaction once; a kill may repeat a delivery, and loses nothing."""

    def __init__(self):
        super().__init__()
        self.directory = TemporaryDirectory()
        self.broker = Broker(Path(self.directory.name), flush_disk_type=FlushDiskType.SYNC_FLUSH)
        self.broker.on_check = self.answer
        self.decided = {}
        """By message text: whether its producer has committed; None if the transaction is open."""
        self.first_places = {}
        self.is_silent = False

    def teardown(self):
        for text, decision in self.decided.items():
            self.decided[text] = bool(decision)
        self.is_silent = False
        for _ in range(CHECKS_MAX + 8):
            self.broker.check()
        self.broker.store.wait_flushed()
        delivered = Counter(bodies(self.broker.store))
        for text, is_committed in self.decided.items():
            if is_committed:
                assert delivered[text] or text in self.given_up(), text
        assert self.broker.service.pending_count == 0
        self.nothing_is_delivered_that_was_not_committed()
        self.broker.store.shutdown()
        self.directory.cleanup()

    def given_up(self):
        return {each.body.decode() for each in read_all(self.broker.store, CHECK_MAX_TIME_TOPIC, 0)}

    def answer(self, half):
        text = half.body.decode()
        decision = self.decided[text]
        if self.is_silent or decision is None:
            return
        self.end(half, is_committed=decision)

    def end(self, half, *, is_committed):
        (self.broker.commit if is_committed else self.broker.roll_back)(half)

    @rule(immunity=st.sampled_from([None, None, "20", "100"]))
    def prepare(self, immunity):
        text = f"m{len(self.decided)}"
        named = {"CHECK_IMMUNITY_TIME_IN_SECONDS": immunity} if immunity else {}
        self.first_places[text] = self.broker.prepare(text, **named)
        self.decided[text] = None

    @rule(data=st.data(), is_committed=st.booleans(), is_sent=st.booleans())
    def decide(self, data, is_committed, is_sent):
        """Decide one transaction; a producer that was killed has not sent the end."""
        still_open = [text for text, decision in self.decided.items() if decision is None]
        if still_open:
            text = data.draw(st.sampled_from(still_open))
            self.decided[text] = is_committed
            if is_sent:
                self.end(self.first_places[text], is_committed=is_committed)

    @rule(is_silent=st.booleans())
    def check(self, is_silent):
        self.is_silent = is_silent
        self.broker.check()

    @rule(ms=st.sampled_from([1_000, 7_000, 31_000]))
    def wait(self, ms):
        self.broker.wait(ms)

    @rule(ms=st.sampled_from([-DAY_MS, 20 * DAY_MS]))
    def set_clock(self, ms):
        self.broker.clock.now_ms += ms

    @rule(is_killed=st.booleans())
    def restart(self, is_killed):
        (Broker.restart_after_kill if is_killed else Broker.restart)(self.broker)

    @invariant()
    def nothing_is_delivered_that_was_not_committed(self):
        for text in bodies(self.broker.store):
            assert self.decided[text], text


TransactionMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=20)
TestTransactions = TransactionMachine.TestCase
