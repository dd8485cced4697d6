"""Frames from any pieces, within their limits."""

import itertools
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.programs.python_programs import ROOT, python_program

from rmq_spark.errors import FrameError, HeaderError
from rmq_spark.wire.remoting.framing import (
    DIRECT_BUFFER_BYTES_MIN,
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    JOINED_BYTES_MAX,
    Frame,
    FrameReader,
    encode_prefix,
)


def frame_of(header: bytes, body: bytes = b"", serialize_type: int = 0) -> bytes:
    return encode_prefix(serialize_type, header, len(body)) + body


def read_all(reader: FrameReader, *pieces: bytes) -> list[tuple[int, bytes, bytes]]:
    frames = []
    for piece in pieces:
        reader.feed(piece)
        while (frame := reader.next_frame()) is not None:
            frames.append((frame.serialize_type, bytes(frame.header), bytes(frame.body)))
    return frames


A_FRAME = frame_of(b'{"code":11}', b"a body", 1)
AS_READ = (1, b'{"code":11}', b"a body")


def test_whole_frame_is_read_without_copying():
    reader = FrameReader()
    reader.feed(A_FRAME)
    frame = reader.next_frame()
    assert isinstance(frame, Frame)
    assert frame.body.obj is A_FRAME
    assert reader.buffered_bytes == 0


def test_frame_may_arrive_byte_by_byte():
    reader = FrameReader()
    pieces = [bytes([byte]) for byte in A_FRAME]
    assert read_all(reader, *pieces[:-1]) == []
    assert reader.buffered_bytes == len(A_FRAME) - 1
    assert not reader.is_empty
    assert read_all(reader, pieces[-1]) == [AS_READ]
    assert reader.buffered_bytes == 0
    assert reader.is_empty


def test_trailing_bytes_wait_for_the_rest_of_their_frame():
    reader = FrameReader()
    assert read_all(reader, A_FRAME + A_FRAME[:9]) == [AS_READ]
    assert reader.buffered_bytes == 9
    assert read_all(reader, A_FRAME[9:]) == [AS_READ]


def test_header_of_an_incomplete_frame_is_available_early():
    reader = FrameReader()
    for count, byte in enumerate(A_FRAME[:-1], 1):
        reader.feed(bytes([byte]))
        assert reader.next_frame() is None
        begun = reader.incomplete_frame()
        is_there = count >= A_FRAME.index(b"a body")
        assert (begun and (begun[0], bytes(begun[1]), bytes(begun[2]))) == (
            (1, b'{"code":11}', b"") if is_there else None
        )
    assert read_all(reader, A_FRAME[-1:]) == [AS_READ]
    assert reader.incomplete_frame() is None


PIECES = 60_000


@pytest.mark.timeout(60)  # a quadratic reader would take more than two minutes
def test_pieces_fed_without_reading_in_between_are_kept():
    reader = FrameReader()
    for piece in (A_FRAME[:5], A_FRAME[5:], A_FRAME, A_FRAME[:3]):
        reader.feed(piece)
    assert [reader.next_frame() is not None for _ in range(3)] == [True, True, False]
    assert reader.buffered_bytes == 3


@given(
    st.lists(
        st.tuples(st.binary(max_size=20), st.binary(max_size=20), st.integers(0, 255)), max_size=5
    ),
    st.lists(st.integers(1, 30), max_size=20),
)
def test_frame_reader_accepts_any_cuts_of_the_stream(contents, cuts):
    stream = b"".join(frame_of(header, body, kind) for header, body, kind in contents)
    pieces, start = [], 0
    for cut in cuts:
        pieces.append(stream[start : start + cut])
        start += cut
    frames = [(kind, header, body) for header, body, kind in contents]
    reader = FrameReader()
    assert read_all(reader, *pieces, stream[start:]) == frames
    assert reader.buffered_bytes == 0
    for piece in pieces:
        reader.feed(piece)
        assert reader.is_empty is not bool(reader.buffered_bytes)
    assert reader.buffered_bytes == sum(map(len, pieces))
    assert read_all(reader, stream[start:]) == frames
    assert reader.buffered_bytes == 0


@pytest.mark.parametrize("length", [-(1 << 31), -1, 0, 3, FRAME_BYTES_MAX - 3, (1 << 31) - 1])
def test_impossible_frame_length_is_refused_at_once(length):
    reader = FrameReader()
    reader.feed(struct.pack(">iI", length, 0))
    with pytest.raises(FrameError, match=f"frame length at byte 0.*found {length}"):
        reader.next_frame()


def test_longest_frame_is_read_and_a_longer_one_refused():
    body = bytes(FRAME_BYTES_MAX - 8 - 2)
    assert read_all(FrameReader(), frame_of(b"{}", body)) == [(0, b"{}", body)]
    with pytest.raises(FrameError):
        frame_of(b"{}", body + b"x")


def test_header_longer_than_its_frame_is_refused():
    reader = FrameReader()
    reader.feed(struct.pack(">iI", 10, 7))
    with pytest.raises(FrameError, match=r"header length at byte 5: needed at most 6 .*found 7"):
        reader.next_frame()


def test_header_over_the_limit_is_refused_before_it_arrives():
    reader = FrameReader(header_bytes_max=1000)
    reader.feed(struct.pack(">iI", 5000, 1001))
    with pytest.raises(FrameError, match="at most 1000"):
        reader.next_frame()


def test_frame_reader_starts_afresh_after_an_error():
    reader = FrameReader()
    reader.feed(A_FRAME + struct.pack(">iI", -5, 0) + b"more")
    assert reader.next_frame() is not None  # frames before the bad one are kept
    with pytest.raises(FrameError):
        reader.next_frame()
    assert reader.buffered_bytes == 0
    assert reader.next_frame() is None
    assert read_all(reader, A_FRAME) == [AS_READ]


def test_bad_frame_in_pieces_empties_the_reader():
    reader = FrameReader()
    reader.feed(struct.pack(">i", -5))
    assert reader.next_frame() is None
    reader.feed(b"\0\0\0\0 and more")
    with pytest.raises(FrameError):
        reader.next_frame()
    assert reader.buffered_bytes == 0


def test_announced_frame_length_allocates_no_memory_in_advance():
    tracemalloc.start()
    try:
        readers = [FrameReader() for _ in range(50)]
        for reader in readers:
            reader.feed(struct.pack(">iI", FRAME_BYTES_MAX - 4, 2))
            assert reader.next_frame() is None
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


DRIBBLED = """
    import tracemalloc
    from rmq_spark.wire.remoting.framing import FrameReader, encode_prefix
    data = encode_prefix(0, b"{}", 200_000) + bytes(200_000)
    reader = FrameReader()
    tracemalloc.start()
    for at in range(0, len(data) - 1, 2):
        reader.feed(data[at : at + 2])
        reader.next_frame()
    print(tracemalloc.get_traced_memory()[1] / len(data))
"""


def test_frame_arriving_in_small_pieces_needs_little_extra_memory():
    done = python_program(DRIBBLED, cwd=ROOT)  # in a process, where no other thread allocates
    assert float(done.stdout) < 1.3


PIECES = 60_000


@pytest.mark.timeout(60)  # a quadratic reader would take more than two minutes
def test_pieces_fed_without_reading_in_between_cost_time_and_memory_by_their_length():
    data = frame_of(b"{}", bytes(390))
    reader = FrameReader()
    tracemalloc.start()
    try:
        for _ in range(PIECES):
            reader.feed(data)
        assert reader.buffered_bytes == PIECES * len(data)
        assert tracemalloc.get_traced_memory()[1] < 3 * reader.buffered_bytes
    finally:
        tracemalloc.stop()
    assert len(read_all(reader, b"")) == PIECES
    assert reader.buffered_bytes == 0


def test_frame_reader_keeps_frames_until_taken():
    reader = FrameReader()
    for number in range(5):
        reader.feed(A_FRAME[:9])
        reader.feed(A_FRAME[9:] + A_FRAME)
        assert reader.next_frame() is not None
        assert reader.buffered_bytes == (number + 1) * len(A_FRAME)
    assert len(read_all(reader, b"")) == 5


def test_header_over_the_limit_is_not_encoded():
    assert len(encode_prefix(0, bytes(HEADER_BYTES_MAX), 0)) == 8 + HEADER_BYTES_MAX
    with pytest.raises(
        HeaderError, match=f"header at its end: needed at most {HEADER_BYTES_MAX} bytes"
    ):
        encode_prefix(0, bytes(HEADER_BYTES_MAX + 1), 0)


def read_through_room(
    reader: FrameReader, stream: bytes, sizes: list[int]
) -> list[tuple[int, bytes, bytes]]:
    """Read as from a socket: into the reader's buffer if it has one, else by feeding."""
    frames = []
    turns = itertools.cycle(sizes)
    while stream:
        size = next(turns)
        room = reader.get_buffer()
        if room is None:
            piece, stream = stream[:size], stream[size:]
            reader.feed(piece)
        else:
            count = min(size, len(room), len(stream))
            room[:count], stream = stream[:count], stream[count:]
            reader.buffer_updated(count)
        while (frame := reader.next_frame()) is not None:
            frames.append((frame.serialize_type, bytes(frame.header), bytes(frame.body)))
    return frames


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=5))
def test_rest_of_a_large_frame_can_be_received_into_its_own_buffer(sizes):
    large = frame_of(b"{}", bytes(range(256)) * 1_000)
    reader = FrameReader(allocate=lambda size: memoryview(bytearray(b"\xaa" * size)))
    expected = read_all(FrameReader(), A_FRAME, large, large, A_FRAME)
    assert read_through_room(reader, A_FRAME + large + large + A_FRAME, [9, *sizes]) == expected
    assert reader.buffered_bytes == 0


def test_frame_buffer_is_for_one_large_frame_only():
    large = frame_of(b"{}", bytes(DIRECT_BUFFER_BYTES_MIN))
    reader = FrameReader()
    assert reader.get_buffer() is None
    reader.feed(A_FRAME[:-1])
    assert reader.next_frame() is None
    assert reader.get_buffer() is None
    reader.feed(A_FRAME[-1:] + large[:20])
    assert reader.get_buffer() is None  # fed data has not been read yet
    assert read_all(reader, b"") == [AS_READ]
    assert reader.get_buffer() is None  # only a few bytes are missing
    larger = frame_of(b"{}", bytes(DIRECT_BUFFER_BYTES_MIN + 20))
    reader = FrameReader()
    assert read_all(reader, larger[:20]) == []
    assert len(reader.get_buffer()) == len(larger) - 20
    assert reader.buffered_bytes == 20
    reader.buffer_updated(len(larger) - 20)
    assert reader.get_buffer() is None
    assert reader.buffered_bytes == len(larger)
    assert reader.next_frame() is not None
    assert reader.get_buffer() is None


def test_frame_reader_accepts_feed_after_get_buffer():
    large = frame_of(b"{}", bytes(range(256)) * 1_000)
    reader = FrameReader()
    assert read_all(reader, large[:100]) == []
    reader.get_buffer()[:50] = large[100:150]
    reader.buffer_updated(50)
    assert read_all(reader, large[150:9_000], large[9_000:] + A_FRAME) == [
        *read_all(FrameReader(), large),
        AS_READ,
    ]


frame_sizes = st.lists(st.integers(0, 200), min_size=1, max_size=12)


@given(frame_sizes, st.lists(st.integers(0, 3_000), max_size=8), st.randoms())
def test_frame_reader_takes_frames_from_contiguous_data(sizes, cuts, dice):
    frames = [frame_of(b"{}", bytes([number]) * size) for number, size in enumerate(sizes)]
    data = b"".join(frames)
    places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    reader = FrameReader()
    taken = []
    for start, end in itertools.pairwise(places):
        reader.feed(data[start:end])
        while True:
            held = reader.buffered_bytes
            piece = reader.contiguous_data()
            assert reader.buffered_bytes == held
            at = len(b"".join(taken))
            if piece is not None and dice.random() < 0.7:
                whole, first_at = piece
                assert whole[first_at:] == data[at:end]
                reader.skip(len(frames[len(taken)]))
                taken.append(frames[len(taken)])
                continue
            frame = reader.next_frame()
            if frame is None:
                break
            taken.append(frame_of(bytes(frame.header), bytes(frame.body)))
    assert taken == frames
    assert reader.buffered_bytes == 0


def test_partial_or_large_frame_is_not_joined_with_the_next():
    reader = FrameReader()
    for piece in (A_FRAME[:5], A_FRAME[5:-1]):
        reader.feed(piece)
        assert reader.next_frame() is None
        assert reader.contiguous_data() is None
    reader.feed(A_FRAME[-1:] + A_FRAME[:3])
    assert reader.contiguous_data() == (A_FRAME + A_FRAME[:3], 0)
    reader = FrameReader()
    large = frame_of(b"{}", bytes(JOINED_BYTES_MAX))
    reader.feed(large[:-1])
    assert reader.next_frame() is None
    reader.feed(large[-1:])
    assert reader.contiguous_data() is None
    assert len(reader.next_frame().body) == JOINED_BYTES_MAX
