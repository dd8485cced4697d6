"""Frames and headers in the three header codecs; the other two must be faster than JSON."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.harness import Case, Target
from benchmarks.wire.samples import FRAMES, codec_of, pull_request
from rmq_spark.wire.codes import RequestCode, SerializeType
from rmq_spark.wire.remoting.command import RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import Frame, FrameReader

_FRAMES_PER_FEED = 64
"""The frames that one read of a socket brings when the other side is busy, about."""

_PEER = SerializeType.JSON.name
_HEADER_MICROSECONDS_MAX = 6.0


def cases() -> list[Case]:
    """Return the cases: frames of each kind read and written, and the most frequent header."""
    found = _pull_header_cases()
    for kind, make_command in FRAMES.items():
        for verb, run_for in (("decode", _decoding), ("encode", _encoding)):
            found += [
                Case(
                    f"frame {verb}, {kind}",
                    serialize_type.name,
                    run_for(make_command(serialize_type)),
                    _FRAMES_PER_FEED,
                    unit="frame",
                    peer=_peer_of(serialize_type),
                )
                for serialize_type in SerializeType
            ]
    return found


def _pull_header_cases() -> list[Case]:
    # One codec that beats JSON is enough, and MessagePack is the one chosen for that.
    targets = {
        SerializeType.JSON: Target("microseconds", _HEADER_MICROSECONDS_MAX),
        SerializeType.MSGPACK: Target("ratio", 1.0),
    }
    return [
        Case(
            "pull request header, frame to typed header",
            serialize_type.name,
            _decoding_header(pull_request(serialize_type)),
            _FRAMES_PER_FEED,
            unit="header",
            peer=_peer_of(serialize_type),
            target=targets.get(serialize_type),
        )
        for serialize_type in SerializeType
    ]


def _peer_of(serialize_type: SerializeType) -> str | None:
    return None if serialize_type.name == _PEER else _PEER


def _decoding(command: RemotingCommand) -> Callable[[], None]:
    """Return a function that decodes commands from the bytes of a stream."""
    data = command.encode() * _FRAMES_PER_FEED
    reader = FrameReader()

    def run() -> None:
        reader.feed(data)
        while (frame := reader.next_frame()) is not None:
            decode_command(frame)

    return run


def _encoding(command: RemotingCommand) -> Callable[[], None]:
    def run() -> None:
        for _ in range(_FRAMES_PER_FEED):
            command.encode()

    return run


def _decoding_header(command: RemotingCommand) -> Callable[[], None]:
    """Return a function that decodes a frame's typed header."""
    codec = codec_of(RequestCode.PULL_MESSAGE)
    frame = _only_frame(command.encode())

    def run() -> None:
        for _ in range(_FRAMES_PER_FEED):
            codec.decode(decode_command(frame).ext_fields)

    return run


def _only_frame(data: bytes) -> Frame:
    reader = FrameReader()
    reader.feed(data)
    frame = reader.next_frame()
    if frame is None:
        raise ValueError("not a whole frame")
    return frame
