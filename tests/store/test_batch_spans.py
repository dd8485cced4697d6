"""Spans of committed rows are merged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.wire.bodies.staged_batches import BatchSpan
from rocketpoll.broker.store.batch_commit.coordinator import merge_spans

ROWS_MAX, BYTES_MAX = 50_000, 4 << 20


def spans_of(appends):
    """Return the spans of appends to queues; each appends a number of rows to its queue."""
    ends, spans = {}, []
    for queue_id, skipped, count, body_bytes, crc in appends:
        at = ends.get(queue_id, 100) + skipped
        spans.append(
            BatchSpan(
                topic="orders",
                queue_id=queue_id,
                queue_offset=at,
                count=count,
                crc=crc,
                body_bytes=body_bytes,
            )
        )
        ends[queue_id] = at + count
    return spans


def rows_of(spans):
    """Return the offsets of all rows, in order of their appends."""
    return [at for each in spans for at in range(each.queue_offset, each.queue_offset + each.count)]


appends = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from([0, 0, 0, 1]),  # others may append between them
        st.integers(1, 30_000),
        st.integers(0, BYTES_MAX // 2),
        st.integers(0, 0xFFFF_FFFF),
    ),
    max_size=12,
)


@given(appends)
def test_spans_that_are_joined_have_the_same_rows_and_sums_and_stay_small(appends):
    put = spans_of(appends)
    found = merge_spans(put)
    assert all(each.count <= ROWS_MAX and each.body_bytes <= BYTES_MAX for each in found)
    for queue_id in {each.queue_id for each in put}:
        before = [each for each in put if each.queue_id == queue_id]
        after = [each for each in found if each.queue_id == queue_id]
        assert rows_of(before) == rows_of(after)
        assert sum(each.crc for each in before) % 2**32 == sum(each.crc for each in after) % 2**32
        assert sum(each.body_bytes for each in before) == sum(each.body_bytes for each in after)


def test_rows_of_a_queue_that_follow_each_other_are_one_span_also_with_others_between():
    put = spans_of([(0, 0, 10, 100, 1), (1, 0, 5, 50, 7), (0, 0, 20, 200, 2)])
    assert [(each.queue_id, each.count, each.crc) for each in merge_spans(put)] == [
        (0, 30, 3),
        (1, 5, 7),
    ]


def test_spans_with_messages_of_others_between_are_not_merged():
    put = spans_of([(0, 0, 10, 100, 1), (0, 1, 20, 200, 2)])
    assert merge_spans(put) == tuple(put)


@pytest.mark.parametrize(
    ("rows", "body_bytes", "is_one"),
    [(25_000, 1 << 21, True), (25_001, 1 << 21, False), (25_000, (1 << 21) + 1, False)],
)
def test_merged_span_is_bounded_in_rows_and_bytes(rows, body_bytes, is_one):
    put = spans_of([(0, 0, 25_000, 1 << 21, 1), (0, 0, rows, body_bytes, 1)])
    assert len(merge_spans(put)) == (1 if is_one else 2)


def test_sum_of_span_crcs_wraps_at_32_bits():
    (found,) = merge_spans(spans_of([(0, 0, 1, 1, 0xFFFF_FFFF), (0, 0, 1, 1, 3)]))
    assert found.crc == 2
