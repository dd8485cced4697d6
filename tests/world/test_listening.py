"""The broker's listener in a simulated world: clients wait in the backlog while it cannot accept
them.

When its process dies, waiting clients are notified.
"""

import asyncio
import errno
import random
import threading

import pytest
from world.kernel import Kernel
from world.loop import AsyncioLoop, Loop
from world.machine import Process
from world.network import End, Network, Weather
from world.threads import Threads

from rocketpoll.broker.server.listener import Listener

PLACE = ("127.0.0.1", 80)
LOOK_SECONDS = 0.5

both_kinds = pytest.mark.parametrize("kind", [Loop, AsyncioLoop])


class Client(End):
    def __init__(self):
        super().__init__()
        self.events = []

    def received(self, data):
        self.events.append(data)

    def broken(self):
        self.events.append("broken")


class Greeting(asyncio.Protocol):
    def connection_made(self, transport):
        transport.write(b"hello")


class Room:
    """A process that listens, and checks its listener twice a second."""

    def __init__(self, kernel, kind):
        self.kernel = kernel
        self.network = Network(kernel, random.Random(2), Weather(cut_odds=0))
        self.process = Process(kernel, "broker", PLACE[0])
        self.lacks = []
        self._kind = kind
        thread = threading.Thread(target=self._run)
        thread.belongs_to(self.process)
        thread.start()
        kernel.run(0.1)

    def _run(self):
        loop = self._kind(self.kernel, self.network, self.process)
        loop.set_exception_handler(lambda *_: None)
        try:
            loop.run_until_complete(self._serve(loop))
        finally:
            for task in asyncio.all_tasks(loop):
                task._log_destroy_pending = False
            loop.close()

    async def _serve(self, loop):
        self.listener = Listener(loop, Greeting)
        await self.listener.open(*PLACE)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.lacks.append(self.listener.poll_accept())

    def connect(self, count=1):
        clients = [Client() for _ in range(count)]
        for client in clients:
            self.network.connect(client, PLACE)
        return clients


@pytest.fixture
def room_of():
    kernel, rooms = Kernel(random.Random(1)), []
    with Threads(kernel):
        yield lambda kind: rooms.append(Room(kernel, kind)) or rooms[-1]
        for room in rooms:
            room.process.kill()
        kernel.close()


@both_kinds
@pytest.mark.parametrize("lack", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_simulated_connection_waits_while_descriptors_are_exhausted(room_of, kind, lack):
    room = room_of(kind)
    room.network.accept_errno = lack
    early = room.connect(3)
    room.kernel.run(3)
    late = room.connect(3)
    room.kernel.run(3)
    assert room.lacks[-1].errno == lack
    assert [client.events for client in (*early, *late)] == [[]] * 6
    assert bool(room.listener._servers) is (kind is AsyncioLoop), "uvloop would spin"
    room.network.accept_errno = None
    room.kernel.run(2)
    assert room.lacks[-1] is None
    last = room.connect(1)
    room.kernel.run(0.1)
    assert [client.events for client in (*early, *late, *last)] == [[b"hello"]] * 7
