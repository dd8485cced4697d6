"""Frames are written in order and in few writes; a frame can be cancelled until its first byte is
sent."""

import select
import socket
import threading
import time
from contextlib import closing

import pytest
from support.brokers.broker_kinds import wait_until

from rmq_spark.client.errors import ConnectionClosed, RequestTimeout
from rmq_spark.client.transport import frame_writer
from rmq_spark.client.transport.frame_writer import SLICE_BYTES, FrameWriter
from rmq_spark.wire.remoting.command import RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import FrameReader

ASK = RemotingCommand(105, ext_fields={"topic": "T"})
HERE = "broker:10911"


class Room:
    """Both ends of a stream, and the events that the writer reports."""

    def __init__(self, clock=time.monotonic, kind=socket.socket):
        own, self.theirs = socket.socketpair()
        self.own = kind(fileno=own.detach())
        self.own.settimeout(0.01)
        self.theirs.settimeout(10)
        self.ended = []
        self.refusal, self.refusals = None, iter(())
        self.last_words = None
        self.writer = FrameWriter(
            self.own, HERE, clock, self._check, self._end, self._read, "{}, perhaps so".format
        )

    def _read(self):
        if self.last_words is not None:
            self._end(self.last_words)

    def _end(self, error):
        self.ended.append(error)
        self.refusal = self.refusal or error

    def _check(self):
        refusal = next(self.refusals, self.refusal)
        if refusal is not None:
            raise refusal

    @property
    def is_writable(self):
        return bool(select.select([], [self.own], [], 0)[1])

    def received(self, count):
        reader, found = FrameReader(), []
        while len(found) < count:
            reader.feed(self.theirs.recv(1 << 16))
            while (frame := reader.next_frame()) is not None:
                found.append(decode_command(frame).opaque)
        return found

    def close(self):
        self.writer.close()
        self.own.close()
        self.theirs.close()


@pytest.fixture
def room():
    with closing(Room()) as room:
        yield room


def test_frame_writer_writes_at_once_and_keeps_order_of_enqueued_frames(room):
    room.writer.write(ASK._replace(opaque=1), time.monotonic() + 10, 10_000)
    assert room.received(1) == [1]
    for opaque in range(1_000):
        room.writer.enqueue(ASK._replace(opaque=opaque))
    assert room.received(1_000) == list(range(1_000))


def test_frame_writer_keeps_every_request_of_many_threads(room):
    def gather(first):
        for opaque in range(first, first + 500):
            room.writer.enqueue(ASK._replace(opaque=opaque))

    threads = [threading.Thread(target=gather, args=(500 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    assert sorted(room.received(2_000)) == list(range(2_000))
    for thread in threads:
        thread.join(10)


def test_write_that_the_open_check_refuses_is_not_sent(room):
    room.refusal = ConnectionClosed(HERE, "it rains")
    with pytest.raises(ConnectionClosed, match="it rains"):
        room.writer.write(ASK, time.monotonic() + 10, 10_000)
    room.refusal = None
    room.writer.write(ASK._replace(opaque=2), time.monotonic() + 10, 10_000)
    assert room.received(1) == [2]


def test_write_timeout_to_stalled_peer_keeps_connection_open_for_others(room):
    with pytest.raises(RequestTimeout) as raised:
        room.writer.write(ASK._replace(opaque=1, body=bytes(15 << 20)), time.monotonic() + 0.05, 50)
    assert (raised.value.request_code, raised.value.timeout_ms) == (105, 50)
    with pytest.raises(RequestTimeout):  # none of its bytes was sent, or will be
        room.writer.write(ASK._replace(opaque=2, body=bytes(15 << 20)), time.monotonic() + 0.05, 50)
    assert room.ended == []
    found = []
    reader = threading.Thread(target=lambda: found.extend(room.received(2)))
    reader.start()
    room.writer.write(ASK._replace(opaque=3), time.monotonic() + 10, 10_000)
    reader.join(10)
    assert found == [1, 3]


def test_peer_that_accepts_no_batched_frames_is_disconnected(room, monkeypatch):
    monkeypatch.setattr(frame_writer, "WRITE_TIMEOUT_MS", 50)
    room.writer.enqueue(ASK._replace(body=bytes(15 << 20)))
    wait_until("the connection is given up", lambda: room.ended)
    (ended,) = room.ended
    assert "accepts no more requests" in str(ended)


def test_enqueue_writes_in_the_callers_thread_if_no_writer_thread_can_start(room, monkeypatch):
    def start(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        for opaque in range(3):
            room.writer.enqueue(ASK._replace(opaque=opaque))
    room.writer.enqueue(ASK._replace(opaque=3))
    assert room.received(4) == [0, 1, 2, 3]


LARGE = bytes(SLICE_BYTES)
"""The body of a request that needs a write of its own."""


def gathered(room, count):
    """Return a writer whose peer does not read, after requests have filled the socket buffers."""
    for opaque in range(count):
        room.writer.enqueue(ASK._replace(opaque=opaque, body=LARGE))
    wait_until("it is stuck", lambda: room.writer._in_flight and not room.is_writable)
    (stuck,) = room.writer._in_flight
    return stuck


def test_cancelled_frame_that_was_not_begun_is_never_written_and_frees_its_bytes(room):
    stuck = gathered(room, 40)
    before = room.writer.unwritten_bytes
    released = []
    for opaque in range(40):
        if opaque % 2 and opaque > stuck:
            room.writer.cancel(opaque, lambda opaque=opaque: released.append(opaque))
    left = [opaque for opaque in range(40) if opaque <= stuck or not opaque % 2]
    assert len(released) == 40 - len(left)  # without waiting
    assert before - room.writer.unwritten_bytes >= len(released) * SLICE_BYTES
    assert room.received(len(left)) == left
    wait_until("all is written", lambda: not room.writer.unwritten_bytes)


def test_cancelled_frame_that_was_begun_is_kept_until_written(room):
    stuck = gathered(room, 40)
    released = []
    room.writer.cancel(stuck, lambda: released.append(threading.current_thread()))
    assert released == []
    assert stuck in room.received(40)
    wait_until("it is told", lambda: released)
    assert released != [threading.current_thread()]


def test_close_releases_cancelled_frame_that_was_begun(room):
    stuck = gathered(room, 40)
    released = []
    room.writer.cancel(stuck, lambda: released.append(stuck))
    room.writer.close()
    assert released == [stuck]


def test_cancel_of_a_written_frame_releases_at_once(room):
    released = []
    room.writer.enqueue(ASK._replace(opaque=1))
    assert room.received(1) == [1]
    wait_until("it is written", lambda: not room.writer._in_flight)
    room.writer.cancel(1, lambda: released.append(1))
    room.writer.cancel(1)
    assert released == [1]


def test_frame_writer_counts_unwritten_bytes_after_a_timeout(room):
    with pytest.raises(RequestTimeout):
        room.writer.write(ASK._replace(opaque=1, body=bytes(15 << 20)), time.monotonic() + 0.05, 50)
    begun = room.writer.unwritten_bytes
    assert 0 < begun <= 15 << 20
    with pytest.raises(RequestTimeout):
        room.writer.write(ASK._replace(opaque=2, body=bytes(15 << 20)), time.monotonic() + 0.05, 50)
    assert room.writer.unwritten_bytes <= begun
    reader = threading.Thread(target=room.received, args=(2,))
    reader.start()
    room.writer.write(ASK._replace(opaque=3), time.monotonic() + 10, 10_000)
    reader.join(10)
    assert room.writer.unwritten_bytes == 0


def test_write_to_a_gone_peer_fails_with_what_the_peer_said_before_it_closed(room):
    room.last_words = ConnectionClosed(HERE, "no more today")
    room.theirs.close()
    with pytest.raises(ConnectionClosed, match="no more today"):
        room.writer.write(ASK, time.monotonic() + 10, 10_000)


def test_write_to_a_gone_peer_closes_the_connection(room):
    room.theirs.close()
    with pytest.raises(ConnectionClosed, match=f"{HERE} is closed: Broken pipe, perhaps so"):
        room.writer.write(ASK, time.monotonic() + 10, 10_000)
    assert len(room.ended) == 1


def test_write_to_gone_peer_raises_the_reason_that_the_reader_found_first(room):
    """The reader knows the reason from the last bytes of the peer."""
    room.refusals = iter([None, ConnectionClosed(HERE, "we do not know you")])
    room.theirs.close()
    with pytest.raises(ConnectionClosed, match="we do not know you"):
        room.writer.write(ASK, time.monotonic() + 10, 10_000)


class Interrupted(socket.socket):
    """A socket that accepts a few bytes, and then raises KeyboardInterrupt."""

    sent = 0

    def send(self, data):
        if self.sent:
            raise KeyboardInterrupt
        self.sent = min(10, len(data))
        return self.sent


@pytest.mark.parametrize("body", [b"", bytes(1 << 16)], ids=["one piece", "two pieces"])
def test_interrupted_partial_request_ends_the_connection(body):
    with closing(Room(kind=Interrupted)) as room, pytest.raises(KeyboardInterrupt):
        room.writer.write(ASK._replace(body=body), time.monotonic() + 10, 10_000)
    (ended,) = room.ended
    assert f"{HERE} is closed: interrupted in the middle of a request" in str(ended)


def test_interrupt_before_anything_is_sent_keeps_connection_open(room):
    room.refusals = iter([KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        room.writer.write(ASK, time.monotonic() + 10, 10_000)
    assert room.ended == []


# ---- the requesting thread writes, at the end of its turn


class Counting(socket.socket):
    """A socket that counts its sends."""

    sends = 0

    def send(self, data):
        self.sends += 1
        return super().send(data)


def test_frames_enqueued_in_a_turn_are_sent_in_one_write_at_its_end():
    turn = []
    with closing(Room(kind=Counting)) as room:
        for opaque in range(100):
            room.writer.enqueue(ASK._replace(opaque=opaque), turn.append)
        assert (len(turn), room.own.sends) == (1, 0)
        turn.pop()()
        assert room.received(100) == list(range(100))
        assert room.own.sends == 1
        room.writer.enqueue(ASK._replace(opaque=100), turn.append)
        assert len(turn) == 1


def test_frame_writer_writes_large_frames_before_the_turn_ends(room):
    turn = []
    for opaque in range(10):
        room.writer.enqueue(ASK._replace(opaque=opaque, body=bytes(30_000)), turn.append)
    assert room.received(9)[:3] == [0, 1, 2]
    turn[0]()


def test_writer_thread_sends_what_the_socket_refuses_at_the_end_of_a_turn(room):
    turn, count = [], 100
    for opaque in range(count):
        room.writer.enqueue(ASK._replace(opaque=opaque, body=bytes(60_000)), turn.append)
    while turn:
        turn.pop()()
    assert not room.is_writable
    room.writer.enqueue(ASK._replace(opaque=count), turn.append)
    assert room.writer.unwritten_bytes > 0  # no thread has waited for the peer
    assert room.received(count + 1) == list(range(count + 1))
    wait_until("all written", lambda: room.writer.unwritten_bytes == 0)
    assert room.ended == []


def test_cancelled_partially_sent_frame_is_released_when_written(room):
    turn, released = [], []
    room.writer.enqueue(ASK._replace(opaque=1, body=bytes(15 << 20)), turn.append)
    for action in turn:
        action()
    room.writer.cancel(1, lambda: released.append(1))
    assert released == []
    assert room.received(1) == [1]
    wait_until("released", lambda: released == [1])


def test_writer_thread_does_not_wait_for_an_endless_turn(room):
    room.writer.enqueue(ASK._replace(opaque=1), lambda _: None)
    assert room.received(1) == [1]


def test_frame_cancelled_before_the_turn_ends_is_not_written(room):
    turn, released = [], []
    for opaque in (1, 2):
        room.writer.enqueue(ASK._replace(opaque=opaque), turn.append)
    room.writer.cancel(1, lambda: released.append(1))
    assert released == [1]
    turn.pop()()
    assert room.received(1) == [2]


class Polled(socket.socket):
    """A socket that calls a function on each poll."""

    on_poll = None

    def fileno(self):
        if self.on_poll is not None:
            self.on_poll()
        return super().fileno()


def test_frame_cancelled_as_its_turn_ends_keeps_connection_open():
    """The reading thread may cancel a request at any moment, when it times out."""
    turn, released = [], []
    with closing(Room(kind=Polled)) as room:
        room.own.on_poll = lambda: room.writer.cancel(1, lambda: released.append(1))
        room.writer.enqueue(ASK._replace(opaque=1), turn.append)
        turn.pop()()
        assert (released, room.ended) == ([1], [])
        room.writer.enqueue(ASK._replace(opaque=2), turn.append)
        turn.pop()()
        assert room.received(1) == [2]


def test_frame_writer_turn_survives_a_socket_closed_before_it(room):
    turn = []
    room.writer.enqueue(ASK._replace(opaque=1), turn.append)
    room.own.close()
    room.writer.close()
    room.writer._queued[1] = (b"it came just then",)
    turn.pop()()


def test_frame_writer_turn_does_not_wait_for_another_threads_large_request(room):
    turn = []
    writing = threading.Thread(
        target=room.writer.write,
        args=(ASK._replace(opaque=1, body=bytes(15 << 20)), time.monotonic() + 10, 10_000),
    )
    writing.start()
    wait_until("its buffer is full", lambda: not room.is_writable)
    room.writer.enqueue(ASK._replace(opaque=2), turn.append)
    turn.pop()()
    assert writing.is_alive()
    assert room.received(2) == [1, 2]
    writing.join(10)


def test_gone_peer_at_the_end_of_a_turn_closes_the_connection(room):
    room.theirs.close()
    turn = []
    room.writer.enqueue(ASK._replace(opaque=1), turn.append)
    turn.pop()()
    assert [type(error) for error in room.ended] == [ConnectionClosed]


def test_keyboard_interrupt_in_a_frame_writer_turn_ends_the_connection():
    turn = []
    with closing(Room(kind=Interrupted)) as room:
        room.writer.enqueue(ASK._replace(opaque=1), turn.append)
        with pytest.raises(KeyboardInterrupt):
            turn.pop()()
    (ended,) = room.ended
    assert "interrupted in the middle" in str(ended)
