"""Delayed and repeated responses arrive whole, and no others are changed."""

import random

import pytest
from world.cluster.answers import Answers
from world.kernel import Kernel
from world.network import End, Network, Weather

from rmq_spark.wire.remoting.command import RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import FrameReader

HOST = "127.0.1.1"
ASKED = [RemotingCommand(10, opaque=number) for number in range(100)]


class Client(End):
    def __init__(self):
        super().__init__()
        self._frame_reader = FrameReader()
        self.opaques = []
        self.has_ended = False

    def received(self, data):
        self._frame_reader.feed(data)
        while (frame := self._frame_reader.next_frame()) is not None:
            self.opaques.append(decode_command(frame).opaque)

    def ended(self):
        self.has_ended = True


@pytest.fixture
def room():
    return Room()


class Room:
    """A broker and a client of it."""

    def __init__(self):
        self.kernel = Kernel(random.Random(1))
        network = Network(self.kernel, random.Random(2), Weather(cut_odds=0.9))
        self.answers = Answers(self.kernel, random.Random(3))
        network.lines = self.answers.lines
        self.client, self.broker = Client(), End()
        network.listen((HOST, 1), lambda join: join(self.broker))
        network.connect(self.client, (HOST, 1))
        self.kernel.run(1)

    def says(self, commands, pieces=7):
        data = b"".join(command.encode() for command in commands)
        size = len(data) // pieces + 1
        for start in range(0, len(data), size):
            self.broker.send(data[start : start + size])
        self.kernel.run(10)
        return self.client.opaques


def test_duplicated_answers_are_a_limited_share(room):
    room.answers.twice(HOST, 5.0)
    first = list(room.says([each.respond(0) for each in ASKED]))
    assert set(first) == set(range(100))
    assert 110 < len(first) <= 140
    assert room.says([each.respond(0) for each in ASKED])[len(first) :] == list(range(100))


def test_overdue_answers_arrive_after_later_ones(room):
    room.answers.overdue(HOST, 5.0)
    found = room.says([each.respond(0) for each in ASKED])
    assert sorted(found) == list(range(100))
    assert found != sorted(found)


def test_requests_of_the_broker_are_never_duplicated_or_delayed(room):
    room.answers.twice(HOST, 5.0)
    room.answers.overdue(HOST, 5.0)
    assert room.says(ASKED) == list(range(100))


def test_overdue_answers_are_lost_with_the_connection(room):
    room.answers.overdue(HOST, 5.0)
    data = b"".join(each.respond(0).encode() for each in ASKED)
    room.broker.send(data)
    room.broker.finish()
    room.kernel.run(10)
    assert 0 < len(room.client.opaques) < 100
    assert room.client.has_ended
