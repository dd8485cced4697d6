"""Pieces of bytes are gathered in bulk."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.wire.chunk import buffer_slices
from rmq_spark.wire.chunk.buffer_slices import pack_slices, take_bytes, take_structures

DATA = bytes(range(256)) * 40

gaps_and_widths = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), max_size=60)


def positions(pairs):
    starts, at = [], 0
    for gap, width in pairs:
        starts.append(at + gap)
        at += gap + width
    return np.array(starts, np.int64), np.array([width for _, width in pairs], np.int64)


@pytest.fixture(params=["as views", "as pieces and gaps"], autouse=True, scope="module")
def way(request):
    if request.param == "as views":
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffer_slices, "_CAN_MAKE_VIEWS", False)
        yield


@given(gaps_and_widths, st.sampled_from([0, 12, 13]))
def test_take_bytes_gathers_pieces_of_any_width(pairs, width_min):
    """Pieces of up to 12 bytes take another path than longer ones."""
    starts, widths = positions([(gap, width + width_min) for gap, width in pairs])
    found = take_bytes(pa.py_buffer(DATA), starts, widths)
    assert found.type == pa.binary()
    found.validate(full=True)
    assert found.to_pylist() == [
        DATA[a : a + n] for a, n in zip(starts.tolist(), widths.tolist(), strict=True)
    ]


@pytest.mark.parametrize("width", [0, 4, 12, 13, 100])
def test_take_bytes_accepts_one_width_for_all(width):
    starts = np.array([3, 200, 1000])
    found = take_bytes(pa.py_buffer(DATA), starts, width)
    assert found.to_pylist() == [DATA[start : start + width] for start in (3, 200, 1000)]


@pytest.mark.parametrize("width", [5, 50])
def test_take_bytes_copies_from_the_buffer(width):
    data = bytearray(DATA)
    found = take_bytes(pa.py_buffer(data), np.array([7, 80]), width)
    data[:] = bytes(len(data))
    assert found.to_pylist() == [DATA[7 : 7 + width], DATA[80 : 80 + width]]


@given(gaps_and_widths, st.sampled_from([0, 3, 100]))
def test_take_bytes_packs_pieces_with_room_for_the_longest(pairs, width_min):
    starts, widths = positions([(gap, width + width_min) for gap, width in pairs])
    end = int((starts + widths).max(initial=0))
    for data in (DATA[: max(end, 24)], DATA[:end]):
        found, places = pack_slices(np.frombuffer(data, np.uint8), starts, widths)
        assert [bytes(found[at : at + n]) for at, n in zip(places, widths, strict=True)] == [
            data[a : a + n] for a, n in zip(starts.tolist(), widths.tolist(), strict=True)
        ]


def test_take_bytes_does_not_copy_long_pieces():
    data = np.frombuffer(DATA, np.uint8)
    starts = np.array([1, 900])
    found, places = pack_slices(data, starts, np.array([5, 800]))
    assert found is data
    assert places is starts


@pytest.mark.parametrize("shortest", [11, 12, 13, 14])
def test_take_bytes_handles_the_longest_inline_view_and_the_next_length(shortest):
    starts, widths = positions([(0, 20), (3, shortest), (1, 20)])
    found = take_bytes(pa.py_buffer(DATA), starts, widths).to_pylist()
    assert found == [DATA[at : at + width] for at, width in zip(starts, widths, strict=True)]


@given(
    st.integers(60, 200),
    st.integers(1, 50),
    st.integers(1, 60),
    st.integers(0, 9),
    st.sampled_from([0, 1, -1]),
    st.data(),
)
def test_take_bytes_gathers_slices_at_one_distance_and_others_alike(
    count, distance, width, first, shift, data
):
    """Slices at one distance take another path, which one irregular slice prevents."""
    starts = first + 1 + np.arange(count, dtype=np.int64) * distance
    starts[data.draw(st.integers(0, count - 1))] += shift
    of_these = [DATA[start : start + width] for start in starts.tolist()]
    found = take_structures(np.frombuffer(DATA, np.uint8), starts, f"V{width}")
    assert [bytes(each) for each in found] == of_these
    found[:] = bytes(width)  # the result is a copy, because callers write into it


@given(st.integers(60, 200), st.integers(0, 9), st.integers(0, 40), st.integers(0, 30))
def test_take_bytes_packs_slices_at_one_distance(count, gap, width, spare):
    """The last slices have no room for a whole slot after them."""
    starts, widths = positions([(gap, width)] * count)
    end = int(starts[-1]) + width + spare
    found, places = pack_slices(np.frombuffer(DATA[:end], np.uint8), starts, widths)
    assert [bytes(found[at : at + width]) for at in places] == [
        DATA[start : start + width] for start in starts.tolist()
    ]
