"""Limits on undelivered responses: how long another response may be, and which clients are
disconnected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.wire.codes import ResponseCode
from rocketpoll.broker.server.limits import RESPONSE_BYTES_MIN, SendBufferLimits

MIB = 1 << 20


class Reader:
    """A connection with the attributes used here."""

    undelivered_bytes = 500


def test_response_may_take_a_quarter_of_the_free_send_buffer():
    unread = SendBufferLimits(64 * MIB)
    assert unread.response_bytes_max == 16 * MIB
    unread.record(Reader(), 32 * MIB, 0)
    assert unread.response_bytes_max == 8 * MIB
    unread.record(Reader(), 100 * MIB, 0)
    assert unread.response_bytes_max == RESPONSE_BYTES_MIN


def test_response_limit_shrinks_while_answers_are_unread():
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
def test_unread_answers_of_any_number_of_clients_are_bounded(readers):
    unread = SendBufferLimits(64 * MIB)
    for _ in range(readers):
        unread.record(Reader(), min(8 * MIB, unread.response_bytes_max), 0)
    assert unread.bytes <= 64 * MIB + readers * RESPONSE_BYTES_MIN


def test_slow_reader_that_makes_progress_is_not_closed():
    unread = SendBufferLimits(MIB)
    slow, dead = Reader(), Reader()
    for reader in (slow, dead):
        unread.record(reader, 400_000, 0)
    for now in range(31):
        slow.undelivered_bytes -= 1
        unread.update_progress(now)
        assert list(unread.slow_readers(now, 30)) == []
    unread.update_progress(31)
    assert list(unread.slow_readers(31, 30)) == [(dead, "it does not read its responses")]


def test_slow_reader_is_not_excused_by_more_unread_answers():
    unread = SendBufferLimits(MIB)
    dead = Reader()
    for now in range(32):
        dead.undelivered_bytes += 100
        unread.record(dead, dead.undelivered_bytes, now)
        unread.update_progress(now)
    assert [reader for reader, _ in unread.slow_readers(31, 30)] == [dead]


def test_slowest_readers_are_closed_first_when_the_send_buffer_is_full():
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
def test_client_without_unread_answers_is_forgotten(seen):
    unread = SendBufferLimits(MIB)
    reader = Reader()
    if seen:
        unread.record(reader, MIB, 0)
    unread.discard(reader)
    assert (unread.bytes, unread.response_bytes_max) == (0, MIB // 4)
    assert list(unread.slow_readers(100, 30)) == []


def test_bytes_that_the_system_keeps_are_counted_until_they_have_arrived():
    unread, reader = SendBufferLimits(MIB), Reader()
    unread.record_written(reader)
    assert unread.bytes == 0  # until the next check
    unread.update_progress(1)
    assert unread.bytes == 500
    reader.undelivered_bytes = 200
    unread.update_progress(2)
    assert unread.bytes == 200
    unread.record(reader, 900, 3)  # a reader that accepts nothing more: all bytes count
    unread.update_progress(4)
    assert unread.bytes == 900
    unread.discard(reader)
    reader.undelivered_bytes = 0
    unread.update_progress(5)
    assert unread.bytes == 0
    unread.record_written(reader)
    reader.undelivered_bytes = 7
    unread.update_progress(6)
    unread.discard(reader, is_disconnected=True)
    assert unread.bytes == 0
    assert not unread._written
    assert not unread._stuck_since


def test_client_for_which_the_system_keeps_bytes_is_closed_only_without_room():
    unread = SendBufferLimits(1_200)
    dead = [Reader() for _ in range(2)]
    for reader in dead:
        unread.record_written(reader)
    for now in range(100):
        unread.update_progress(now)
        assert list(unread.slow_readers(now, 30)) == []
    reading, late = Reader(), Reader()
    for reader in (reading, late):
        unread.record_written(reader)
    unread.update_progress(100)
    assert unread.bytes == 2_000
    reading.undelivered_bytes -= 1
    unread.update_progress(101)
    closed = [reader for reader, _ in unread.slow_readers(101, 30)]
    assert closed == dead  # then there is room again
