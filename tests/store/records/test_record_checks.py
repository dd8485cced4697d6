"""Record checks: positions and sizes within bounds, and finding the unreadable record of many."""

from __future__ import annotations

import numpy as np
import pytest
from support.stores.small_store import encoded, message

from rocketpoll.broker.store.read.message_reader import are_in_range, first_unreadable


@pytest.mark.parametrize("kind", [list, np.array])
def test_are_in_range_includes_the_lower_and_excludes_the_upper_bound(kind):
    assert are_in_range(kind([3, 9]), 3, 10)
    assert not are_in_range(kind([2, 9]), 3, 10)
    assert not are_in_range(kind([3, 10]), 3, 10)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_first_unreadable_record_is_found(number):
    records = [bytearray(encoded(message(f"{each}"))) for each in range(4)]
    records[number][4:8] = b"none"
    sizes = np.array([len(each) for each in records])
    assert first_unreadable(b"".join(records), sizes) == number
