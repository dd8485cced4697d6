"""A listener accepts clients on each loop; clients that cannot be accepted wait in the backlog."""

import asyncio
import errno
import socket

import pytest
from support.brokers.in_process import in_loop

from rocketpoll.broker.server.listener import Listener

each_loop = pytest.mark.usefixtures("on_each_loop")


class Greeting(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(b"hello")


class Lacking:
    """A listener's socket functions, which may lack resources for a while."""

    def __init__(self, real):
        self._real = real
        self.error = None
        self.tried = 0

    def accept(self):
        self.tried += 1
        if self.error is not None:
            raise self.error
        return self._real.accept()

    def __getattr__(self, name):
        return getattr(self._real, name)


async def opened():
    listener = Listener(asyncio.get_running_loop(), Greeting)
    return listener, await listener.open("127.0.0.1", 0)


async def greeted(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    text = await asyncio.wait_for(reader.readexactly(5), 10)
    writer.close()
    return text


@each_loop
@in_loop
async def test_listener_accepts_clients():
    listener, port = await opened()
    assert [await greeted(port) for _ in range(40)] == [b"hello"] * 40
    assert listener.poll_accept() is None
    assert len(listener.descriptors()) == len(set(listener.descriptors())) == 2
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        await greeted(port)


@each_loop
@pytest.mark.parametrize("code", [errno.ENOMEM, errno.ENOBUFS, errno.EMFILE, errno.ENFILE])
@in_loop
async def test_poll_accept_reports_exhausted_descriptors_or_memory(code):
    listener, port = await opened()
    (own,) = listener._sockets
    listener._sockets = [lacking := Lacking(own)]
    lacking.error = OSError(code, "lacking")
    assert listener.poll_accept() is lacking.error
    if not isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):
        assert not listener._servers, "it keeps trying"
        waiting = asyncio.ensure_future(greeted(port))
        await asyncio.sleep(0)
        assert listener.poll_accept() is lacking.error
        lacking.error = None
        while not waiting.done():
            assert listener.poll_accept() is None
            await asyncio.sleep(0.001)
        assert waiting.result() == b"hello"
    lacking.error = None
    assert listener.poll_accept() is None
    await asyncio.sleep(0.01)
    assert await greeted(port) == b"hello"
    listener.close()


@each_loop
@in_loop
async def test_poll_accept_ignores_aborted_connections():
    listener, port = await opened()
    (own,) = listener._sockets
    listener._sockets = [lacking := Lacking(own)]
    lacking.error = ConnectionAbortedError(errno.ECONNABORTED, "it has gone again")
    assert listener.poll_accept() is None
    lacking.error = None
    assert await greeted(port) == b"hello"
    listener.close()


@each_loop
@each_loop
@in_loop
async def test_listener_resumed_twice_opens_no_second_server():
    listener, port = await opened()
    before = len(listener.descriptors())
    listener._close_servers()
    for _ in range(3):
        assert listener.poll_accept() is None
    while not listener._servers:  # noqa: ASYNC110  # no event signals it
        await asyncio.sleep(0)
    assert await greeted(port) == b"hello"
    assert len(listener.descriptors()) == before
    listener.close()


@in_loop
async def test_listener_port_in_use_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as other:
        listener = Listener(asyncio.get_running_loop(), Greeting)
        with pytest.raises(OSError, match="in use"):
            await listener.open("127.0.0.1", other.getsockname()[1])
        assert listener.descriptors() == []
        listener.close()
