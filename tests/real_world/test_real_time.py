import socket

import pytest
from real_world.real_time import RealTime, Sockets
from world.network import End
from world.tasks import Promise, Tasks


class Client(End):
    """Remembers what it was told."""

    def __init__(self):
        super().__init__()
        self.data = b""
        self.is_open, self.has_heard, self.is_gone = Promise(), Promise(), Promise()

    def connected(self):
        self.is_open.keep()

    def received(self, data):
        self.data += data
        self.has_heard.keep()

    def broken(self):
        self.is_gone.keep()


@pytest.fixture
def time():
    time = RealTime()
    yield time
    time.close()


@pytest.fixture
def sockets(time):
    sockets = Sockets(time)
    yield sockets
    sockets.close()


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        yield listener


@pytest.fixture
def connect(time, sockets, listener):
    """A client, and the socket that it is connected to."""
    accepted = []

    def connect():
        client = Client()
        sockets.connect(client, listener.getsockname())
        assert time.run(10, client.is_open)
        accepted.append(listener.accept()[0])
        accepted[-1].settimeout(10)
        return client, accepted[-1]

    yield connect
    for each in accepted:
        each.close()


def test_real_time_timers_run_unless_cancelled(time):
    happened = []
    last = Promise()
    time.after(0.01, lambda: happened.append("later"))
    time.after(0.0, lambda: happened.append("never")).cancel()
    time.after(0.02, last.keep)
    assert time.run(10, last)
    assert happened == ["later"]


def test_promise_kept_later_ends_no_other_wait(time):
    late, later = Promise(), Promise()
    assert not time.run(0, late)
    time.after(0.0, late.keep)
    time.after(0.01, later.keep)
    assert time.run(10, later)


def test_task_errors_are_raised_by_run(time):
    async def fail():
        raise AssertionError("it is wrong")

    Tasks(time).begin(fail())
    with pytest.raises(AssertionError, match="it is wrong"):
        time.run(10)


def test_bytes_go_both_ways_until_one_side_ends_it(time, connect):
    client, other = connect()
    client.send(b"ping")
    time.run(0)
    assert other.recv(4) == b"ping"
    other.sendall(b"pong")
    assert time.run(10, client.has_heard)
    assert client.data == b"pong"
    other.close()
    assert time.run(10, client.is_gone)


def test_reset_connection_end_receives_nothing_more(time, connect):
    client, other = connect()
    other.sendall(b"late")
    client.reset()
    time.run(0)
    assert client.data == b""
    with pytest.raises(ConnectionError):
        other.recv(4)


def test_connect_without_listener_breaks_the_connection(time, sockets, listener):
    address = listener.getsockname()
    listener.close()
    client = Client()
    sockets.connect(client, address)
    assert time.run(10, client.is_gone)
    assert not client.is_open.is_kept
