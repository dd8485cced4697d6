"""Chunks that begin with the sizes of their records."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.errors import RecordError
from rmq_spark.wire.chunk import RecordChunk, encode_chunk, encode_sized_chunk
from rmq_spark.wire.chunk.sized_chunk import decode_sized_chunk, encode_sizes


@given(st.lists(st.integers(0, (1 << 31) - 1), max_size=50), st.binary(max_size=50))
def test_sized_chunk_round_trips(sizes, records):
    found, rest = decode_sized_chunk(encode_sizes(np.array(sizes, np.int32)) + records)
    assert found.tolist() == sizes
    assert bytes(rest) == records


@pytest.mark.parametrize("bodies", [[b"one", b"three", b""], [b"one"], []])
def test_encoded_sized_chunk_has_the_sizes_and_then_the_records(bodies):
    columns = {"topic": "T", "body": bodies, "keys": "k", "storeHost": "1.2.3.4:5"}
    chunk = encode_chunk(columns, has_checksums=True)
    sizes, records = decode_sized_chunk(encode_sized_chunk(columns))
    assert sizes.tolist() == chunk.sizes.tolist()
    assert bytes(records) == chunk.data.to_pybytes()
    assert RecordChunk(records, sizes).sizes.tolist() == chunk.sizes.tolist()


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\2\0\0\0\1", b"\xff\xff\xff\xff\0\0\0\0"]
)
def test_impossible_record_count_of_a_sized_chunk_is_refused(data):
    with pytest.raises(RecordError, match="sized chunk"):
        decode_sized_chunk(data)
