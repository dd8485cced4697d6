"""The simulated network between server and clients: slow, cut and held, on both kinds of loops."""

import asyncio
import gc
import socket

import pytest
from support.clients.remoting_clients import until

from rocketpoll.broker.embedded.faults.clock import ClockOffset
from rocketpoll.broker.embedded.faults.embedded_loop import EmbeddedLoop
from rocketpoll.broker.embedded.faults.network import EmbeddedNetwork
from rocketpoll.broker.server.event_loop import loop_class


class Echo(asyncio.Protocol):
    """Echoes each piece; ``bye`` closes the connection."""

    transport = None

    def __init__(self):
        self.received = b""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.received += data
        self.transport.writelines([data[:1], data[1:]])
        if data.endswith(b"bye"):
            self.transport.close()


class Room:
    """A server that echoes, and its clients."""

    def __init__(self, network):
        self.network = network
        self.served = []
        self._writers = []

    async def begin(self):
        self._server = await asyncio.get_running_loop().create_server(self._new, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]

    def _new(self):
        self.served.append(Echo())
        return self.served[-1]

    async def client(self):
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append(writer)
        served = len(self._writers)
        await until(lambda: len(self.served) == served and self.served[-1].transport)
        return reader, writer

    async def end(self):
        self._server.close()
        for each in self._writers:
            each.transport.abort()
        for each in self.served:
            each.transport.abort()
        await until(lambda: not self.network.transports)


@pytest.fixture(params=sorted({asyncio.SelectorEventLoop, loop_class()}, key=str), ids=str)
def tell(request):
    """Return a function that runs a scenario with a server."""

    def run(story):
        loop = type("EmbeddedLoop", (EmbeddedLoop, request.param), {})()
        loop.set_clock_offset(ClockOffset())
        loop.network = EmbeddedNetwork()

        async def told():
            room = Room(loop.network)
            await room.begin()
            await asyncio.wait_for(story(room), 20)
            await room.end()

        loop.run_until_complete(told())
        loop.close()

    return run


async def exchange(client, data):
    reader, writer = client
    writer.write(data)
    return await reader.readexactly(len(data))


def test_slow_network_delays_bytes_in_order_and_releases_them_later(tell):
    async def story(room):
        client = await room.client()
        room.network.set_slow(600)
        client[1].write(b"one")
        await until(lambda: room.served[0].received == b"one")
        assert room.served[0].transport.get_write_buffer_size() == 3
        room.network.set_slow(0)
        assert await exchange(client, b"two") == b"one"
        assert await client[0].readexactly(3) == b"two"
        room.network.set_slow(0.01)
        client[1].write(b"three, bye")
        assert await client[0].read() == b"three, bye", "and the end comes behind it"

    tell(story)


def test_cut_after_applies_to_each_connection(tell):
    async def story(room):
        first = await room.client()
        room.network.set_cut_after(8)
        second = await room.client()
        for client in (first, second):
            assert await exchange(client, b"hello") == b"hello"
        for reader, writer in (first, second):
            writer.write(b"hello")
            assert await reader.read() == b"hel"
        room.network.set_cut_after(None)
        assert await exchange(await room.client(), b"hello, hello") == b"hello, hello"

    tell(story)


def test_paused_network_reads_nothing_from_old_and_new_clients(tell):
    async def story(room):
        first = await room.client()
        room.network.pause_reading(is_paused=True)
        second = await room.client()
        for _, writer in (first, second):
            writer.write(b"hello")
        room.served[0].transport.pause_reading()
        room.served[0].transport.resume_reading()
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert [each.received for each in room.served] == [b"", b""]
        room.network.pause_reading(is_paused=False)
        for reader, _ in (first, second):
            assert await reader.readexactly(5) == b"hello"

    tell(story)


@pytest.mark.parametrize("kind", sorted({asyncio.SelectorEventLoop, loop_class()}, key=str))
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the loop closes the socket
def test_simulated_network_connections_end_with_their_loop(kind):
    network = EmbeddedNetwork()
    loop = type("EmbeddedLoop", (EmbeddedLoop, kind), {})()
    loop.set_clock_offset(ClockOffset())
    loop.network = network

    async def connect():
        served = []

        def new():
            served.append(Echo())
            return served[-1]

        server = await loop.create_server(new, "127.0.0.1", 0)
        client = socket.create_connection(server.sockets[0].getsockname())
        await until(lambda: served and served[0].transport)
        server.close()
        return client

    with loop.run_until_complete(connect()):
        loop.close()  # while the connection is open
        network.pause_reading(is_paused=True)
        network.set_slow(1)
        network.set_cut_after(5)
        network.set_slow(0)
        network.pause_reading(is_paused=False)
        gc.collect()  # collects what the loop has left open, within this test


def test_connection_aborted_with_delayed_bytes_is_cleaned_up(tell):
    async def story(room):
        _, writer = await room.client()
        room.network.set_slow(600)
        writer.write(b"hello")
        await until(lambda: room.served[0].received)
        writer.transport.abort()
        await until(lambda: not room.network.transports)
        room.network.set_slow(0)

    tell(story)
