"""Moving an embedded broker's clock: due events happen at once and in order; clients are not
affected."""

import math
import os
import threading
import time
from collections import Counter
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.client.reading.read_bounds import READER_GROUP
from rmq_spark.wire.bodies.clients import ConsumeFromWhere
from rmq_spark.wire.codes import PullSysFlag
from rmq_spark.wire.headers.members import PullMessageRequestHeader
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import (
    Admin,
    Message,
    PushConsumer,
    PushSettings,
    TransactionProducer,
    TransactionState,
)
from rocketpoll.broker.embedded import EmbeddedBroker, EmbeddedBrokerError, NotInTime
from rocketpoll.broker.embedded.faults.clock import ClockOffset
from rocketpoll.broker.testing import wait_until

HOUR = timedelta(hours=1)
TWO_HOURS, ONE_HOUR, TEN_MINUTES = 18, 17, 14
SMALL_FILES = {"mappedFileSizeCommitLog": 1 << 16, "maxMessageSize": 30_000}


def bodies(broker, topic):
    return [message.body for message in broker.messages(topic)]


def send_later(broker, topic, *levels):
    with broker.producer() as producer:
        for level in levels:
            producer.send(Message(topic, str(level).encode(), delay_level=level))


# ---- due events


def test_clock_advance_delivers_delayed_messages(broker, topic):
    send_later(broker, topic, TWO_HOURS)
    broker.clock.advance(HOUR)
    assert bodies(broker, topic) == []
    broker.clock.advance(3_600)
    assert bodies(broker, topic) == [b"18"]


def test_one_clock_move_delivers_each_message_at_its_own_time(broker, topic):
    send_later(broker, topic, TWO_HOURS, TEN_MINUTES, ONE_HOUR)
    before_ms = broker.clock.now_ms
    broker.clock.advance(timedelta(hours=3))
    messages = broker.messages(topic)
    assert [message.body for message in messages] == [b"14", b"17", b"18"]
    after_s = [round((message.store_timestamp - before_ms) / 1_000) for message in messages]
    assert after_s == [600, 3_600, 7_200]


def test_clock_advance_delivers_hundreds_of_messages(broker, topic):
    send_later(broker, topic, *[ONE_HOUR] * 300)
    broker.clock.advance(HOUR)
    assert len(bodies(broker, topic)) == 300


def test_clock_advance_delivers_delayed_messages_with_sync_flush():
    with EmbeddedBroker(flushDiskType="SYNC_FLUSH") as broker:
        send_later(broker, "orders", ONE_HOUR, ONE_HOUR)
        broker.clock.advance(HOUR)
        assert bodies(broker, "orders") == [b"17", b"17"]


def test_clock_advance_brings_the_next_check_of_a_transaction(broker, topic):
    with TransactionProducer(
        "shop", broker.address, check_listener=lambda _: TransactionState.COMMIT
    ) as producer:
        with producer.transaction(Message(topic, b"x")) as begun:
            begun.leave_open()
        assert not broker.messages(topic)
        broker.clock.advance(timedelta(seconds=31))
        wait_until(lambda: broker.messages(topic))
    assert [each.body for each in broker.messages(topic)] == [b"x"]


def test_clock_advance_of_an_hour_makes_every_check_of_an_open_transaction(broker, topic):
    with (
        TransactionProducer(
            "shop", broker.address, check_listener=lambda _: TransactionState.UNKNOWN
        ) as producer,
        producer.transaction(Message(topic, b"x")) as begun,
    ):
        begun.leave_open()
    broker.clock.advance(timedelta(hours=1))
    given_up = [each.body for each in broker.messages("TRANS_CHECK_MAX_TIME_TOPIC")]
    assert given_up == [b"x"], "the 15th check came at its time"


def test_clock_advance_expires_all_old_files_after_newer_messages():
    with EmbeddedBroker(**SMALL_FILES) as broker:
        old = [os.urandom(20_000) for _ in range(60)]
        broker.send("orders", *old)
        broker.clock.advance(timedelta(days=3))
        assert bodies(broker, "orders") == old, "nothing newer is there"
        broker.send("orders", "new")
        broker.clock.advance(timedelta(days=1))  # past the hour of deleteWhen
        left = bodies(broker, "orders")
        assert left[-1] == b"new"
        assert len(left) <= 4, "what lies in the last file stays"
        broker.send("orders", "newest")
        broker.clock.advance(timedelta(days=2))
        assert bodies(broker, "orders")[-2:] == [b"new", b"newest"]


def test_clock_advance_does_not_age_new_files():
    with EmbeddedBroker(**SMALL_FILES) as broker:
        broker.clock.advance(timedelta(days=30))
        sent = [os.urandom(20_000) for _ in range(20)]
        broker.send("orders", *sent)
        broker.clock.advance(timedelta(days=2))
        assert bodies(broker, "orders") == sent


def test_held_pull_is_answered_at_its_deadline_by_a_moved_clock(broker, topic, api):
    header = PullMessageRequestHeader(
        consumer_group=READER_GROUP,
        topic=topic,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=1,
        sys_flag=int(PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND),
        commit_offset=0,
        suspend_timeout_millis=15_000,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
    )
    holds = broker._runner._controller.hold_service
    pull = api.pull_async(broker.address, header)
    wait_until(lambda: holds.hold_count == 1)
    broker.clock.advance(14)
    assert holds.hold_count == 1
    broker.clock.advance(1)
    assert holds.hold_count == 0
    assert pull.result(10).next_begin_offset == 0


def test_queue_lock_survives_a_moved_clock(broker, topic, api):
    queue = MessageQueue(topic, "broker-a", 0)
    assert api.lock(broker.address, "G", "one", [queue]) == {queue}
    assert api.lock(broker.address, "G", "two", [queue]) == set()
    broker.clock.advance(HOUR)
    assert api.lock(broker.address, "G", "two", [queue]) == set()
    assert api.lock(broker.address, "G", "one", [queue]) == {queue}


# ---- concurrent clients


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_clock_advance_under_load_loses_and_repeats_no_message(flush, caplog):
    count = 100
    seen = Counter()
    lock = threading.Lock()

    def listen(messages, _):
        with lock:
            seen.update(message.body for message in messages)

    with EmbeddedBroker(flushDiskType=flush) as broker:
        broker.create_topic("orders")
        settings = PushSettings(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        consumer = PushConsumer("billing", broker.address, listener=listen, settings=settings)
        consumer.subscribe("orders")
        consumer.start()
        with broker.producer() as producer:

            def send():
                for number in range(count):
                    producer.send(Message("orders", b"%d" % number))

            sender = threading.Thread(target=send)
            sender.start()
            while sender.is_alive():
                broker.clock.advance(HOUR)
            sender.join()
        wait_until(lambda: len(seen) == count)
        with Admin(broker.address) as admin:
            assert admin.members("billing"), "it is still a member"
        assert "closed: " not in caplog.text, "to the broker, nobody was silent"
        consumer.shutdown()
    assert set(seen.values()) == {1}


def test_send_during_clock_advance_is_stored_before_or_after_it(broker, topic):
    """No message has a time within the advance, except those that became due in it."""
    is_over, some_are_sent = threading.Event(), threading.Event()
    with broker.producer() as producer:

        def send():
            while not is_over.is_set():
                producer.send(Message(topic, b"x"), timeout_ms=60_000)
                some_are_sent.set()

        sender = threading.Thread(target=send)
        sender.start()
        assert some_are_sent.wait(60)
        before_ms = broker.clock.now_ms
        broker.clock.advance(5 * 24 * HOUR)
        is_over.set()
        sender.join()
    hours = {
        round((message.store_timestamp - before_ms) / 3_600_000)
        for message in broker.messages(topic)
    }
    assert hours == {0, 5 * 24}


def test_broker_restart_keeps_the_moved_clock():
    with EmbeddedBroker() as broker:
        send_later(broker, "orders", TWO_HOURS)
        broker.clock.advance(HOUR)
        before_ms = broker.clock.now_ms
        broker.restart()
        assert broker.clock.now_ms >= before_ms
        broker.clock.advance(HOUR)
        assert bodies(broker, "orders") == [b"18"]
        assert broker.messages("orders")[0].store_timestamp >= before_ms


def test_concurrent_clock_advances_add_up(broker):
    before = broker.clock.now
    threads = [threading.Thread(target=broker.clock.advance, args=(HOUR,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert timedelta(0) <= broker.clock.now - before - 4 * HOUR < HOUR


# ---- values of the clock


def test_embedded_clock_shows_the_brokers_time():
    with EmbeddedBroker() as broker:
        machine = datetime.now(timezone.utc)
        assert abs(broker.clock.now - machine) < HOUR
        broker.clock.advance(timedelta(days=2))
        assert broker.clock.now - machine >= timedelta(days=2)
        assert "2 days, 0:00:00 ahead of the machine's" in repr(broker.clock)
        broker.send("orders", "one")
        (message,) = broker.messages("orders")
        assert abs(message.store_timestamp - broker.clock.now_ms) < 60_000


@pytest.mark.parametrize(
    ("by", "error", "why"),
    [
        (-1, ValueError, "only goes forward, found -1: .* start another broker"),
        (timedelta(hours=-1), ValueError, "only goes forward, found -3600 seconds: "),
        (timedelta(hours=-1), ValueError, "only goes forward"),
        (math.nan, ValueError, "at most 366 days, found nan"),
        (math.inf, ValueError, "at most 366 days, found inf"),
        (timedelta(days=367), ValueError, "move it several times"),
        ("1h", TypeError, "a timedelta or a number of seconds, found str '1h'; for example"),
        (True, TypeError, "found bool True"),
        (None, TypeError, "found NoneType None"),
    ],
)
def test_invalid_clock_move_is_refused_with_the_reason(broker, by, error, why):
    before = broker.clock._offset.seconds
    with pytest.raises(error, match=why):
        broker.clock.advance(by)
    assert broker.clock._offset.seconds == before


def test_clock_advance_of_zero_changes_nothing():
    with EmbeddedBroker() as broker:
        broker.clock.advance(0)
        assert broker.clock._offset.seconds == 0


def test_clock_needs_a_running_broker_in_a_thread():
    broker = EmbeddedBroker()
    with pytest.raises(EmbeddedBrokerError, match="does not run yet"):
        broker.clock.advance(1)
    with broker:
        broker.pause()
        with pytest.raises(EmbeddedBrokerError, match="paused: resume it first"):
            broker.clock.advance(1)
        broker.resume()
        broker._owner += 1
        with pytest.raises(EmbeddedBrokerError, match=r"cannot use clock.advance of the broker of"):
            broker.clock.advance(1)
        broker._owner -= 1
    with pytest.raises(EmbeddedBrokerError, match="was stopped"):
        broker.clock.advance(1)
    with (
        EmbeddedBroker(own_process=True) as apart,
        pytest.raises(
            EmbeddedBrokerError,
            match=r"clock.advance needs a broker in a thread .*: leave out own_process=True",
        ),
    ):
        apart.clock.advance(1)


def test_clock_advance_of_a_busy_broker_times_out(broker, monkeypatch):
    monkeypatch.setattr(
        "rocketpoll.broker.embedded.embedded_broker._OPERATION_TIMEOUT_SECONDS", 0.05
    )
    release = threading.Event()
    broker._runner._controller.housekeeping.run_in_thread(lambda: release.wait(20), lambda _: None)
    with pytest.raises(NotInTime, match="did not finish within"):
        broker.clock.advance(1)
    release.set()
    broker.send("told", "it goes on")


def test_one_clock_move_delivers_each_timer_message_at_its_own_time(broker, topic):
    with broker.producer() as producer:
        for after in ("1h1s", "1500ms", "1h", "90s"):
            producer.send(Message(topic, after.encode(), deliver_after=after))
    before_ms = broker.clock.now_ms
    broker.clock.advance(timedelta(hours=3))
    messages = broker.messages(topic)
    assert [message.body for message in messages] == [b"1500ms", b"90s", b"1h", b"1h1s"]
    after_s = [round((message.store_timestamp - before_ms) / 1_000) for message in messages]
    assert after_s[1:] == [90, 3_600, 3_601]


# ---- the offset of a broker's clock from the machine's, now and at earlier moments


def test_clock_offset_starts_at_zero_and_grows():
    ahead = ClockOffset()
    assert abs(ahead.now_ms() - time.time() * 1_000) < 60_000
    ahead.advance(3_600)
    ahead.advance(0.5)
    assert ahead.seconds == 3_600.5
    assert abs(ahead.now_ms() - (time.time() + 3_600.5) * 1_000) < 60_000


def test_clock_offset_of_past_times_is_the_one_of_then():
    ahead = ClockOffset()
    before = time.time() - 10
    ahead.advance(3_600)
    behind = time.time() + 10
    assert ahead.from_machine(before) == before
    assert ahead.from_machine(behind) == behind + 3_600


@given(st.lists(st.floats(0, 1e6), max_size=5), st.floats(-1e6, 1e6).map(lambda s: time.time() + s))
def test_clock_offset_conversion_is_reversible(moves, machine):
    ahead = ClockOffset()
    for seconds in moves:
        ahead.advance(seconds)
    assert abs(ahead.to_machine(ahead.from_machine(machine)) - machine) < 1e-3


def test_time_within_a_clock_jump_maps_to_the_moment_of_the_jump():
    ahead = ClockOffset()
    begun = time.time()
    ahead.advance(3_600)
    assert begun <= ahead.to_machine(begun + 1_800) <= time.time()
