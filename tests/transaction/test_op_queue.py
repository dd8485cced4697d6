"""Op messages: their bodies, and the half messages that they end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.stores.small_store import message

from rocketpoll.broker.transaction.half_message import decode_op, encode_op_body
from rocketpoll.broker.transaction.op_queue import OpQueue

OFFSETS = st.integers(0, (1 << 63) - 1)


def op(body, tags="d"):
    return message(body.encode(), tags=tags)


@given(OFFSETS)
def test_op_body_round_trips(offset):
    assert decode_op(op(encode_op_body(offset).decode())) == [offset]


@given(st.lists(OFFSETS))
def test_batched_op_body_of_rocketmq_5_is_read(offsets):
    body = "".join(f"{offset}," for offset in offsets) or " "
    assert decode_op(op(body)) == offsets


@given(st.text(st.characters(max_codepoint=255), min_size=1))
def test_any_other_op_body_ends_nothing_or_what_its_numbers_name(text):
    numbers = {piece for piece in text.split(",") if piece.isascii() and piece.isdigit()}
    assert {str(offset) for offset in decode_op(message(text.encode("latin-1"), tags="d"))} <= {
        str(int(number)) for number in numbers
    }


def test_op_message_with_another_tag_ends_nothing():
    assert decode_op(op("7", tags="r")) == []


def test_progress_stays_at_the_first_op_message_with_a_half_message_that_was_not_taken():
    ops = OpQueue(10)
    ops.discard_passed(0)
    ops.add(10, [5, 7], 0)
    ops.add(11, [6], 0)
    assert (ops.progress, ops.next_offset, ops.ended_count) == (10, 12, 3)
    assert ops.pop_ended(5)
    assert ops.pop_ended(6)
    assert not ops.pop_ended(5)
    assert ops.progress == 10
    assert ops.pop_ended(7)
    assert ops.progress == 12


def test_op_message_of_a_passed_half_message_is_done_at_once_unless_it_is_held():
    ops = OpQueue(0)
    ops.discard_passed(0)
    ops.hold(2)
    ops.add(0, [1], 5)
    ops.add(1, [2], 5)
    assert ops.progress == 1
    assert not ops.pop_ended(1)
    assert ops.pop_ended(2)
    assert ops.progress == 2
    ops.release(2)
    ops.add(2, [2], 5)
    assert ops.progress == 3


def test_op_messages_are_kept_until_all_half_messages_of_the_start_were_seen():
    ops = OpQueue(0)
    ops.add(0, [1], 5)
    ops.add(1, [2], 5)
    ops.hold(2)
    ops.discard_passed(5)
    assert not ops.pop_ended(1)
    assert ops.pop_ended(2)


@given(st.data())
def test_every_ended_half_message_is_taken_once_and_progress_never_passes_it(data):
    ops = OpQueue(0)
    ops.discard_passed(0)
    ended: dict[int, int] = {}
    passed = read = 0
    for _ in range(data.draw(st.integers(0, 30))):
        if data.draw(st.booleans()):
            halves = data.draw(st.lists(st.integers(0, 20), max_size=4))
            ops.add(read, halves, passed)
            for half in halves:
                if half >= passed:
                    ended.setdefault(half, read)
            read += 1
        else:
            assert ops.pop_ended(passed) == (passed in ended)
            ended.pop(passed, None)
            passed += 1
        assert ops.progress == min(ended.values(), default=read)
        assert ops.ended_count == len(ended)
