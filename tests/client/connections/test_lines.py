"""A line connects to a broker once for all callers, and again after a failure."""

import threading
import time
from types import SimpleNamespace

import pytest
from support.brokers.broker_kinds import wait_until

from rmq_spark.client.errors import ClientShutDown, ConnectionFailed, RequestTimeout
from rmq_spark.client.transport import connection_pool as lines_module
from rmq_spark.client.transport.connection_pool import (
    Agreement,
    ConnectionPool,
    NegotiatedConnection,
)

A = "a:1"


class Wires:
    """Makes connections: namespaces that record their end."""

    def __init__(self):
        self.dialled, self.closed, self.errors = [], [], []
        self.go_on = threading.Event()
        self.go_on.set()
        self.agreement_fails = None

    def connect(self, address, on_closed):
        self.dialled.append(address)
        assert self.go_on.wait(10)
        if self.errors:
            raise self.errors.pop(0)
        return Wire(address, on_closed, self)

    def agree(self, _):
        if self.agreement_fails is not None:
            raise self.agreement_fails
        return Agreement(born_host="here")


class Wire(SimpleNamespace):
    def __init__(self, address, on_closed, wires):
        super().__init__(address=address, is_closed=False, is_silent=False, is_forgotten=False)
        self._on_closed, self._wires = on_closed, wires

    __hash__ = object.__hash__

    def detect_close(self):
        pass

    def close(self, why):
        if not self.is_closed:
            self.is_closed = True
            self._wires.closed.append((self.address, why))
            self._on_closed(self)

    def join(self, _):
        pass

    def after_fork(self):
        self.is_forgotten = True


class Lines(ConnectionPool):
    """A pool of these connections."""

    def __init__(self, wires, ready, ended):
        super().__init__(ready.append, ended.append, wait_seconds_max=10)
        self._wires = wires

    def _connect(self, address):
        return self._wires.connect(address, self._discard)

    def _negotiate(self, connection):
        return self._wires.agree(connection)


@pytest.fixture
def wires():
    return Wires()


@pytest.fixture
def ended():
    return []


@pytest.fixture
def ready():
    return []


@pytest.fixture
def lines(wires, ready, ended):
    lines = Lines(wires, ready, ended)
    yield lines
    wires.go_on.set()
    lines.shutdown()


def in_threads(count, action):
    """Run an action in several threads; `join` returns their results and errors."""
    found = []

    def act():
        try:
            found.append(action())
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=act) for _ in range(count)]
    for thread in threads:
        thread.start()

    def join():
        for thread in threads:
            thread.join(10)
        return found

    return join


def test_line_to_a_broker_is_dialled_once_and_reused(lines, wires):
    line = lines.get_or_connect(A)
    assert line.agreement == Agreement(born_host="here")
    assert lines.get_or_connect(A) is lines.get(A) is line
    assert wires.dialled == [A]


def test_connection_without_agreement_is_reused_for_a_broker(lines, wires):
    line = lines.get_or_connect(A, is_broker=False)
    assert line.agreement is None
    assert not lines.is_ready(A)
    assert lines.get_or_connect(A).connection is line.connection
    assert lines.ready_addresses() == (A,)
    assert wires.dialled == [A]


def test_concurrent_callers_share_the_dialed_connection(lines, wires):
    wires.go_on.clear()
    join = in_threads(8, lambda: lines.get_or_connect(A))
    wait_until("somebody dials", lambda: wires.dialled)
    wires.go_on.set()
    assert join() == [lines.get(A)] * 8
    assert wires.dialled == [A]


def test_connect_failure_reaches_all_waiting_callers_and_the_next_call_retries(lines, wires):
    wires.go_on.clear()
    wires.errors.append(ConnectionFailed(A, "no route to host"))
    join = in_threads(4, lambda: lines.get_or_connect(A))
    wait_until("all wait", lambda: wires.dialled)
    time.sleep(0.05)  # a late caller uses the next connection, which is right as well
    wires.go_on.set()
    found = join()
    assert any(isinstance(each, ConnectionFailed) for each in found)
    assert all(isinstance(each, (ConnectionFailed, NegotiatedConnection)) for each in found)
    assert lines.get_or_connect(A).connection.address == A


def test_connect_timeout_of_one_caller_does_not_stop_the_dialing(lines, wires):
    wires.go_on.clear()
    with pytest.raises(ConnectionFailed, match="no answer within 20 ms, the time that was left"):
        lines.get_or_connect(A, seconds=0.02)
    join = in_threads(1, lambda: lines.get_or_connect(A))
    wires.go_on.set()
    assert join() == [lines.get(A)]
    assert wires.dialled == [A]


def test_silent_broker_is_redialed_in_background_while_asked_for(lines, wires, monkeypatch):
    monkeypatch.setattr(lines_module, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(lines_module, "RECONNECT_SECONDS", 0.0)
    assert not lines.is_silent(A)
    wires.errors.append(ConnectionFailed(A, "no answer within 3000 ms"))
    with pytest.raises(ConnectionFailed):
        lines.get_or_connect(A)
    assert lines.silent_addresses == (A,)
    wires.go_on.clear()
    assert lines.is_silent(A)  # does not block
    wires.go_on.set()
    wait_until("it is there again", lambda: not lines.is_silent(A))
    assert lines.silent_addresses == ()
    assert lines.is_ready(A)


def test_silent_broker_is_not_redialed_before_the_interval(lines, wires, monkeypatch):
    monkeypatch.setattr(lines_module, "SLOW_SECONDS", 0.0)
    monkeypatch.setattr(lines_module, "RECONNECT_SECONDS", 3_600.0)
    wires.errors.append(ConnectionFailed(A, "no answer within 3000 ms"))
    with pytest.raises(ConnectionFailed):
        lines.get_or_connect(A)
    assert all(lines.is_silent(A) for _ in range(100))
    assert wires.dialled == [A]


def test_broker_that_refuses_a_connection_is_not_silent(lines, wires):
    wires.errors.append(ConnectionFailed(A, "Connection refused"))
    with pytest.raises(ConnectionFailed):
        lines.get_or_connect(A)
    assert not lines.is_silent(A)


def test_silent_connection_makes_its_broker_address_silent(lines):
    wire = lines.get_or_connect(A).connection
    wire.is_silent = True
    wire.close("it has been silent")
    assert lines.silent_addresses == (A,)


def test_failed_extension_negotiation_is_raised_and_retried_on_the_same_connection(lines, wires):
    wires.agreement_fails = RequestTimeout(A, 29_000, 3_000)
    with pytest.raises(RequestTimeout):
        lines.get_or_connect(A)
    assert not lines.is_ready(A)
    wires.agreement_fails = None
    assert lines.get_or_connect(A).agreement is not None
    assert wires.dialled == [A]


def test_closed_connection_is_reopened_and_callbacks_run(lines, wires, ready, ended):
    lines.get_or_connect(A).connection.close("gone")
    assert ended == [A]
    assert lines.get(A) is None
    assert lines.get_or_connect(A).connection.address == A
    assert wires.dialled == [A, A]
    wait_until("it is told", lambda: ready == [A, A])


def test_failed_agreement_does_not_call_the_ready_callback(lines, wires, ready):
    lines.get_or_connect(A, is_broker=False)
    wires.agreement_fails = RequestTimeout(A, 1, 1)
    with pytest.raises(RequestTimeout):
        lines.get_or_connect(A)
    assert ready == []


def test_late_close_of_an_old_connection_keeps_the_new_line(lines):
    old = lines.get_or_connect(A).connection
    old.is_closed = True  # closed, but not yet removed
    new = lines.get_or_connect(A)
    old._on_closed(old)
    assert lines.get(A) is new


def test_shutdown_fails_waiting_callers_and_closes_late_connections(lines, wires):
    wires.go_on.clear()
    join = in_threads(3, lambda: lines.get_or_connect(A))
    wait_until("somebody dials", lambda: wires.dialled)
    time.sleep(0.05)  # a late caller fails as well
    lines.shutdown()
    assert [type(each) for each in join()] == [ClientShutDown] * 3
    wires.go_on.set()
    wait_until("the late one is closed", lambda: wires.closed)
    with pytest.raises(ClientShutDown):
        lines.get_or_connect(A)


def test_connect_fails_when_no_thread_can_start_and_the_next_call_retries(lines, monkeypatch):
    def start(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", start)
        with pytest.raises(ConnectionFailed, match="cannot start a thread that connects"):
            lines.get_or_connect(A)
    assert lines.get_or_connect(A).connection.address == A


def test_forked_child_drops_connections_silently(lines, wires):
    wire = lines.get_or_connect(A).connection
    lines._lock.acquire()  # as by a thread that the fork has removed
    lines._after_fork()
    assert wire.is_forgotten
    assert wires.closed == []
    assert lines.get_or_connect(A).connection is not wire
