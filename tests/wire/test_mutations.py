"""A million damaged frames: each ends in a value or in a `WireError`, soon, and in little memory.

The frames are those that Java made, and ours around its bodies and records; the damage is what
networks and enemies do. ROCKETPOLL_FUZZ_FRAMES sets how many, ROCKETPOLL_FUZZ_SEED which:
`make fuzz`.

Each decoder gets its share (`SHARES`), whatever the number of vectors that there are for it. Damage
to a body leaves the frame around it readable in nine cases of ten, so that the body's decoder is
reached; and most damage to records keeps their length. Large frames, of some hundred kilobytes, get
the same damage, one for every `LARGE_EVERY` of the others; they may take that much more work, but
not more than in proportion.

The work is counted in lines of Python, which are as many on a slow machine as on a fast one. Memory
is measured in a test of its own, as that is slow, with one frame for every `TRACED_EVERY`: Python's
and numpy's by tracemalloc, Arrow's by a pool. What zlib, lz4 and zstd take within is in neither;
`test_compression` bounds what they give.
"""

from __future__ import annotations

import os
import random
import struct
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from types import FrameType
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from support.rocketmq import java_vectors
from support.suite.selection import count

from rmq_spark.errors import WireError
from rmq_spark.wire.bodies import clients, configs, decode_body, operators
from rmq_spark.wire.chunk import COLUMNS, RecordChunk, chunk_columns
from rmq_spark.wire.chunk.checksums import intact_records
from rmq_spark.wire.codes import MessageSysFlag, RequestCode, SerializeType
from rmq_spark.wire.compression import PLAIN_BYTES_MAX, compress_body, uncompress_body
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.message.message_batch import BatchedMessage, decode_batch, encode_batch
from rmq_spark.wire.message.properties import decode_properties
from rmq_spark.wire.message.record import StoredMessage, decode_records, encode_record
from rmq_spark.wire.remoting.command import RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import FRAME_BYTES_MAX, FrameReader

FRAMES = count("ROCKETPOLL_FUZZ_FRAMES", 8_000, wide=300_000)
SEED = int(os.environ.get("ROCKETPOLL_FUZZ_SEED", "20240229"))
LINES_PER_BYTE_MAX = 8
FEW_BYTES = 4096
"""Shorter frames may take as many lines as one of this length."""
INFLATING_BYTES_MAX = 3 * PLAIN_BYTES_MAX
"""The inflaters collect pieces, and join them at the end."""
LARGE_EVERY = 5000
TRACED_EVERY = 32

SHARES = {  # per cent
    # Any part of a Java frame: `FrameReader`, the three header codecs, typed headers.
    "headers": 50,
    "ext fields": 16,  # single ext fields, in a readable header: typed headers
    "JSON": 12,
    "records": 7,
    "chunk, sizes found": 1,
    "chunk, sizes given": 2,  # half of these have wrong sizes
    "batch": 5,
    "compressed": 5,
}

BODY_MODULES = (clients, configs, operators)
WORDS = [0, 1, -1, 2, 4, 90, 91, 127, 128, 255, 32767, 65535, 1 << 24, (1 << 31) - 1, -(1 << 31)]
TEXTS = [
    "",
    "-1",
    "0",
    " 1",
    "1e3",
    "1.5",
    "9" * 30,
    "2147483648",
    "true",
    "null",
    "\u0663",
    "\0",
    "x" * 300,
]
COLUMNS_AT_ONCE = 3


@dataclass(frozen=True)
class Specimen:
    """An undamaged frame, and the reader of its body if the body gets damaged."""

    frame: bytes
    body_at: int = 0
    read_body: Callable[[Any], Any] | None = None
    request_code: int = 0
    is_response: bool = False
    ext_fields: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        return self.frame[self.body_at :]


Corpus = dict[str, list[Specimen]]


def read_records(body):
    for message in decode_records(body, check_crc=False):
        decode_properties(message.properties_text)


def read_chunk(body, sizes=None):
    """Read a few of the columns, chosen by the data, so that a frame is always read alike."""
    chunk = RecordChunk(body, sizes)
    names = [*COLUMNS, *COLUMNS]
    first = crc32(body) % len(COLUMNS)
    chunk_columns(chunk, names[first : first + COLUMNS_AT_ONCE])
    intact_records(chunk)


def read_sized_chunk(body):
    """Return the number of records, their sizes and the records; see `with_sizes`."""
    records_at = 4 + 8 * int.from_bytes(body[:4], "big")
    if records_at <= len(body):
        read_chunk(body[records_at:], np.frombuffer(body[4:records_at], ">i8"))


def with_sizes(records):
    return struct.pack(f">i{len(records)}q", len(records), *map(len, records)) + b"".join(records)


def body_class(name):
    for module in BODY_MODULES:
        if hasattr(module, name):
            return getattr(module, name)
    return None


def around(body: bytes, read_body: Callable[[Any], Any]) -> Specimen:
    """Return a frame of ours, in MessagePack, with this body."""
    frame = RemotingCommand(
        RequestCode.PULL_MESSAGE,
        ext_fields={"a": "1"},
        body=body,
        serialize_type=SerializeType.MSGPACK,
    ).encode()
    return Specimen(frame, len(frame) - len(body), read_body)


def specimens() -> Corpus:
    """Return specimens by decoder, from Java's vectors and our own."""
    found: Corpus = {name: [] for name in SHARES}
    for version in java_vectors.VERSIONS:
        for vector in java_vectors.load(version, "frames"):
            frame = bytes.fromhex(vector["frame"])
            specimen = Specimen(
                frame,
                request_code=vector["requestCode"],
                is_response=vector["kind"] == "response",
                ext_fields=command_of(frame).ext_fields,
            )
            found["headers"].append(specimen)
            if specimen.ext_fields:
                found["ext fields"].append(specimen)
        found["JSON"] += [
            around(vector["text"].encode(), partial(decode_body, kind))
            for vector in java_vectors.load(version, "bodies")
            if (kind := body_class(vector["class"])) is not None
        ]
        records = [
            bytes.fromhex(vector["record"]) for vector in java_vectors.load(version, "records")
        ]
        for start in range(0, len(records), 4):
            some = records[start : start + 4]
            found["records"].append(around(b"".join(some), read_records))
            found["chunk, sizes found"].append(around(b"".join(some), read_chunk))
            found["chunk, sizes given"].append(around(with_sizes(some), read_sized_chunk))
        found["batch"] += [
            around(bytes.fromhex(vector["body"]), decode_batch)
            for vector in java_vectors.load(version, "batches")
        ]
        for vector in java_vectors.load(version, "compressed"):
            bits = getattr(MessageSysFlag, f"COMPRESSION_{vector['type']}")
            read = partial(uncompress_body, sys_flag=int(MessageSysFlag.COMPRESSED | bits))
            found["compressed"].append(around(bytes.fromhex(vector["compressed"]), read))
    return found


def large_specimens() -> Corpus:
    """Return large frames for the decoders whose work grows with the frame."""
    references = b",".join(
        b'"t%d":{"$ref":"$.topicConfigTable.t0"}' % number for number in range(1, 3000)
    )
    config = b'{"topicName":"t","perm":6,"attributes":{}}'
    long_text = b'\\"x\\u00e9' * 30_000
    bodies = {
        "long text, strict": b'{"topicConfigTable":{"t":{"topicName":"%s"}}}' % long_text,
        "long text, not strict": b'{"topicConfigTable":{"t":{"topicName":"%s",0:1}}}' % long_text,
        "long key": b'{"topicConfigTable":{"%s":{"topicName":"t"}},"x":{1:2}}' % (b"k" * 300_000),
        "many keys": b'{"topicConfigTable":{%s}}'
        % b",".join(b'"t%d":%s' % (number, config) for number in range(5000)),
        "references": b'{"topicConfigTable":{"t0":%s,%s}}' % (config, references),
        "long reference": b'{"topicConfigTable":{"t":{"$ref":"$%s"}}}'
        % (b".topicConfigTable" * 15_000),
        "numbers as keys": b'{"x":{%s}}' % b",".join(b"%d:1" % each for each in range(30_000)),
        "nothing but levels": b"[" * 300_000,
    }
    read_json = partial(decode_body, configs.TopicConfigSerializeWrapper)
    properties = "".join(f"name{number}\x01value\x02" for number in range(20))
    short = [encode_record(StoredMessage("T", b"b", "TAGS\x01A\x02")) for _ in range(2000)]
    long = [encode_record(StoredMessage("T", bytes(500), properties)) for _ in range(250)]
    separators = [encode_record(StoredMessage("T", b"", "\x02a\x01" * 10_000)) for _ in range(7)]
    batch = encode_batch([BatchedMessage(b"body", "TAGS\x01A\x02")] * 6000)
    noise = random.Random(0).randbytes(200_000)
    types = (
        MessageSysFlag.COMPRESSION_ZLIB,
        MessageSysFlag.COMPRESSION_LZ4,
        MessageSysFlag.COMPRESSION_ZSTD,
    )
    return {
        "JSON": [around(body, read_json) for body in bodies.values()],
        "records": [around(b"".join(each), read_records) for each in (short, long, separators)],
        "chunk, sizes found": [
            around(b"".join(each), read_chunk) for each in (short, long, separators)
        ],
        "chunk, sizes given": [
            around(with_sizes(each), read_sized_chunk) for each in (short, long, separators)
        ],
        "batch": [around(batch, decode_batch)],
        "compressed": [
            around(
                compress_body(body, kind),
                partial(uncompress_body, sys_flag=MessageSysFlag.COMPRESSED | kind),
            )
            for kind in types
            for body in (noise, bytes(10_000_000))
        ],
    }


def command_of(frame: bytes) -> RemotingCommand:
    reader = FrameReader()
    reader.feed(frame)
    return decode_command(reader.next_frame())


def damaged(dice: random.Random, name: str, specimen: Specimen, other: Specimen) -> bytes:
    """Return the frame with one to three errors in the part that the named decoder reads."""
    if name == "ext fields":
        return with_damaged_fields(dice, specimen)
    if not specimen.body_at or dice.random() < 0.1:
        frame = damaged_bytes(dice, specimen.frame, other.frame)
        if dice.random() < 0.7 and len(frame) >= 4:  # otherwise most would fail at the first word
            frame = struct.pack(">i", len(frame) - 4) + frame[4:]
        return frame
    if name == "chunk, sizes given":
        body = with_damaged_sizes(dice, specimen.body)
    else:
        keep_length = name in {"records", "chunk, sizes found"} and dice.random() < 0.8
        body = damaged_bytes(dice, specimen.body, other.body, keep_length=keep_length)
    return (
        struct.pack(">i", specimen.body_at - 4 + len(body))
        + specimen.frame[4 : specimen.body_at]
        + body
    )


def damaged_bytes(
    dice: random.Random, healthy: bytes, other: bytes, *, keep_length: bool = False
) -> bytes:
    data = bytearray(healthy)
    for _ in range(dice.randint(1, 3)):
        kind = int(dice.random() * (4 if keep_length else 8))
        at = int(dice.random() * (len(data) - 3 if keep_length else len(data) + 1))
        if kind == 0 and at < len(data):
            data[at] ^= 1 << int(dice.random() * 8)
        elif kind == 1:
            data[at : at + 1] = dice.randbytes(1)
        elif kind == 2:
            data[at : at + 4] = struct.pack(">i", dice.choice(WORDS))
        elif kind == 3:
            data[at : at + 2] = struct.pack(">i", dice.choice(WORDS))[2:]
        elif kind == 4:
            del data[at : at + int(dice.random() * 8)]
        elif kind == 5:
            data[at:at] = data[at - 8 : at]
        elif kind == 6:
            del data[at:]
        else:
            data[at:] = other[at:]
    return bytes(data)


def with_damaged_fields(dice: random.Random, specimen: Specimen) -> bytes:
    fields = dict(specimen.ext_fields)
    for name in dice.choices(list(fields), k=dice.randint(1, 3)):
        kind = int(dice.random() * 4)
        value = fields.pop(name, "")
        if kind == 0:
            fields[name] = dice.choice(TEXTS)
        elif kind == 1:
            fields[name] = str(dice.choice(WORDS) * dice.choice([1, 1 << 31, 1 << 62]))
        elif kind == 2:
            fields[name] = damaged_bytes(dice, value.encode(), b"-1").decode("utf-8", "replace")
    return RemotingCommand(
        specimen.request_code, ext_fields=fields, serialize_type=SerializeType.MSGPACK
    ).encode()


def with_damaged_sizes(dice: random.Random, body: bytes) -> bytes:
    """Damage the sizes, or the records, which keep their length: only then are the sizes used."""
    (count,) = struct.unpack_from(">i", body)
    sizes, records = list(struct.unpack_from(f">{count}q", body, 4)), body[4 + 8 * count :]
    if dice.random() < 0.5:
        return body[: -len(records)] + damaged_bytes(dice, records, b"", keep_length=True)
    row, other = dice.randrange(count), dice.randrange(count)
    kind = int(dice.random() * 3)
    if kind == 0:
        sizes[row] = dice.choice(WORDS) * dice.choice([1, 1 << 31])
    elif kind == 1:  # the sum stays right
        change = dice.choice([1, sizes[row], 1 << 31, 1 << 62])
        sizes[row], sizes[other] = sizes[row] - change, min(sizes[other] + change, (1 << 63) - 1)
    else:
        del sizes[row]
    return struct.pack(f">i{len(sizes)}q", len(sizes), *sizes) + records


def read(data: bytes, specimen: Specimen) -> bool:
    """Read the data; return whether it was readable. Only a WireError may be raised."""
    reader = FrameReader()
    reader.feed(data)
    is_readable = True
    try:
        while (frame := reader.next_frame()) is not None:
            command = decode_command(frame)
            for code in {specimen.request_code, command.code}:
                exchange = HEADERS.get(code)
                codec = exchange and (
                    exchange.response if specimen.is_response else exchange.request
                )
                if codec:
                    try:
                        codec.encode(codec.decode(command.ext_fields))
                    except WireError:
                        is_readable = is_readable and code != specimen.request_code
            if specimen.read_body and command.body:
                specimen.read_body(command.body)
    except WireError as error:
        assert len(str(error)) < 1000
        return False
    return is_readable and reader.buffered_bytes == 0


def counted_read(data: bytes, specimen: Specimen) -> tuple[bool, int]:
    """Return whether the data was readable, and the number of lines executed for it."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> object:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return read(data, specimen), lines
    finally:
        sys.settrace(before)


def damaged_frames(
    dice: random.Random, corpus: Corpus, count: int
) -> Iterator[tuple[str, bytes, Specimen]]:
    """Yield this number of damaged frames, each with its decoder and specimen."""
    names = list(corpus)
    shares = list(accumulate(SHARES[name] for name in names))
    for name in dice.choices(names, cum_weights=shares, k=count):
        specimen, other = dice.choice(corpus[name]), dice.choice(corpus[name])
        yield name, damaged(dice, name, specimen, other), specimen


@pytest.fixture(scope="module")
def corpus():
    return warm(specimens())


@pytest.fixture(scope="module")
def large():
    return warm(large_specimens())


def warm(found: Corpus) -> Corpus:
    for some in found.values():
        for specimen in some:
            read(specimen.frame, specimen)  # imports and caches do not count
    return found


def place(name: str, data: bytes, seed: int, number: int) -> str:
    return f"{name}, frame {number} of seed {seed}: {data[:5000].hex()}"


def check_outcomes_and_work(corpus: Corpus, count: int, seed: int) -> dict[str, float]:
    """Return the share of readable frames of each decoder."""
    frames, read_whole = dict.fromkeys(corpus, 0), dict.fromkeys(corpus, 0)
    for number, (name, data, specimen) in enumerate(
        damaged_frames(random.Random(seed), corpus, count)
    ):
        try:
            readable, lines = counted_read(data, specimen)
        except Exception as error:
            pytest.fail(f"{error!r} from {place(name, data, seed, number)}")
        assert lines < LINES_PER_BYTE_MAX * max(len(data), FEW_BYTES), place(
            name, data, seed, number
        )
        frames[name] += 1
        read_whole[name] += readable
    return {name: read_whole[name] / max(frames[name], 1) for name in corpus}


def test_damaged_frames_end_in_a_value_or_an_error_and_soon(corpus):
    readable = check_outcomes_and_work(corpus, FRAMES, SEED)
    if FRAMES >= 10_000:
        too_clear = {name: part for name, part in readable.items() if not 0.01 < part < 0.95}
        assert not too_clear, "the damage is too heavy, or too light, to tell anything"


def test_large_damaged_frames_end_in_a_value_or_an_error_and_soon(large):
    check_outcomes_and_work(large, max(FRAMES // LARGE_EVERY, 1), SEED + 1)


def test_damaged_frames_decode_in_bounded_memory(corpus, large):
    usual_pool, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        for some, count, seed in (
            (corpus, FRAMES // TRACED_EVERY, SEED + 2),
            (large, FRAMES // TRACED_EVERY // 200, SEED + 3),
        ):
            frames = damaged_frames(random.Random(seed), some, max(count, 1))
            for number, (name, data, specimen) in enumerate(frames):
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                read(data, specimen)
                taken = tracemalloc.get_traced_memory()[1] - before
                bytes_max = INFLATING_BYTES_MAX if name == "compressed" else FRAME_BYTES_MAX
                assert taken + pool.max_memory() < bytes_max, place(name, data, seed, number)
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual_pool)
    assert pool.max_memory() > 0


def test_undamaged_frames_are_decoded(corpus, large):
    assert min(map(len, corpus.values())) >= 4
    unread = {
        name: [each for each in some if not read(each.frame, each)] for name, some in corpus.items()
    }
    # Refusals have no fields, and Java's JSON has two references that lead nowhere.
    assert not any(each.ext_fields for each in unread.pop("headers"))
    assert len(unread.pop("JSON")) == 2
    assert not any(unread.values())
    # A reference that is too long, and unlimited levels.
    assert sum(not read(each.frame, each) for some in large.values() for each in some) == 2
