"""A million damaged frames: each ends in a value or in a `WireError`, soon, and in little memory.

The frames are those that Java made, and ours around its bodies and records; the damage is what networks
and enemies do. ROCKETPOLL_FUZZ_FRAMES sets how many, ROCKETPOLL_FUZZ_SEED which: `make fuzz`.
"""

from __future__ import annotations

import os
import random
import resource
import struct
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import java_vectors
import pytest

from rmq_spark.errors import WireError
from rmq_spark.wire.bodies import clients, configs, decode_body, registration, routes, stats
from rmq_spark.wire.chunk import COLUMNS, RecordChunk, chunk_columns
from rmq_spark.wire.codes import RequestCode, SerializeType
from rmq_spark.wire.command import RemotingCommand, decode_command
from rmq_spark.wire.compression import uncompress_body
from rmq_spark.wire.flags import MessageSysFlag
from rmq_spark.wire.framing import FRAME_BYTES_MAX, FrameReader
from rmq_spark.wire.headers import HEADERS
from rmq_spark.wire.message_batch import decode_batch
from rmq_spark.wire.properties import decode_properties
from rmq_spark.wire.record import decode_records

FRAMES = int(os.environ.get("ROCKETPOLL_FUZZ_FRAMES", "1000000"))
SEED = int(os.environ.get("ROCKETPOLL_FUZZ_SEED", "20240229"))
SECONDS_MAX = 0.05
TRACED_EVERY = 500

BODY_MODULES = (clients, configs, registration, routes, stats)
WORDS = [0, 1, -1, 2, 4, 90, 91, 127, 128, 255, 32767, 65535, 1 << 24, (1 << 31) - 1, -(1 << 31)]


@dataclass(frozen=True)
class Specimen:
    """A healthy frame, and how its body is read."""

    frame: bytes
    request_code: int
    is_response: bool = False
    read_body: Callable[[Any], Any] | None = None


def read_records(body):
    for message in decode_records(body, check_crc=False):
        decode_properties(message.properties_text)


def read_chunk(body):
    chunk_columns(RecordChunk(body), COLUMNS)


def body_class(name):
    for module in BODY_MODULES:
        if hasattr(module, name):
            return getattr(module, name)
    return None


def specimens() -> list[Specimen]:
    found = []
    for version in java_vectors.VERSIONS:
        for vector in java_vectors.load(version, "frames"):
            frame = bytes.fromhex(vector["frame"])
            found.append(Specimen(frame, vector["requestCode"], vector["kind"] == "response"))
        for vector in java_vectors.load(version, "bodies"):
            if (kind := body_class(vector["class"])) is not None:
                frame = around(vector["text"].encode())
                found.append(Specimen(frame, 0, read_body=partial(decode_body, kind)))
        records = [bytes.fromhex(vector["record"]) for vector in java_vectors.load(version, "records")]
        for start in range(0, len(records), 8):
            frame = around(b"".join(records[start : start + 8]))
            found.append(Specimen(frame, 0, read_body=read_records))
        found.append(Specimen(around(b"".join(records[:4])), 0, read_body=read_chunk))
        found += [
            Specimen(around(bytes.fromhex(vector["body"])), 0, read_body=decode_batch)
            for vector in java_vectors.load(version, "batches")
        ]
        for vector in java_vectors.load(version, "register_compressed"):
            if vector["compressed"]:
                frame = around(bytes.fromhex(vector["body"]))
                read = registration.decode_compressed_registration
                found.append(Specimen(frame, 0, read_body=read))
        for vector in java_vectors.load(version, "compressed"):
            bits = getattr(MessageSysFlag, f"COMPRESSION_{vector['type']}")
            read = partial(uncompress_body, sys_flag=int(MessageSysFlag.COMPRESSED | bits))
            found.append(Specimen(around(bytes.fromhex(vector["compressed"])), 0, read_body=read))
    return found


def around(body: bytes) -> bytes:
    """A frame of ours, in MessagePack, with this body."""
    return RemotingCommand(
        RequestCode.PULL_MESSAGE, ext_fields={"a": "1"}, body=body, serialize_type=SerializeType.MSGPACK
    ).encode()


def damaged(dice: random.Random, frame: bytes, other: bytes) -> bytes:
    """The frame with one to three things wrong."""
    data = bytearray(frame)
    for _ in range(dice.randint(1, 3)):
        at = int(dice.random() * (len(data) + 1))
        kind = int(dice.random() * 8)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << int(dice.random() * 8)
        elif kind == 1:
            data[at : at + 1] = dice.randbytes(1)
        elif kind == 2:
            del data[at : at + int(dice.random() * 8)]
        elif kind == 3:
            data[at:at] = data[at - 8 : at]
        elif kind == 4:
            data[at : at + 4] = struct.pack(">i", dice.choice(WORDS))
        elif kind == 5:
            data[at : at + 2] = struct.pack(">i", dice.choice(WORDS))[2:]
        elif kind == 6:
            del data[at:]
        else:
            data[at:] = other[at:]
    if dice.random() < 0.7 and len(data) >= 4:  # otherwise most would fail at the first word
        data[:4] = struct.pack(">i", len(data) - 4)
    return bytes(data)


def read(data: bytes, specimen: Specimen) -> bool:
    """Read whatever can be read, and tell whether it could; only a WireError may keep it from that."""
    reader = FrameReader()
    reader.feed(data)
    try:
        while (frame := reader.next_frame()) is not None:
            command = decode_command(frame)
            for code in {specimen.request_code, command.code}:
                exchange = HEADERS.get(code)
                codec = exchange and (exchange.response if specimen.is_response else exchange.request)
                if codec:
                    try:
                        codec.encode(codec.decode(command.ext_fields))
                    except WireError:
                        continue
            if specimen.read_body and command.body:
                specimen.read_body(command.body)
    except WireError as error:
        assert len(str(error)) < 1000
        return False
    return reader.bytes_held == 0


def timed_read(data: bytes, specimen: Specimen) -> tuple[bool, float]:
    """Whether it could be read, and how long it took by the processor's time, which is ours alone."""
    started = time.thread_time()
    readable = read(data, specimen)
    return readable, time.thread_time() - started


@pytest.fixture(scope="module")
def corpus():
    found = specimens()
    for specimen in found:
        read(specimen.frame, specimen)  # imports and caches are not what is measured
    return found


def test_damaged_frames_end_in_a_value_or_an_error_soon_and_in_little_memory(corpus):
    dice = random.Random(SEED)
    rss_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read_whole = 0
    for number in range(FRAMES):
        specimen, other = dice.choice(corpus), dice.choice(corpus)
        data = damaged(dice, specimen.frame, other.frame)
        try:
            readable, seconds = timed_read(data, specimen)
        except Exception as error:
            pytest.fail(f"frame {number} of seed {SEED}: {error!r} from {data.hex()}")
        if seconds > SECONDS_MAX:
            seconds = min(timed_read(data, specimen)[1] for _ in range(3))
        read_whole += readable
        assert seconds < SECONDS_MAX, f"frame {number} of seed {SEED}: {data.hex()}"
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss_before) * 1024
    assert grown < FRAME_BYTES_MAX
    assert 0.1 < read_whole / FRAMES < 0.9, "the damage is too heavy, or too light, to tell anything"


def test_damaged_frames_take_no_more_memory_than_a_frame_may_have(corpus):
    dice = random.Random(SEED + 1)
    tracemalloc.start()
    try:
        for number in range(max(FRAMES // TRACED_EVERY, 1)):
            specimen, other = dice.choice(corpus), dice.choice(corpus)
            data = damaged(dice, specimen.frame, other.frame)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            read(data, specimen)
            taken = tracemalloc.get_traced_memory()[1] - before
            assert taken < FRAME_BYTES_MAX, f"frame {number} of seed {SEED + 1}: {data.hex()}"
    finally:
        tracemalloc.stop()


def test_healthy_frames_are_read(corpus):
    assert len(corpus) > 1000
    # Among Java's vectors are two bodies with references that lead nowhere, and records with false flags.
    assert sum(not read(specimen.frame, specimen) for specimen in corpus) < 30
