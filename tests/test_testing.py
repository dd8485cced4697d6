"""Helpers for tests: waiting for what nobody tells of, and the rows that a stream makes of a topic."""

from __future__ import annotations

import pytest

from broker.embedded import NotInTime
from broker.testing import wait_until


def test_waiting_gives_the_first_answer_that_counts_as_true():
    answers = iter([0, None, "", "yes", "no"])
    assert wait_until(lambda: next(answers)) == "yes"


def test_waiting_in_vain_gives_the_last_answer():
    with pytest.raises(NotInTime, match=r"a reply was waited for, for 0.02 s: the last answer was \[\]"):
        wait_until(list, 0.02, "a reply")
