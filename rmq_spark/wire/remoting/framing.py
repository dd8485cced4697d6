"""Framing: splits a stream of bytes into frames.

    i32  length       bytes after this word: 4 + header + body
    u8   serialize    which codec wrote the header
    u24  header length
         header
         body         the rest

`FrameReader` checks both length words before it buffers the bytes that they announce.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from rmq_spark.errors import FrameError, HeaderError, Verbatim

Buffer: TypeAlias = "bytes | bytearray | memoryview"

FRAME_BYTES_MAX = 16_777_216
"""The maximum size of a frame with its length word, as in Java's decoder."""

HEADER_BYTES_MAX = 262_144
"""The maximum size of a header; properties take 32,767, or six times that escaped in JSON."""

DIRECT_BUFFER_BYTES_MIN = 65_536
"""The fewest missing bytes for which a buffer is allocated; for less, feeding is as fast."""

JOINED_BYTES_MAX = 65_536
"""The maximum size of an incomplete frame that is joined with the bytes after it."""

_WORDS = struct.Struct(">iI")
_unpack_words = _WORDS.unpack_from
_LENGTH_WORD_BYTES = 4
PREFIX_BYTES = _WORDS.size
_HEADER_LENGTH_MASK = 0xFFFFFF
_TLS_RECORDS = (0x1403, 0x1503, 0x1603, 0x1703)
"""The first two bytes of every TLS record: its type, and the first half of a version."""
_HTTP_RESPONSE = int.from_bytes(b"HTTP", "big")

_EMPTY = memoryview(b"")


def _allocate_zeroed(size: int) -> memoryview:
    return memoryview(bytearray(size))


class Frame(NamedTuple):
    """One frame, split off but not yet decoded; both views share memory with the fed bytes."""

    serialize_type: int
    header: memoryview
    body: memoryview


_new_frame: Callable[[type[Frame], tuple[Any, ...]], Frame] = tuple.__new__


class FrameReader:
    """Splits a stream into frames: `feed` bytes, then call `next_frame` until it returns None.

    Bytes may be fed at any time, in pieces of any size. A reader that is always read until None
    holds no more than one incomplete frame. A caller that trusts the peer may receive the rest of a
    large frame directly into its final memory (`get_buffer`).

    After a `FrameError` the reader is empty, as if new, and has returned all frames before the bad
    one. The stream is out of step from there on: close it.
    """

    def __init__(
        self,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        header_bytes_max: int = HEADER_BYTES_MAX,
        allocate: Callable[[int], memoryview] = _allocate_zeroed,
    ) -> None:
        """Create a reader; use small limits for peers that have not authenticated.

        ``allocate`` returns writable bytes of a given size, with any content, for a large frame.
        """
        self._allocate = allocate
        self._frame_bytes_max = frame_bytes_max
        self._header_bytes_max = header_bytes_max
        self._unread = _EMPTY
        self._pending = bytearray()  # pieces fed after `_unread`, usually empty
        self._partial = bytearray()  # one incomplete frame, or empty
        self._partial_frame_bytes = PREFIX_BYTES
        self._large_frame: memoryview | None = None  # all of a large frame, begun in `_partial`
        self._direct_buffer: memoryview | None = None  # the end of `_large_frame`, not yet written

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes fed and not yet returned."""
        whole = self._partial if self._large_frame is None else self._large_frame
        unwritten = 0 if self._direct_buffer is None else len(self._direct_buffer)
        return len(whole) - unwritten + len(self._unread) + len(self._pending)

    @property
    def is_empty(self) -> bool:
        """True if all bytes that were fed have been returned."""
        return not (self._unread or self._partial or self._pending)

    def feed(self, data: bytes) -> None:
        """Add the next piece of the stream; it must not be changed afterwards."""
        if self._unread or self._pending:
            self._pending += data
        else:
            self._unread = memoryview(data)

    def get_buffer(self) -> memoryview | None:
        """Return the memory for the missing bytes of a large frame, or None.

        A buffer exists only after all frames fed so far were returned. Pass `buffer_updated` the
        number of bytes that were written. The memory of the whole frame is allocated at once, so
        use this for trusted peers only; growing and copying would take longer than receiving.
        """
        if self._direct_buffer is None:
            missing = self._partial_frame_bytes - len(self._partial)
            if (
                not self._partial
                or self._unread
                or self._pending
                or missing < DIRECT_BUFFER_BYTES_MIN
            ):
                return None
            self._large_frame = self._allocate(self._partial_frame_bytes)
            start = len(self._partial)
            self._large_frame[:start] = self._partial
            self._direct_buffer = self._large_frame[start:]
        return self._direct_buffer or None

    def buffer_updated(self, count: int) -> None:
        """Record that ``count`` bytes were written to the start of the buffer."""
        if self._direct_buffer is not None:
            self._direct_buffer = self._direct_buffer[count:]

    def next_frame(self) -> Frame | None:
        """Return the next complete frame, or None until more has been fed."""
        # Nearly always the frame lies within one piece. Handling that here takes half the time of
        # calling the methods below, which handle all other cases and describe errors.
        data = self._unread
        held = len(data)
        if held >= PREFIX_BYTES and not self._partial:
            length, word = _unpack_words(data)
            frame_bytes = length + _LENGTH_WORD_BYTES
            header_length = word & _HEADER_LENGTH_MASK
            header_end = header_length + PREFIX_BYTES
            if (
                header_end <= frame_bytes <= held
                and frame_bytes <= self._frame_bytes_max
                and header_length <= self._header_bytes_max
            ):
                self._unread = data[frame_bytes:]
                parts = word >> 24, data[PREFIX_BYTES:header_end], data[header_end:frame_bytes]
                return _new_frame(Frame, parts)
        try:
            frame = self._read_partial() if self._partial else self._read_contiguous()
            if frame is None and self._pending:  # `_unread` is empty here
                self._unread, self._pending = memoryview(self._pending), bytearray()
                frame = self._read_partial() if self._partial else self._read_contiguous()
        except FrameError:
            self._unread = _EMPTY
            self._pending = bytearray()
            self._partial = bytearray()
            raise
        return frame

    def contiguous_data(self) -> tuple[bytes, int] | None:
        """Return bytes that contain the whole next frame, and the position where it starts.

        Return None if the frame is incomplete, or large and fed in pieces; the pieces of a short
        frame are joined. The bytes end with the last byte fed, which may lie within a later frame.
        A caller that reads frames from them itself must call `skip`.
        """
        if self._partial and not self._join_partial():
            return None
        unread = self._unread
        size = len(unread)
        if size < PREFIX_BYTES or _unpack_words(unread)[0] + _LENGTH_WORD_BYTES > size:
            return None
        data = unread.obj
        if type(data) is not bytes:
            data = bytes(unread)
            self._unread = memoryview(data)
        return data, len(data) - size

    def skip(self, count: int) -> None:
        """Skip the next ``count`` bytes: complete frames that the caller has read."""
        self._unread = self._unread[count:]

    def incomplete_frame(self) -> Frame | None:
        """Return a copy of the incomplete frame without its body; None before its header is there.

        Call it after `next_frame` has returned None.
        """
        if not self._partial or self._partial_frame_bytes == PREFIX_BYTES:
            return None
        word = _WORDS.unpack_from(self._partial)[1]
        header_end = PREFIX_BYTES + (word & _HEADER_LENGTH_MASK)
        if self.buffered_bytes < header_end:
            return None
        whole = self._partial if self._large_frame is None else self._large_frame
        return _split_frame(memoryview(bytes(whole[:header_end])), word, header_end)

    def _read_contiguous(self) -> Frame | None:
        """Return a frame that lies within one piece, without copying a byte."""
        data = self._unread
        held = len(data)
        needs = PREFIX_BYTES
        if held >= PREFIX_BYTES:
            length, word = _WORDS.unpack_from(data)
            needs = self._frame_bytes(length, word)
            if held >= needs:
                self._unread = data[needs:]
                return _split_frame(data, word, needs)
        if held:
            self._partial += data
            self._unread = _EMPTY
        self._partial_frame_bytes = needs
        return None

    def _read_partial(self) -> Frame | None:
        """Return a frame joined from several pieces; memory grows only as bytes arrive."""
        if self._partial_frame_bytes == PREFIX_BYTES:
            if not self._fill_partial():
                return None
            self._partial_frame_bytes = self._frame_bytes(*_WORDS.unpack_from(self._partial))
        if not self._fill_partial():
            return None
        data = memoryview(self._partial) if self._large_frame is None else self._large_frame
        self._partial = bytearray()
        self._large_frame = self._direct_buffer = None
        return _split_frame(data, _WORDS.unpack_from(data)[1], len(data))

    def _join_partial(self) -> bool:
        """Join a short, complete frame and all bytes after it; return False for any other frame."""
        partial, unread = self._partial, self._unread
        held = len(partial) + len(unread)
        if (
            self._direct_buffer is not None
            or held < PREFIX_BYTES
            or len(partial) > JOINED_BYTES_MAX
        ):
            return False
        start = b"".join((partial[:PREFIX_BYTES], unread[:PREFIX_BYTES]))
        if held < _unpack_words(start)[0] + _LENGTH_WORD_BYTES:
            return False
        self._unread = memoryview(b"".join((partial, unread)))
        self._partial = bytearray()
        return True

    def _fill_partial(self) -> bool:
        if self._direct_buffer is not None:
            count = min(len(self._direct_buffer), len(self._unread))
            self._direct_buffer[:count] = self._unread[:count]
            self._direct_buffer, self._unread = self._direct_buffer[count:], self._unread[count:]
            return not self._direct_buffer
        missing = self._partial_frame_bytes - len(self._partial)
        self._partial += self._unread[:missing]
        self._unread = self._unread[missing:]
        return len(self._partial) == self._partial_frame_bytes

    def _frame_bytes(self, length: int, word: int) -> int:
        frame_bytes = length + _LENGTH_WORD_BYTES
        if not PREFIX_BYTES <= frame_bytes <= self._frame_bytes_max:
            found: object = length
            if length >> 16 in _TLS_RECORDS:
                found = Verbatim(f"{length}: the peer speaks TLS, and this side does not")
            elif length == _HTTP_RESPONSE:
                found = Verbatim("'HTTP': the peer is a web server")
            needed = f"4 to {self._frame_bytes_max - _LENGTH_WORD_BYTES}"
            raise FrameError("frame length", at=0, needed=needed, found=found)
        header_length = word & _HEADER_LENGTH_MASK
        header_length_max = min(frame_bytes - PREFIX_BYTES, self._header_bytes_max)
        if header_length > header_length_max:
            raise FrameError(
                "header length",
                at=5,
                needed=f"at most {header_length_max} in a frame of length {length}",
                found=header_length,
            )
        return frame_bytes


def encode_prefix(serialize_type: int, header: bytes, body_bytes: int) -> bytes:
    """Return the frame up to its body, for a body that is sent separately."""
    if len(header) > HEADER_BYTES_MAX:
        raise HeaderError(
            "header", at="its end", needed=f"at most {HEADER_BYTES_MAX} bytes", found=len(header)
        )
    frame_bytes = PREFIX_BYTES + len(header) + body_bytes
    if frame_bytes > FRAME_BYTES_MAX:
        raise FrameError(
            "frame", at="its end", needed=f"at most {FRAME_BYTES_MAX} bytes", found=frame_bytes
        )
    return (
        _WORDS.pack(frame_bytes - _LENGTH_WORD_BYTES, serialize_type << 24 | len(header)) + header
    )


def _split_frame(data: memoryview, word: int, frame_bytes: int) -> Frame:
    header_end = PREFIX_BYTES + (word & _HEADER_LENGTH_MASK)
    return Frame(word >> 24, data[PREFIX_BYTES:header_end], data[header_end:frame_bytes])
