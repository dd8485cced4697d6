"""Faults of an embedded broker look real to clients, and end with their block."""

import asyncio
import os
import socket
import threading
import time
from contextlib import ExitStack
from datetime import timedelta

import pytest

from rmq_spark.client.errors import (
    BrokerRefused,
    ClientError,
    ConnectionClosed,
    ConnectionFailed,
    SendFailed,
)
from rocketpoll import LitePullConsumer, Message
from rocketpoll.broker.embedded import EmbeddedBroker, EmbeddedBrokerError, NotInTime
from rocketpoll.broker.testing import wait_until

FOREVER_MS = 1 << 30


def bodies(broker, topic):
    return [message.body.decode() for message in broker.messages(topic)]


def is_cut(connected):
    try:
        return connected.recv(1) == b""
    except ConnectionResetError:
        return True


def is_refused(broker):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", broker.port)) != 0


# ---- an unreachable broker


def test_away_fault_refuses_connections_until_its_end(broker, topic):
    port = broker.port
    broker.send(topic, "before")
    with socket.create_connection(("127.0.0.1", port)) as connected:
        connected.settimeout(10)
        with broker.away():
            assert is_cut(connected)
            assert is_refused(broker)
            with pytest.raises(SendFailed, match="Connection refused"):
                broker.send(topic, "lost")
            with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
                other.bind(("127.0.0.1", port))
    assert broker.port == port
    broker.send(topic, "behind")
    assert bodies(broker, topic) == ["before", "behind"]


def test_consumer_resumes_after_the_away_fault(broker, topic):
    broker.send(topic, "one")
    seen = []
    with LitePullConsumer("billing", broker.address) as consumer:
        consumer.subscribe(topic)

        def poll():
            seen.extend(message.body for message in consumer.poll(50))
            return len(seen)

        wait_until(poll)
        with broker.away():
            consumer.poll(50)
        broker.send(topic, "two")
        wait_until(lambda: poll() >= 2)
    assert seen == [b"one", b"two"]


# ---- the network


def test_slow_broker_delays_each_response_and_loses_none(broker, topic):
    with broker.slow(0.05):
        began = time.perf_counter()
        broker.send(topic, "one", "two")
        assert time.perf_counter() - began >= 0.1
    assert bodies(broker, topic) == ["one", "two"]


def test_slow_network_fault_releases_held_bytes_at_its_end(broker, topic):
    broker.send(topic, "so that there is a connection")
    sent = []
    with broker.slow(600):
        sender = threading.Thread(target=lambda: sent.extend(broker.send(topic, "one")))
        sender.start()
        wait_until(
            lambda: broker._network.transports and any(map(_holds, broker._network.transports))
        )
        assert not sent
    sender.join(10)
    assert len(sent) == 1


def _holds(line):
    return bool(line._delayed)


def test_cut_after_closes_a_connection_within_a_response(broker, topic, api):
    with broker.cut_after(50):
        with pytest.raises(ConnectionClosed, match="in the middle of a response, 50 bytes into it"):
            api.admin.broker_config(broker.address)
        with pytest.raises(ConnectionClosed):
            api.admin.broker_config(broker.address)
    assert api.admin.broker_config(broker.address)
    with broker.cut_after(1_000_000):
        assert api.admin.broker_config(broker.address)


# ---- the disk


@pytest.mark.parametrize("settings", [{}, {"mappedFileSizeCommitLog": 1 << 16}])
def test_sends_are_refused_with_rocketmqs_code_while_the_disk_is_full(settings):
    with EmbeddedBroker(maxMessageSize=30_000, **settings) as broker:
        sent = [os.urandom(20_000).hex()[:20_000] for _ in range(8)]
        broker.send("orders", *sent)
        with broker.full_disk():
            with pytest.raises(SendFailed, match="the disk is 100% full") as told:
                broker.send("orders", "too much")
            refusal = told.value.tries[-1]
            assert isinstance(refusal, BrokerRefused)
            assert refusal.code == 14
            with pytest.raises(BrokerRefused, match="No space left"):
                broker.create_topic("new")
            assert broker.messages("orders"), "reads go on"
        broker.send("orders", "again")
        assert bodies(broker, "orders")[-1] == "again"
        broker.create_topic("new")


@pytest.mark.parametrize("again", [EmbeddedBroker.restart, EmbeddedBroker.lose_power])
def test_embedded_broker_restarted_on_a_full_disk_still_refuses_sends(again):
    with EmbeddedBroker() as broker:
        broker.send("orders", "one")
        with broker.full_disk():
            again(broker)
            with pytest.raises(SendFailed, match="full"):
                broker.send("orders", "refused")
        broker.send("orders", "two")  # at the end of the block, and not later
        assert bodies(broker, "orders")[-1] == "two"


def test_delayed_messages_wait_until_a_full_disk_has_space(broker, topic):
    with broker.producer() as producer:
        producer.send(Message(topic, b"later", delay_level=18))
        with broker.full_disk():
            broker.clock.advance(timedelta(hours=2, minutes=1))  # then it retries once a second
            assert bodies(broker, topic) == []
        broker.clock.advance(1)
    assert bodies(broker, topic) == ["later"]


def test_lose_power_drops_unflushed_messages():
    with EmbeddedBroker(flushIntervalCommitLog=FOREVER_MS) as broker:
        port = broker.port
        broker.send("orders", "one", "two")
        broker.restart()
        broker.send("orders", "three")
        broker.lose_power()
        assert broker.port == port
        assert bodies(broker, "orders") == ["one", "two"]
        broker.send("orders", "four")
        assert bodies(broker, "orders") == ["one", "two", "four"]


def test_lose_power_keeps_acknowledged_messages_under_sync_flush():
    with EmbeddedBroker(flushDiskType="SYNC_FLUSH") as broker:
        for cycle in range(3):
            broker.send("orders", f"{cycle} a", f"{cycle} b")
            broker.lose_power()
        assert bodies(broker, "orders") == ["0 a", "0 b", "1 a", "1 b", "2 a", "2 b"]
        clock = broker.clock.now
        broker.clock.advance(timedelta(hours=1))
        broker.lose_power()
        assert broker.clock.now - clock >= timedelta(hours=1)


# ---- blocks


def test_nested_faults_apply_the_worse_one_until_each_block_ends(broker, topic):
    network, disk = broker._network, broker._disk
    with broker.slow(0.2), broker.cut_after(5_000):
        with broker.slow(0.1), broker.cut_after(7_000):
            assert (network.slow_seconds, network.cut_after_bytes) == (0.2, 5_000)
        with broker.slow(0.3), broker.cut_after(3_000):
            assert (network.slow_seconds, network.cut_after_bytes) == (0.3, 3_000)
        assert (network.slow_seconds, network.cut_after_bytes) == (0.2, 5_000)
    assert (network.slow_seconds, network.cut_after_bytes) == (0, None)
    with broker.away(), broker.full_disk():
        with broker.away(), broker.full_disk():
            pass
        assert is_refused(broker)
        assert disk.is_full
    assert not is_refused(broker)
    assert not disk.is_full


@pytest.mark.parametrize(
    ("fault", "how"),
    [
        (lambda broker: broker.away(), r"`with broker\.away\(\):`"),
        (lambda broker: broker.slow(0.1), r"`with broker\.slow\(\.\.\.\):`"),
    ],
)
def test_fault_without_a_with_block_warns_and_does_nothing(broker, fault, how):
    with broker.leaving_no_faults(), pytest.warns(RuntimeWarning, match=how):
        fault(broker)


def test_faults_left_by_a_fixture_are_ended_and_reported(broker, topic):
    def leave_two():
        with broker.leaving_no_faults():
            broker.away().__enter__()
            broker.full_disk().__enter__()

    def fail_in_the_midst():
        with broker.leaving_no_faults():
            broker.away().__enter__()
            raise ZeroDivisionError

    names = r"^broker\.away\(\), broker\.full_disk\(\) was still active"
    with broker.slow(0.01):
        with pytest.raises(EmbeddedBrokerError, match=names):
            leave_two()
        assert not is_refused(broker)
        assert [fault.name for fault in broker._faults] == ["slow"]
    with pytest.raises(ZeroDivisionError):
        fail_in_the_midst()
    assert not is_refused(broker)


@pytest.mark.parametrize("again", [EmbeddedBroker.restart, EmbeddedBroker.lose_power])
def test_restart_keeps_the_port_when_a_fault_has_ended_during_a_pause(again):
    with EmbeddedBroker() as broker:
        for _ in range(5):
            with broker.away(), broker.full_disk(), broker.slow(1):
                broker.pause()
            if again is EmbeddedBroker.lose_power:
                broker.resume()
            again(broker)
            broker.send("orders", "one")
        broker.pause()


def test_concurrent_operations_on_an_embedded_broker_are_serialized(broker):
    order = []

    async def work(_):
        order.append("begin")
        for _turn in range(5):
            await asyncio.sleep(0)
        order.append("end")

    for each in [broker._runner.submit(work) for _ in range(2)]:
        each.result(10)
    assert order == ["begin", "end"] * 2


def test_pause_waits_for_a_restart_that_is_under_way():
    with EmbeddedBroker() as broker:
        broker.send("orders", "one")
        stop = broker._runner.stop
        others = [threading.Thread(target=each) for each in (broker.pause, broker.resume)]

        def stop_meanwhile():
            for each in others:
                each.start()
            stop()

        broker._runner.stop = stop_meanwhile
        broker.restart()
        for each in others:
            each.join(20)
        broker.resume()
        assert bodies(broker, "orders") == ["one"]


@pytest.mark.parametrize(
    "fault",
    [
        lambda broker: broker.away(),
        lambda broker: broker.slow(0.1),
        lambda broker: broker.cut_after(1),
        lambda broker: broker.full_disk(),
        lambda broker: broker.lose_power(),
    ],
    ids=["away", "slow", "cut_after", "full_disk", "lose_power"],
)
def test_faults_need_a_running_broker_in_a_thread(fault):
    def attempt(broker, match):
        refused = pytest.raises(EmbeddedBrokerError, match=match)
        with broker.leaving_no_faults(), refused, ExitStack() as stack:
            stack.enter_context(fault(broker))

    broker = EmbeddedBroker()
    attempt(broker, "does not run yet: start it")
    with broker:
        broker.pause()
        attempt(broker, "is paused: resume it first")
        broker.resume()
        broker._owner += 1
        attempt(broker, r"cannot use \w+ of the broker of process")
        broker._owner -= 1
    attempt(broker, "was stopped: create another one")
    broker._lifecycle, broker._runner = broker._lifecycle, object()
    attempt(broker, r"needs a broker in a thread of this process: leave out own_process=True")


@pytest.mark.parametrize(
    ("fault", "error", "why"),
    [
        (lambda broker: broker.slow("1s"), TypeError, r"a number, found str '1s'; for example"),
        (lambda broker: broker.slow(True), TypeError, "found bool True"),
        (lambda broker: broker.slow(-1), ValueError, "needed 0 to 3,600, found -1"),
        (lambda broker: broker.slow(float("nan")), ValueError, "found nan"),
        (lambda broker: broker.cut_after(0.5), TypeError, r"number of bytes, found float 0\.5"),
        (lambda broker: broker.cut_after(-1), ValueError, "needed 0 bytes or more, found -1"),
    ],
)
def test_invalid_fault_is_refused(broker, fault, error, why):
    with pytest.raises(error, match=why), fault(broker):
        pass


@pytest.mark.parametrize("found", [5, None, "away"])
def test_begin_fault_refuses_other_types(broker, found):
    needed = r"fault: needed a Fault, found .*with broker\.away"
    for ask in (broker.begin_fault, broker.end_fault):
        with broker.leaving_no_faults(), pytest.raises(TypeError, match=needed):
            ask(found)


def test_fault_that_cannot_begin_is_not_registered(broker, monkeypatch):
    monkeypatch.setattr(
        "rocketpoll.broker.embedded.embedded_broker._OPERATION_TIMEOUT_SECONDS", 0.05
    )
    release = threading.Event()
    broker._runner._controller.housekeeping.run_in_thread(lambda: release.wait(20), lambda _: None)
    refused = pytest.raises(NotInTime, match="did not finish")
    with broker.leaving_no_faults(), refused, broker.full_disk():
        pass
    release.set()


def test_away_broker_raises_a_client_error(broker, api):
    with broker.away(), pytest.raises(ConnectionFailed) as told:
        api.admin.broker_config(broker.address)
    assert isinstance(told.value, ClientError)
