"""Timers in flight are delivered when a real RocketMQ opens our store, and when ours opens
RocketMQ's."""

from __future__ import annotations

import time

import pytest
from support.brokers.broker_kinds import wait_until
from support.disks.faulty_disk import ManualClock
from support.rocketmq.shared_store import Place, now_ms
from support.stores.timers import TimerBroker

pytestmark = pytest.mark.interop
HOUR_MS = 3_600_000
TIMER_LOG_BYTES = 100 << 20
"""RocketMQ's default; RocketMQ accepts no other size."""


@pytest.fixture
def place(rocketmq, tmp_path) -> Place:
    return Place(rocketmq, tmp_path.name, tmp_path / "store", {"T": 4})


def our_broker(place, clock):
    """Start our broker on the directory, at the clock's time."""
    names = ("mapped_file_size_consume_queue", "max_hash_slot_num", "max_index_num")
    settings = {name: getattr(place.config, name) for name in names}
    return TimerBroker(place.root.parent, clock=clock, log_file_bytes=TIMER_LOG_BYTES, **settings)


def java_bodies(broker):
    return [
        each["body"]
        for queue_id in range(4)
        for each in broker.ask("queue", topic="T", queueId=queue_id)["messages"]
    ]


def test_rocketmq_continues_our_timers_and_we_continue_its(place):
    is_serving = not place.version.startswith("4")
    clock = ManualClock((now_ms() - 10_000) // 1_000 * 1_000)
    ours = our_broker(place, clock)
    for text, delay_ms in [("a", 1_000), ("b", 3_500), ("c", 3_600), ("d", 3_500)]:
        ours.set(text, delay_ms)
    for text, delay_ms in [("e", 20_000), ("recalled", 20_000), ("far", HOUR_MS)]:
        due_ms = ours.set(text, delay_ms)
        if text == "recalled":
            assert ours.recall(text, due_ms)
    ours.run_until(ours.monotonic_ms + 3_550)  # within one slot of RocketMQ's wheel
    assert ours.delivered() == ["a", "b", "d"]
    ours.stop()

    with place.java_broker(timerWheelEnable="true", recallMessageEnable="true") as broker:
        if is_serving:
            wait_until("timers of ours", lambda: len(java_bodies(broker)) >= 5, 60)
            time.sleep(3)  # duplicates would come at once
            assert java_bodies(broker) == hexes("a", "b", "d", "c", "e")
            later = [to_send("theirs-1", 2_000), to_send("theirs-2", HOUR_MS)]
            for each in later:
                broker.ask("send", topic="T", queueId=0, messages=[each])
            wait_until("a timer of its own", lambda: len(java_bodies(broker)) >= 6, 60)
            time.sleep(2)
        else:
            assert java_bodies(broker) == hexes("a", "b", "d")

    clock.now_ms = now_ms()
    ours = our_broker(place, clock)
    before = ["a", "b", "d", "c", "e", "theirs-1"] if is_serving else ["a", "b", "d"]
    assert ours.delivered() == before
    ours.run_until(ours.monotonic_ms + HOUR_MS + 1_000)
    if is_serving:
        assert ours.delivered() == [*before, "far", "theirs-2"]
    else:
        assert ours.delivered() == [*before, "c", "e", "far"]
    assert ours.timers.pending == 0
    ours.stop()


def hexes(*texts):
    return [text.encode().hex() for text in texts]


def to_send(text, delay_ms):
    return {
        "body": text.encode().hex(),
        "keys": None,
        "tags": None,
        "flag": 0,
        "delayLevel": 0,
        "properties": {"TIMER_DELAY_MS": str(delay_ms)},
    }
