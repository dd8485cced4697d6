"""Records belong to the queue whose entries point at them; the check works one by one
and in bulk."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.stores.small_store import encoded, message

from rmq_spark.wire.message.hosts import parse_host
from rocketpoll.broker.store.queues.entry_check import RecordOwner

V6 = parse_host("[::1]:10911")
OWNER = RecordOwner(b"Topic", 3, 0)


def record(topic="Topic", queue_id=3, size=10, hosts=0):
    made = replace(message("x" * size, topic, queue_id, tags="a"), sys_flag=hosts << 4)
    if hosts & 1:
        made = replace(made, born_host=V6)
    return encoded(replace(made, store_host=V6) if hosts & 2 else made)


def both(records):
    """Return the first foreign record, found one by one and in bulk."""
    data, sizes = b"".join(records), np.array([len(each) for each in records])
    starts = np.cumsum(sizes) - sizes
    few = [OWNER.owns(data, *each) for each in zip(starts.tolist(), sizes.tolist(), strict=True)]
    many = OWNER.own_mask(np.frombuffer(data, np.uint8), starts, sizes).tolist()
    return tuple(each.index(False) if False in each else None for each in (few, many))


records = st.builds(record, size=st.integers(0, 60), hosts=st.integers(0, 3))


@given(st.lists(records, min_size=1, max_size=9))
@settings(deadline=None)
def test_records_of_the_queue_are_its_own(own):
    assert both(own) == (None, None)


@pytest.mark.parametrize(
    "other",
    [
        record("topic"),
        record("Topics"),
        record("Topi"),
        record("Topix"),
        record("T" * 120),
        record(queue_id=2),
        bytes(120),
        record()[:4] + bytes(4) + record()[8:],
        record()[:84] + b"\xff" * 4 + record()[88:],
        record()[:84] + b"\x7f" * 4 + record()[88:],
    ],
)
@pytest.mark.parametrize("row", [0, 1, 4])
def test_record_of_another_queue_is_found_singly_and_in_bulk(row, other):
    own = [record(size=size) for size in range(4)]
    assert both([*own[:row], other, *own[row:]]) == (row, row)


@given(st.lists(records, min_size=1, max_size=6), st.data())
@settings(deadline=None)
def test_record_owner_checks_agree_singly_and_in_bulk_for_any_flipped_bit(own, data):
    row = data.draw(st.integers(0, len(own) - 1))
    changed = bytearray(own[row])
    bit = data.draw(st.integers(0, 8 * len(changed) - 1))
    changed[bit // 8] ^= 1 << bit % 8
    few, many = both([*own[:row], bytes(changed), *own[row + 1 :]])
    assert few == many
