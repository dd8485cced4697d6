"""Received bytes become commands in order, and a reason when the stream ends."""

import itertools
import socket
import struct
import threading

import pytest

from rmq_spark.client.errors import ConnectionClosed, ProtocolError
from rmq_spark.client.transport.connection import ResponseReader
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.remoting.command import RemotingCommand

FRAME_BYTES_MAX = 16 << 20


def request(number, body=b""):
    return RemotingCommand(RequestCode.HEART_BEAT, opaque=number, body=body)


class Room:
    """One end of a connection, and the commands that the other end receives."""

    def __init__(self):
        self.now = 100.0
        self.peer, self.sock = socket.socketpair()
        self.incoming = ResponseReader(self.sock, "b:1", lambda: self.now, FRAME_BYTES_MAX)
        self.received = []

    def read(self, seconds=0.01):
        return self.incoming.read(seconds, self.received.append)

    def sends(self, *commands):
        self.peer.sendall(b"".join(each.encode() for each in commands))

    def close(self):
        self.peer.close()
        self.sock.close()


@pytest.fixture
def room():
    room = Room()
    yield room
    room.close()


def test_incoming_commands_are_delivered_in_order_with_their_time(room):
    room.sends(request(1), request(2))
    room.now = 107.0
    assert room.read() is None
    assert [each.opaque for each in room.received] == [1, 2]
    assert room.incoming.received_at == 107.0


def test_read_without_data_returns_none(room):
    room.now = 107.0
    assert room.read() is None
    assert (room.received, room.incoming.received_at) == ([], 100.0)


@pytest.mark.parametrize("body", [b"", bytes(1 << 20)], ids=["small", "large"])
def test_response_in_pieces_is_delivered_when_complete(room, body):
    frame = request(3, body).encode()
    for begin, end in itertools.pairwise((0, 5, 20, len(frame) - 1, len(frame))):
        assert not room.received
        piece = frame[begin:end]
        sender = threading.Thread(target=room.peer.sendall, args=(piece,))
        sender.start()
        while sender.is_alive():
            assert room.read() is None
        sender.join()
        assert room.read() is None
    assert [len(each.body) for each in room.received] == [len(body)]


def test_peer_version_comes_from_responses_only(room):
    room.sends(request(1)._replace(version=411))
    room.read()
    assert room.incoming.peer_version == 0
    room.sends(request(1).respond(0)._replace(version=433))
    room.read()
    assert room.incoming.peer_version == 433


@pytest.mark.parametrize("has_answered", [False, True])
def test_connection_closed_without_a_response_mentions_tls(room, has_answered):
    if has_answered:
        room.sends(request(1).respond(0))
        room.read()
    assert not room.incoming.is_closed_by_peer()
    room.peer.close()
    assert room.incoming.is_closed_by_peer()
    end = room.read()
    assert isinstance(end, ConnectionClosed)
    assert ("TLS" in str(end)) is not has_answered


def test_connection_closed_within_a_command_is_named_in_the_error(room):
    room.peer.sendall(request(1, b"body").encode()[:-2])
    room.read()
    room.peer.close()
    assert "in the middle of a response" in str(room.read())


def test_garbage_ends_reading_after_earlier_responses(room):
    room.sends(request(1))
    room.peer.sendall(struct.pack(">ii", -1, 0))
    assert isinstance(room.read(), ProtocolError)
    assert [each.opaque for each in room.received] == [1]


def test_locally_closed_socket_counts_as_closed_by_its_peer(room):
    room.sock.close()
    assert room.incoming.is_closed_by_peer()
