"""What clients leave unread: how long one more answer may be, and who has to go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.wire.codes import ResponseCode
from rocketpoll.broker.server.limits import RESPONSE_BYTES_MIN, SendBufferLimits

MIB = 1 << 20


class Reader:
    """A connection, as far as it is looked at here."""

    undelivered_bytes = 500


def test_an_answer_may_be_a_quarter_of_the_room_that_is_left_and_never_too_small_to_get_on():
    unread = SendBufferLimits(64 * MIB)
    assert unread.response_bytes_max == 16 * MIB
    unread.record(Reader(), 32 * MIB, 0)
    assert unread.response_bytes_max == 8 * MIB
    unread.record(Reader(), 100 * MIB, 0)
    assert unread.response_bytes_max == RESPONSE_BYTES_MIN


def test_a_large_answer_is_given_while_all_read_and_what_can_never_be_is_told_the_limit():
    unread = SendBufferLimits(64 * MIB)
    assert unread.response_fault(32 * MIB) is None
    code, remark = unread.response_fault(32 * MIB + 1)
    assert code == ResponseCode.SYSTEM_ERROR
    assert f"over {32 * MIB}, half of maxUnreadBytes" in remark
    slow = Reader()
    unread.record(slow, 4, 0)
    assert unread.response_fault(16 * MIB - 1) is None
    code, remark = unread.response_fault(16 * MIB)
    assert (code, "clients do not read" in remark) == (ResponseCode.SYSTEM_BUSY, True)
    unread.discard(slow)
    assert unread.response_fault(16 * MIB) is None


@given(readers=st.integers(1, 2_000))
def test_however_many_read_nothing_they_share_the_room_and_take_little_beyond(readers):
    unread = SendBufferLimits(64 * MIB)
    for _ in range(readers):
        unread.record(Reader(), min(8 * MIB, unread.response_bytes_max), 0)
    assert unread.bytes <= 64 * MIB + readers * RESPONSE_BYTES_MIN


def test_who_reads_something_may_take_as_long_as_it_takes():
    unread = SendBufferLimits(MIB)
    slow, dead = Reader(), Reader()
    for reader in (slow, dead):
        unread.record(reader, 400_000, 0)
    for now in range(31):
        slow.undelivered_bytes -= 1
        unread.update_progress(now)
        assert list(unread.slow_readers(now, 30)) == []
    unread.update_progress(31)
    assert list(unread.slow_readers(31, 30)) == [(dead, "it does not read its answers")]


def test_more_answers_are_no_sign_of_reading():
    unread = SendBufferLimits(MIB)
    dead = Reader()
    for now in range(32):
        dead.undelivered_bytes += 100
        unread.record(dead, dead.undelivered_bytes, now)
        unread.update_progress(now)
    assert [reader for reader, _ in unread.slow_readers(31, 30)] == [dead]


def test_without_room_those_who_have_read_nothing_for_longest_go_first_and_no_more_than_needed():
    unread = SendBufferLimits(MIB)
    readers = [Reader() for _ in range(6)]
    for now, reader in enumerate(readers):
        unread.record(reader, MIB // 4, now / 10)
    assert list(unread.slow_readers(0.9, 30)) == []
    assert [reader for reader, _ in unread.slow_readers(5, 30)] == readers[:2]
    readers[0].undelivered_bytes -= 1
    unread.update_progress(4.9)
    assert [reader for reader, _ in unread.slow_readers(5, 30)] == readers[1:3]


@pytest.mark.parametrize("seen", [True, False])
def test_who_has_read_all_or_gone_is_forgotten(seen):
    unread = SendBufferLimits(MIB)
    reader = Reader()
    if seen:
        unread.record(reader, MIB, 0)
    unread.discard(reader)
    assert (unread.bytes, unread.response_bytes_max) == (0, MIB // 4)
    assert list(unread.slow_readers(100, 30)) == []
