"""The chunk codec on megabytes of stored messages, compared with our codec for single messages.

The peers have less to do, so the ratios are lower bounds: when reading, they leave the properties
as one text and build no columns; when writing, their messages and properties are already encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import product

from benchmarks.harness import Case, Target
from benchmarks.wire.one_message import decoding_records, encoding_records
from benchmarks.wire.samples import (
    Columns,
    producer_messages,
    stored_messages,
    varied_producer_messages,
    varied_stored_messages,
)
from rmq_spark.wire.chunk import (
    COLUMNS,
    DEFAULT_COLUMNS,
    EncodedChunk,
    RecordChunk,
    chunk_columns,
    encode_chunk,
)
from rmq_spark.wire.message.record import decode_records

_BODY_BYTES = {"100 B": 100, "1 KB": 1024}
_SMALL = "100 B"
_VARIED = "varied messages"
_DECODED_PER_SECOND_MIN = 4e6
_ENCODED_PER_SECOND_MIN = 1.5e6

_PEER = "one at a time"
_PEER_MESSAGES = 2_000
"""The messages of the peers, a part of the data: all would take several times a round's length."""

_SAMPLE_MESSAGES = 64


def cases(chunk_bytes: int) -> list[Case]:
    """Return the cases: chunks of about this many bytes, read and written."""
    found = []
    for size, with_properties in product(_BODY_BYTES, (True, False)):
        kind = f"{size} body, {'3 properties' if with_properties else 'no property'}"
        make = partial(
            stored_messages, body_bytes=_BODY_BYTES[size], with_properties=with_properties
        )
        is_goal = size == _SMALL and with_properties
        found += _decoding_cases(chunk_bytes, kind, make, is_goal=is_goal)
    found += _decoding_cases(chunk_bytes, _VARIED, varied_stored_messages)
    for size, body_bytes in _BODY_BYTES.items():
        make = partial(producer_messages, body_bytes=body_bytes)
        kind = f"{size} body, key and tag"
        found += _encoding_cases(chunk_bytes, kind, make, is_goal=size == _SMALL)
    found += _encoding_cases(chunk_bytes, _VARIED, varied_producer_messages)
    return found


def _decoding_cases(
    chunk_bytes: int, kind: str, make: Callable[[int], Columns], *, is_goal: bool = False
) -> list[Case]:
    chunk = encode_chunk(make(_count(chunk_bytes, make)))
    data, count = chunk.data.to_pybytes(), len(chunk.sizes)
    head, head_count = _head_of(chunk)
    subject = f"chunk decode, {kind}"
    target = Target("per_second", _DECODED_PER_SECOND_MIN) if is_goal else None

    def case(
        variant: str, names: Iterable[str], *, sizes_given: bool, target: Target | None = None
    ) -> Case:
        run = _decoding(data, chunk if sizes_given else None, tuple(names))
        return Case(subject, variant, run, count, peer=_PEER, target=target)

    return [
        Case(subject, _PEER, decoding_records(head, check_crc=False), head_count),
        case("default columns, sizes given", DEFAULT_COLUMNS, sizes_given=True, target=target),
        case("default columns, sizes found", DEFAULT_COLUMNS, sizes_given=False),
        case("only body, sizes given", ["body"], sizes_given=True),
        case("all columns, sizes given", COLUMNS, sizes_given=True),
    ]


def _encoding_cases(
    chunk_bytes: int, kind: str, make: Callable[[int], Columns], *, is_goal: bool = False
) -> list[Case]:
    columns = make(_count(chunk_bytes, make))
    head, head_count = _head_of(encode_chunk(columns))
    subject = f"chunk encode, {kind}"
    return [
        Case(subject, _PEER, encoding_records(list(decode_records(head))), head_count),
        Case(
            subject,
            "columns",
            lambda: encode_chunk(columns),
            len(columns["body"]),
            peer=_PEER,
            target=Target("per_second", _ENCODED_PER_SECOND_MIN) if is_goal else None,
        ),
    ]


def _decoding(
    data: bytes, chunk: EncodedChunk | None, names: tuple[str, ...]
) -> Callable[[], object]:
    sizes = None if chunk is None else chunk.sizes
    return lambda: chunk_columns(RecordChunk(data, sizes), names)


def _count(chunk_bytes: int, make: Callable[[int], Columns]) -> int:
    """Return how many of these messages a chunk of ``chunk_bytes`` holds."""
    sample_bytes = int(encode_chunk(make(_SAMPLE_MESSAGES)).data.size)
    return max(chunk_bytes * _SAMPLE_MESSAGES // sample_bytes, 1)


def _head_of(chunk: EncodedChunk) -> tuple[bytes, int]:
    """Return the first records, and how many they are."""
    sizes = chunk.sizes[:_PEER_MESSAGES]
    return chunk.data.slice(0, int(sizes.sum())).to_pybytes(), len(sizes)
