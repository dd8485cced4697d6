"""Delayed messages are delivered in time, in order, and once, whatever the clock does."""

import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.brokers.state_tables import table_in
from support.disks.faulty_disk import ManualClock
from support.stores.small_store import StoreThatRefuses, bodies, message, open_store, read_all

from rmq_spark.wire.bodies.configs import DelayOffsetSerializeWrapper
from rocketpoll.broker.common.recent_losses import LossKind, RecentLosses
from rocketpoll.broker.schedule.delayed_message import to_schedule_topic
from rocketpoll.broker.schedule.real_topic_delivery import (
    MESSAGES_PER_CALL,
    RETRY_MS,
    RealTopicDelivery,
)
from rocketpoll.broker.schedule.schedule_message_service import ScheduleMessageService, StartTime
from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.errors import StoreClosed, TransientFailure
from rocketpoll.broker.store.results import PutMessageResult, PutMessageStatus

LEVELS_MS = (1_000, 5_000, 10_000)
TEN_YEARS_MS = 10 * 365 * 24 * 3_600_000
GRAIN_MS = 12
"""Maximum milliseconds that a message of these levels may be late."""


class Broker:
    """A store and its delayed messages, which can be restarted; the test moves the time. ``clock``
    is the time of day, which a test may set."""

    def __init__(self, root, levels_ms=LEVELS_MS, **store):
        self.root = root
        self.levels_ms = levels_ms
        self.store_settings = {
            "mapped_file_size_commit_log": 1 << 20,
            "message_delay_level_ms": levels_ms,
            **store,
        }
        self.clock = ManualClock()
        self.monotonic_ms = 40_000
        self.topics = {"T": 4}
        self.refuses = None
        self.start()

    def start(self):
        self.store = open_store(self.root / "store", clock=self.clock, **self.store_settings)
        self.service = ScheduleMessageService(
            self.store,
            table_in(self.root / "config", "delayOffset.json", DelayOffsetSerializeWrapper),
            self.levels_ms,
            RealTopicDelivery(
                StoreThatRefuses(self.store, self.put),
                lambda topic: self.topics.get(topic, 0),
                self.topics.setdefault,
                LossKind.DELAYED_MESSAGE,
                RecentLosses(self.clock),
            ),
            StartTime(self.clock(), self.monotonic_ms),
        )

    def restart(self, levels_ms=None):
        self.store.shutdown()
        self.levels_ms = levels_ms or self.levels_ms
        self.start()

    def put(self, target):
        return self.refuses or self.store.put_message(target)

    def delay(self, text, level, **more):
        result = self.store.put_message(to_schedule_topic(message(text, **more), level))
        self.record_arrival(level)
        return result

    def record_arrival(self, level):
        self.service.record_arrival(level - 1, self.monotonic_ms)

    def wait(self, ms):
        """Advance both clocks."""
        self.monotonic_ms += ms
        self.clock.now_ms += ms

    def deliver(self):
        """Run the service once; return the milliseconds until the next run."""
        next_ms = self.service.deliver_due(self.monotonic_ms)
        return None if next_ms is None else next_ms - self.monotonic_ms

    def deliver_all(self):
        while (again := self.deliver()) == 0:
            pass
        return again


@pytest.fixture
def broker(tmp_path):
    opened = Broker(tmp_path)
    yield opened
    opened.store.shutdown()


def test_delivered_delayed_message_has_the_producers_fields(broker):
    original = replace(message("x"), reconsume_times=3, flag=7, sys_flag=1, born_timestamp=5)
    broker.store.put_message(to_schedule_topic(original, 1))
    broker.record_arrival(1)
    broker.wait(1_001)
    broker.deliver_all()
    (found,) = read_all(broker.store, "T", 0)
    assert (found.reconsume_times, found.flag, found.sys_flag, found.born_timestamp) == (3, 7, 1, 5)
    assert found.born_host == original.born_host
    assert found.store_timestamp == broker.clock.now_ms


def test_deliver_limits_messages_per_call_and_takes_turns_between_levels(broker):
    for number in range(3 * MESSAGES_PER_CALL):
        broker.delay(number, 1)
    broker.delay("other", 2)
    broker.wait(5_001)
    assert broker.deliver() == 0
    assert len(bodies(broker.store)) == MESSAGES_PER_CALL
    assert broker.deliver() == 0
    while broker.deliver() == 0:
        pass
    assert len(bodies(broker.store)) == 3 * MESSAGES_PER_CALL + 1


def test_busy_delay_level_does_not_block_others(broker):
    for _ in range(20):
        for number in range(MESSAGES_PER_CALL):
            broker.delay(number, 1)
    broker.delay("other", 2)
    broker.wait(5_001)
    for _ in range(3):
        broker.deliver()
    assert "other" in bodies(broker.store)


def test_deliver_limits_bytes_of_large_messages_per_call(broker):
    for _ in range(8):
        broker.delay("x" * 300_000, 1)
    broker.wait(1_001)
    assert broker.deliver() == 0
    assert len(bodies(broker.store)) == 4
    broker.deliver_all()
    assert len(bodies(broker.store)) == 8


def test_delayed_message_of_an_invalid_topic_is_skipped_with_a_log(broker, caplog):
    broker.delay("x", 1, topic="A" * 200)
    broker.delay("y", 1)
    broker.wait(1_001)
    broker.deliver_all()
    assert bodies(broker.store) == ["y"]
    assert "is not delivered" in caplog.text
    assert "A" * 200 not in broker.topics


@pytest.mark.parametrize("queue_id", [3, 4, 11])
def test_delayed_message_to_a_removed_queue_goes_to_an_existing_one(broker, queue_id):
    broker.delay("x", 1, queue_id=queue_id)
    broker.wait(1_001)
    broker.deliver_all()
    assert bodies(broker.store, queue_id=queue_id % 4) == ["x"]


def test_delivery_refused_by_store_is_retried_and_logged_once(broker, caplog):
    broker.delay("x", 2)
    broker.delay("y", 2)
    broker.wait(5_001)
    broker.refuses = PutMessageResult(
        PutMessageStatus.SERVICE_NOT_AVAILABLE, remark="the disk is full"
    )
    assert broker.deliver() == RETRY_MS
    for _ in range(2):
        broker.wait(RETRY_MS)
        assert broker.deliver() == RETRY_MS
    assert caplog.text.count("delivery of delayed messages waits: the disk is full") == 1
    assert broker.service.offsets().offset_table[2] == 0
    broker.refuses = None
    assert broker.deliver() == RETRY_MS
    broker.wait(RETRY_MS)
    assert broker.deliver() is None
    assert bodies(broker.store) == ["x", "y"]


def test_undeliverable_delayed_message_does_not_block_its_level(broker, caplog):
    broker.delay("bad", 1)
    broker.wait(1_001)
    broker.refuses = PutMessageResult(PutMessageStatus.MESSAGE_ILLEGAL, remark="a body is too long")
    broker.deliver_all()
    assert "is not delivered: a body is too long" in caplog.text
    broker.refuses = None
    broker.delay("good", 1)
    broker.wait(1_001)
    broker.deliver_all()
    assert bodies(broker.store) == ["good"]


def test_delayed_message_without_real_topic_is_skipped(broker, caplog):
    broker.store.put_message(message("x", topic="SCHEDULE_TOPIC_XXXX"))
    broker.delay("y", 1)
    broker.wait(1_001)
    broker.deliver_all()
    assert bodies(broker.store) == ["y"]
    assert "it has no REAL_TOPIC" in caplog.text


def test_damaged_delayed_message_is_skipped_and_logged(broker, caplog):
    place = broker.delay("damaged body", 1).physical_offset
    broker.delay("good", 1)
    (path,) = (broker.root / "store" / "commitlog").iterdir()
    data = path.read_bytes()
    at = data.index(b"damaged body", place)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"D")
    broker.wait(1_001)
    broker.deliver_all()
    assert bodies(broker.store) == ["good"]
    assert "delayed message 0 of level 1 is damaged" in caplog.text
    broker.deliver_all()
    assert bodies(broker.store) == ["good"]


def test_delayed_message_without_arrival_notice_waits_from_when_it_is_found(broker):
    broker.delay("x", 1)
    broker.store.put_message(to_schedule_topic(message("y"), 1))
    broker.wait(1_001)
    broker.deliver_all()
    assert bodies(broker.store) == ["x"]
    assert broker.deliver() == 1_001


def test_delay_level_offsets_survive_a_restart(broker):
    broker.delay("x", 1)
    broker.delay("y", 1)
    broker.delay("z", 3)
    broker.wait(1_001)
    broker.deliver_all()
    assert broker.service.offsets().offset_table == {1: 2, 2: 0, 3: 0}
    assert broker.service.is_dirty
    broker.service.save()
    assert not broker.service.is_dirty
    broker.restart()
    assert broker.service.offsets().offset_table == {1: 2, 2: 0, 3: 0}
    assert 9_000 <= broker.deliver_all() <= 9_002
    broker.wait(9_002)
    broker.deliver_all()
    assert bodies(broker.store) == ["x", "y", "z"]


def test_rocketmqs_delay_offset_file_is_loaded(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "delayOffset.json").write_text(
        '{\n\t"offsetTable":{1:10,2:0,17:3\n\t}\n}'
    )
    broker = Broker(tmp_path)
    assert broker.service.offsets().offset_table == {1: 10, 2: 0, 3: 0, 17: 3}
    broker.store.shutdown()


def test_delayed_messages_deleted_with_old_files_are_logged(tmp_path, caplog):
    broker = Broker(
        tmp_path,
        mapped_file_size_commit_log=4_096,
        file_reserved_time_hours=1,
        delete_when_hours=tuple(range(24)),
    )
    for number in range(3):
        broker.delay(str(number), 3)
    for _ in range(3):
        broker.store.put_message(message("x" * 3_000))
    broker.clock.now_ms += TEN_YEARS_MS
    broker.store.put_message(message("x" * 3_000))
    broker.store.save_checkpoint()
    assert broker.store.clean() > 0
    broker.delay("last", 3)
    broker.wait(10_001)
    broker.deliver_all()
    assert bodies(broker.store)[-1:] == ["last"]
    assert "3 messages of delay level 3 were deleted with old files" in caplog.text
    broker.store.shutdown()


def test_offsets_beyond_what_the_queue_has_go_back_to_its_end_and_never_to_its_start(
    tmp_path, caplog
):
    """R24: for example after the last bytes of the log were lost."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "delayOffset.json").write_text('{"offsetTable":{"1":10}}')
    broker = Broker(tmp_path)
    broker.delay("x", 1)
    broker.wait(1_001)
    broker.deliver_all()
    assert bodies(broker.store) == []
    assert "continues at 1 instead of 10" in caplog.text
    broker.delay("y", 1)
    broker.wait(1_001)
    broker.deliver_all()
    assert bodies(broker.store) == ["y"]
    broker.store.shutdown()


def test_delivered_message_is_visible_under_sync_flush_without_another_send(tmp_path):
    broker = Broker(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    broker.store.wait_until_stored(broker.delay("x", 1))
    broker.record_arrival(1)
    broker.wait(1_001)
    broker.deliver_all()
    patience = time.monotonic() + 30
    while bodies(broker.store) != ["x"]:
        assert time.monotonic() < patience
        time.sleep(0.001)
    broker.store.shutdown()


@pytest.mark.parametrize("kind", list(FlushDiskType))
def test_saved_delay_offset_implies_flushed_delivery(tmp_path, kind):
    broker = Broker(tmp_path, flush_disk_type=kind, flush_interval_commit_log_ms=3_600_000)
    broker.store.wait_until_stored(broker.delay("x", 1))
    broker.record_arrival(1)
    broker.wait(1_001)
    broker.deliver_all()
    broker.service.save()
    state = broker.store.state()
    assert state.flushed_offset == state.written_offset
    broker.store.shutdown()


@pytest.mark.parametrize("moment", ["before", "behind"])
def test_delivery_during_delay_offset_save_is_flushed_if_saved(tmp_path, monkeypatch, moment):
    """The loop's thread delivers while the housekeeping thread saves."""
    broker = Broker(tmp_path, flush_interval_commit_log_ms=3_600_000)
    for text in ("x", "y"):
        broker.delay(text, 1)
        broker.wait(500)
    broker.wait(1)
    broker.deliver_all()
    broker.store.save_checkpoint()
    copied = broker.service.offsets

    def offsets():
        broker.wait(500)
        if moment == "before":
            broker.deliver_all()
        offsets = copied()
        broker.deliver_all()
        return offsets

    monkeypatch.setattr(broker.service, "offsets", offsets)
    broker.service.save()
    saved = table_in(broker.root / "config", "delayOffset.json", DelayOffsetSerializeWrapper)
    assert saved.load(None).offset_table[1] == (2 if moment == "before" else 1)
    assert len(bodies(broker.store)) == 2
    state = broker.store.state()
    assert state.flushed_offset == state.written_offset
    broker.store.shutdown()


def test_delay_offsets_are_not_saved_if_the_log_cannot_be_flushed(broker):
    broker.delay("x", 1)
    broker.wait(1_001)
    broker.deliver_all()
    broker.store.flusher.stop()
    broker.delay("y", 1)
    broker.wait(1_001)
    broker.deliver_all()
    with pytest.raises(StoreClosed):
        broker.service.save()
    assert broker.service.is_dirty
    assert not (broker.root / "config" / "delayOffset.json").exists()


class ScheduleMachine(RuleBasedStateMachine):
    """Random times, refusals, restarts and clock changes: each message arrives at least once, and
    never early. A message must arrive from ``low_ms`` to ``high_ms`` of elapsed time. Only a
    restart after a clock change moves these: by the change if the clock was set forward, by one
    more delay if it was set back."""

    def __init__(self):
        super().__init__()
        self.directory = TemporaryDirectory()
        self.broker = Broker(Path(self.directory.name))
        self.low_ms, self.high_ms, self.set_by_ms, self.delay_ms = {}, {}, {}, {}
        self.has_been_set_back = False
        self.may_come_again = set()
        self.count = 0

    def teardown(self):
        self.broker.store.shutdown()
        self.directory.cleanup()

    @property
    def now_ms(self):
        return self.broker.monotonic_ms

    @rule(level=st.integers(1, 3), queue_id=st.integers(0, 3))
    def delay(self, level, queue_id):
        text = str(self.count)
        self.count += 1
        self.broker.delay(text, level, queue_id=queue_id)
        self.delay_ms[text] = LEVELS_MS[level - 1]
        self.low_ms[text] = self.now_ms + self.delay_ms[text]
        self.high_ms[text] = self.low_ms[text] + GRAIN_MS
        self.set_by_ms[text] = 0

    @rule(ms=st.sampled_from([1, 500, 1_000, 5_000, 20_000]))
    def wait(self, ms):
        self.broker.wait(ms)

    @rule(ms=st.sampled_from([700, 3_000, 3_600_000, TEN_YEARS_MS]), is_back=st.booleans())
    def set_clock(self, ms, is_back):
        by_ms = -ms if is_back else ms
        self.has_been_set_back |= is_back
        self.broker.clock.now_ms += by_ms
        for text in self.set_by_ms:
            self.set_by_ms[text] += by_ms

    @rule()
    def wait_as_told(self):
        again = self.broker.deliver_all()
        if again is not None:
            before = self.delivered()
            self.broker.wait(again)
            left_ms = self.broker.deliver_all()
            if self.delivered() == before:  # it has waited for a message right after it
                assert 0 < left_ms <= GRAIN_MS
                self.broker.wait(left_ms)
                self.broker.deliver_all()
            assert len(self.delivered()) > len(before)

    @rule(refuse=st.booleans())
    def deliver(self, refuse):
        if refuse:
            self.broker.refuses = PutMessageResult(
                PutMessageStatus.SERVICE_NOT_AVAILABLE, remark="full"
            )
            self.broker.deliver()
            self.broker.refuses = None
            self.broker.wait(RETRY_MS)
        self.broker.deliver_all()
        due = {text for text, high_ms in self.high_ms.items() if high_ms <= self.now_ms}
        assert due <= set(self.delivered())

    @rule(is_saved=st.booleans())
    def restart(self, is_saved):
        if is_saved:
            self.broker.service.save()
        before = self.delivered()
        self.broker.restart()
        self._set_anew(before)
        self.broker.deliver_all()
        if not is_saved:
            self.may_come_again |= set(before)
        assert set(Counter(self.delivered()) - Counter(before)) & set(before) <= self.may_come_again

    def _set_anew(self, delivered):
        for text in self.low_ms.keys() - set(delivered):
            if self.set_by_ms[text] > 0:
                self.low_ms[text] -= self.set_by_ms[text]
            if self.has_been_set_back:  # now, or before the message: the log's times do not go back
                self.high_ms[text] = self.now_ms + self.delay_ms[text] + GRAIN_MS

    def delivered(self):
        return [
            text for queue_id in range(4) for text in bodies(self.broker.store, queue_id=queue_id)
        ]

    @invariant()
    def nothing_comes_early(self):
        assert all(self.low_ms[text] <= self.now_ms for text in self.delivered())


ScheduleMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=20)
TestSchedule = ScheduleMachine.TestCase


def test_slow_flush_delays_save_of_delay_offsets_without_an_error(tmp_path, monkeypatch):
    broker = Broker(tmp_path, flush_interval_commit_log_ms=3_600_000)
    broker.delay("x", 1)
    broker.wait(1_001)
    broker.deliver_all()
    with monkeypatch.context() as slow:
        slow.setattr("rocketpoll.broker.schedule.real_topic_delivery._FLUSH_TIMEOUT_SECONDS", 0.01)
        slow.setattr(broker.store, "flush_future", lambda _: Future())
        with pytest.raises(TransientFailure, match="takes longer than"):
            broker.service.save()
    assert broker.service.is_dirty
    broker.service.save()
    assert not broker.service.is_dirty
    broker.store.shutdown()
