"""Whole records of TLS at the start of a stream, however it is cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketpoll.broker.server.tls.transport import (
    HEADER_BYTES,
    RECORD_BYTES_MAX,
    whole_records_bytes,
)

RECORDS = st.lists(st.integers(0, RECORD_BYTES_MAX - HEADER_BYTES), max_size=6).map(
    lambda sizes: [b"\x17\x03\x03" + size.to_bytes(2, "big") + bytes(size) for size in sizes]
)


@given(RECORDS, st.integers(0, 100_000), st.integers(1, 50_000))
def test_whole_records_end_where_the_first_is_over_the_size(records, cut, bytes_min):
    data = b"".join(records)[:cut]
    expected = 0
    for record in records:
        if expected >= bytes_min or expected + len(record) > len(data):
            break
        expected += len(record)
    assert whole_records_bytes(memoryview(data), bytes_min) == expected


@given(RECORDS, st.data())
def test_a_stream_in_pieces_leaves_the_same_records(records, drawn):
    data = b"".join(records)
    taken, rest = [], b""
    while data or rest:
        size = drawn.draw(st.integers(1, 60_000))
        rest, data = rest + data[:size], data[size:]
        while whole := whole_records_bytes(rest, 1):
            taken.append(rest[:whole])
            rest = rest[whole:]
        if not data:
            break
    assert taken == records
    assert rest == b""


@given(st.integers(RECORD_BYTES_MAX - HEADER_BYTES + 1, 0xFFFF), st.binary(max_size=20))
def test_a_record_longer_than_any_is_left_to_openssl(size, more):
    data = b"\x17\x03\x03" + size.to_bytes(2, "big") + more
    assert whole_records_bytes(data, 1) == len(data)


@given(st.binary(max_size=4))
def test_a_header_that_is_not_whole_waits(data):
    assert whole_records_bytes(data, 1) == 0
