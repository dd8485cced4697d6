"""The network: bytes arrive in order, late and in pieces; a slow reader stops the writer; lines
break."""

import random

from world.kernel import Kernel
from world.network import WINDOW_BYTES, End, Network, Weather


class Peer(End):
    def __init__(self):
        super().__init__()
        self.pieces, self.events = [], []
        self.accepts = True

    @property
    def data(self):
        return b"".join(self.pieces)

    def connected(self):
        self.events.append("connected")

    def received(self, data):
        self.pieces.append(data)

    def ended(self):
        self.events.append("ended")

    def broken(self):
        self.events.append("broken")


class Room:
    """A client and its peer."""

    def __init__(self, seed=1, weather=None):
        self.kernel = Kernel(random.Random(seed))
        self.network = Network(self.kernel, random.Random(seed), weather)
        self.server, self.client = Peer(), Peer()
        self.network.listen(("127.0.0.1", 80), lambda connect: connect(self.server))
        self.network.connect(self.client, ("127.0.0.1", 80))
        self.kernel.run(1)


def test_bytes_arrive_in_their_order_whatever_the_pieces():
    for seed in range(30):
        room = Room(seed, Weather(jitter_seconds=0.5, cut_odds=0.9))
        sent = [bytes([number]) * random.Random(seed).randrange(1, 900) for number in range(50)]
        for data in sent:
            room.client.send(data)
        room.client.finish()
        room.kernel.run(100)
        assert room.server.data == b"".join(sent)
        assert room.server.events == ["ended"]
        assert len(room.server.pieces) != 50 or seed


def test_simulated_network_stops_sending_at_a_full_window():
    room = Room()
    room.server.accepts = False
    room.client.send(bytes(10 * WINDOW_BYTES))
    room.kernel.run(10)
    assert (room.server.data, room.client.waiting_bytes) == (b"", 9 * WINDOW_BYTES)
    room.server.accepts = True
    room.server.take_on()
    room.kernel.run(10)
    assert (len(room.server.data), room.client.waiting_bytes) == (10 * WINDOW_BYTES, 0)


def test_simulated_reset_drops_bytes_under_way():
    room = Room()
    room.client.send(b"lost")
    room.client.reset()
    room.kernel.run(1)
    assert (room.server.data, room.server.events, room.client.events) == (
        b"",
        ["broken"],
        ["connected"],
    )
    room.server.send(b"to nobody")
    room.kernel.run(1)
    assert room.client.data == b""


def test_simulated_silence_is_not_reported_to_either_end():
    room = Room()
    room.server.fall_silent()
    for end in (room.client, room.server):
        end.send(b"into the dark")
    room.kernel.run(1_000)
    assert (room.client.data, room.server.data, room.server.events) == (b"", b"", [])


def test_machine_after_a_power_loss_breaks_its_old_connections():
    room = Room()
    room.network.lose_power(room.server)
    room.client.send(b"a")
    room.kernel.run(10)
    assert room.client.events == ["connected"]
    room.network.power_is_back()
    room.client.send(b"b")
    room.kernel.run(10)
    assert room.client.events == ["connected", "broken"]


def test_silent_host_answers_only_new_connections_after_its_return():
    room = Room()
    room.network.silence("127.0.0.1")
    late = Peer()
    room.network.connect(late, ("127.0.0.1", 80))
    room.client.send(b"into the dark")
    room.kernel.run(1_000)
    assert (late.events, room.server.data) == ([], b"")
    room.network.send_back("127.0.0.1")
    room.client.send(b"still")
    room.network.connect(late, ("127.0.0.1", 80))
    room.kernel.run(1)
    assert (late.events, room.server.data) == (["connected"], b"")
