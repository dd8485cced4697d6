"""Heartbeats reach every broker, are retried after failures, and end with the member."""

import threading

import pytest
from support.brokers.broker_kinds import wait_until
from support.suite.log_records import lines_of

from rmq_spark.client.errors import ConnectionFailed
from rmq_spark.client.instance import heartbeats
from rmq_spark.client.instance.heartbeats import HeartbeatSender
from rmq_spark.wire.bodies.clients import HeartbeatData


class Brokers:
    """Records requests to brokers, in order; some brokers block, are missing, or are known to be
    silent."""

    def __init__(self):
        self.told, self.stuck, self.gone, self.silent = [], {}, set(), set()
        self.reached = set()
        self.beside = lambda _address: None

    @property
    def connections(self):
        return self

    def is_silent(self, address):
        return address in self.silent

    def heartbeat(self, address, data):
        self._say(address, f"I am {data.client_id}")
        return 407

    def unregister(self, address, client_id, producer_group, consumer_group, timeout_ms):
        assert timeout_ms <= heartbeats.SEND_WAIT_MS
        self._say(address, f"{client_id} leaves {producer_group or consumer_group}")

    def _say(self, address, what):
        self.reached.add(address)
        if address in self.stuck:
            self.stuck[address].wait(10)
        if address in self.gone:
            raise ConnectionFailed(address, "no answer")
        self.told.append((address, what))
        self.beside(address)


@pytest.fixture
def brokers():
    return Brokers()


@pytest.fixture
def telling(brokers):
    telling = HeartbeatSender(brokers, lambda: HeartbeatData(client_id="me"))
    yield telling
    telling.stop()


def test_heartbeat_reaches_all_brokers_and_keeps_their_versions(brokers, telling):
    telling.send(["a", "b"])
    assert sorted(brokers.told) == [("a", "I am me"), ("b", "I am me")]
    assert telling.versions == {"a": 407, "b": 407}


def test_stuck_broker_does_not_delay_heartbeats_to_others(brokers, telling, monkeypatch):
    monkeypatch.setattr(heartbeats, "SEND_WAIT_MS", 50)
    brokers.stuck["a"] = threading.Event()
    for count in range(1, 4):
        telling.send(["a", "b"])
        wait_until("b has heard", lambda count=count: len(brokers.told) == count)
    brokers.stuck["a"].set()
    wait_until("a has heard what was on its way", lambda: ("a", "I am me") in brokers.told)


def test_heartbeat_skips_broker_known_to_be_silent(brokers, telling):
    brokers.silent.add("a")
    telling.send(["a", "b"])
    assert brokers.told == [("b", "I am me")]


def test_failed_heartbeat_is_logged_once_until_it_succeeds_again(brokers, telling, caplog):
    brokers.gone.add("a")
    for _ in range(3):
        telling.send(["a", "b"])
    assert len(lines_of(caplog, "rmq_spark.client.failure_log")) == 1
    brokers.gone.clear()
    telling.send(["a"])
    brokers.gone.add("a")
    telling.send(["a"])
    failed, recovered, again = lines_of(caplog, "rmq_spark.client.failure_log")
    assert failed.startswith("heartbeats to a failed, retrying: ")
    assert recovered.startswith("heartbeats to a recovered after ")
    assert again == failed


def test_unregister_is_sent_after_a_heartbeat_in_progress(brokers, telling, monkeypatch):
    monkeypatch.setattr(heartbeats, "SEND_WAIT_MS", 10_000)
    brokers.stuck["a"] = threading.Event()
    threading.Thread(target=telling.send, args=(["a"],)).start()
    wait_until("a heartbeat is on its way", lambda: "a" in brokers.reached)
    threading.Timer(0.05, brokers.stuck["a"].set).start()
    telling.unregister(["a", "b"], ["P"], ["G"])
    assert [what for address, what in brokers.told if address == "a"] == [
        "I am me",
        "me leaves P",
        "me leaves G",
    ]


def test_unregister_skips_a_failed_broker_and_reaches_all_others(brokers, telling):
    brokers.gone.add("a")
    telling.unregister(["a", "b"], [], ["G", "H"])
    assert brokers.told == [("b", "me leaves G"), ("b", "me leaves H")]


def test_heartbeat_versions_are_forgotten_by_stop_and_fork(brokers, telling):
    telling.send(["a"])
    lanes = telling._executor  # the child has none of its threads
    telling._after_fork()
    lanes.stop()
    assert telling.versions == {}
    telling.stop()
    telling.send(["a"])
    assert len(brokers.told) == 1


def test_failed_heartbeat_is_repeated_when_the_broker_is_connected_again(brokers, telling):
    brokers.gone.add("a")
    telling.send(["a", "b"])
    telling.resend("b")
    brokers.gone.clear()
    telling.resend("a")
    wait_until("a is told", lambda: ("a", "I am me") in brokers.told)
    telling.resend("a")
    telling.send([])
    assert sorted(brokers.told) == [("a", "I am me"), ("b", "I am me")]


def test_closed_connection_triggers_one_more_heartbeat(brokers, telling):
    telling.send(["a"])
    telling.on_connection_closed("a")
    assert telling.versions == {}
    telling.resend("a")
    telling.resend("a")
    wait_until("a is told again", lambda: telling.versions)
    telling.unregister(["a"], (), ["G"])  # comes after all waiting tasks of this lane
    assert brokers.told == [("a", "I am me"), ("a", "I am me"), ("a", "me leaves G")]


def test_unanswered_heartbeat_is_retried(brokers, telling, monkeypatch):
    """The retry does not need other requests to that broker: a member without queues sends none."""
    monkeypatch.setattr(heartbeats, "RETRY_MS", 1)
    brokers.gone.add("a")
    telling.send(["a"])
    telling.on_connection_closed("a")
    brokers.gone.clear()
    wait_until("it is told", lambda: brokers.told == [("a", "I am me")], 10)


def test_heartbeat_in_flight_at_shutdown_is_not_logged_as_failed(brokers, telling, caplog):
    brokers.stuck["a"] = threading.Event()
    brokers.gone.add("a")
    telling.on_connection_closed("a")
    telling.resend("a")
    wait_until("it is on its way", lambda: "a" in brokers.reached)
    telling.stop()
    brokers.stuck["a"].set()
    telling.stop(10_000)
    assert lines_of(caplog, "heartbeat") == []


def test_heartbeat_retries_to_a_gone_broker_are_limited(brokers, telling, monkeypatch):
    monkeypatch.setattr(heartbeats, "RETRY_MS", 1)
    tries, say = [], brokers._say
    monkeypatch.setattr(brokers, "_say", lambda *what: (tries.append(what), say(*what)))
    brokers.gone.add("a")
    telling.send(["a"])
    wait_until("it is tried", lambda: len(tries) == heartbeats.RETRIES_MAX + 1, 10)
    telling.send(["a"])
    assert len(tries) == heartbeats.RETRIES_MAX + 2


def test_connection_closed_during_heartbeat_triggers_another_one(brokers, telling):
    def ends_once(address):
        brokers.beside = lambda _address: None
        telling.on_connection_closed(address)

    brokers.beside = ends_once
    telling.send(["a"])
    assert brokers.told == [("a", "I am me")]
    telling.resend("a")
    wait_until("a knows of it again", lambda: len(brokers.told) == 2)
