"""Pull responses become messages; damaged records are pulled again or reported, and
hide no others."""

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.client.consumer.brokers.pull_decoder import SuspectRecord, decode_pull
from rmq_spark.errors import CodecMissing, RecordError
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.message.record import StoredMessage, encode_record, magic_of
from rmq_spark.wire.message_queue import MessageQueue

QUEUE = MessageQueue("T", "broker-a", 0)
COMPRESSED = MessageSysFlag.COMPRESSED.value


def good(queue_offset, body=b"good", sys_flag=0, topic="T"):
    return encode_record(
        StoredMessage(
            topic, body, "", queue_offset=queue_offset, sys_flag=sys_flag, magic=magic_of(topic)
        )
    )


def not_compressed(queue_offset):
    """Return a record with the compression flag and an uncompressed body."""
    return good(queue_offset, b"not compressed", COMPRESSED)


def half_compressed(queue_offset):
    return good(queue_offset, zlib.compress(b"x" * 1_000)[:10], COMPRESSED)


def damaged(queue_offset):
    """Return a record whose body does not match its CRC."""
    return good(queue_offset, b"BODY").replace(b"BODY", b"body")


def without_sense(queue_offset):
    """Return a record whose size is damaged, so that the next one cannot be found."""
    return b"\x00\x00\x00\x03" + good(queue_offset)[4:]


def pulled(records, begin=0, end=1_000, queue=QUEUE):
    """Return a member's messages from a response; it pulls again when in doubt."""
    try:
        return decode_pull(records, queue, begin, end)
    except SuspectRecord as doubtful:
        return decode_pull(records, queue, begin, end, doubtful.record)


def offsets(messages):
    return [message.queue_offset for message in messages]


def test_pull_decoder_reads_plain_and_compressed_bodies():
    records = good(1) + good(2, zlib.compress(b"good"), COMPRESSED)
    found = pulled(records)
    assert [message.body for message in found.messages] == [b"good", b"good"]
    assert (found.unreadable, found.next_offset) == ([], None)


def test_pull_decoder_of_empty_response_returns_nothing():
    assert pulled(b"") == ([], [], None)


@pytest.mark.parametrize("poison", [not_compressed, half_compressed])
@pytest.mark.parametrize("at", [0, 3, 6])
def test_message_that_cannot_be_inflated_is_unreadable_alone(poison, at):
    records = b"".join((poison if each == at else good)(each) for each in range(7))
    found = pulled(records)
    assert offsets(found.messages) == [each for each in range(7) if each != at]
    assert offsets(found.unreadable) == [at]
    assert found.next_offset is None


def test_unreadable_record_keeps_its_stored_body():
    [unreadable] = pulled(not_compressed(5)).unreadable
    assert (unreadable.body, unreadable.sys_flag) == (b"not compressed", COMPRESSED)


def test_pull_decoder_advances_past_unreadable_records():
    found = pulled(not_compressed(1) + half_compressed(2))
    assert (found.messages, offsets(found.unreadable), found.next_offset) == ([], [1, 2], None)


@pytest.mark.parametrize("at", [1, 3, 6])
def test_damaged_record_is_pulled_again(at):
    """The messages before the damaged one are delivered; the next pull starts at it."""
    records = b"".join((damaged if each == at else good)(each) for each in range(7))
    found = pulled(records)
    assert offsets(found.messages) == list(range(at))
    assert (found.unreadable, found.next_offset) == ([], at)


def test_record_damaged_in_both_pulls_does_not_block_later_messages():
    found = pulled(damaged(3) + good(4) + good(5))
    assert offsets(found.messages) == [4, 5]
    assert offsets(found.unreadable) == [3]


def without_magic(queue_offset, topic="T"):
    """Return a record with a wrong magic but the right size, so that the next one can be found."""
    magic = magic_of(topic)
    record = encode_record(
        StoredMessage(topic, b"no magic", "a\x01b", queue_offset=queue_offset, magic=magic)
    )
    return record[:4] + b"\xa7\xa7" + record[6:]


@pytest.mark.parametrize("at", [1, 3, 6])
def test_record_without_magic_is_pulled_again(at):
    records = b"".join((without_magic if each == at else good)(each) for each in range(7))
    found = pulled(records)
    assert offsets(found.messages) == list(range(at))
    assert (found.unreadable, found.next_offset) == ([], at)


@pytest.mark.parametrize("topic", ["T", "T" * 200])
@pytest.mark.parametrize("behind", [0, 1, 3])
def test_record_without_magic_is_returned_as_unreadable_with_its_stored_body(topic, behind):
    sound = b"".join(good(at, topic=topic) for at in range(4, 4 + behind))
    records = without_magic(3, topic) + sound
    found = pulled(records, 3, 4 + behind, MessageQueue(topic, "broker-a", 0))
    assert offsets(found.messages) == [*range(4, 4 + behind)]
    [unreadable] = found.unreadable
    assert (unreadable.queue_offset, unreadable.topic, unreadable.body) == (3, topic, b"no magic")
    assert unreadable.properties == {"a": "b"}
    assert found.next_offset is None


def test_pull_decoder_reports_records_without_magic_one_by_one():
    found = pulled(without_magic(3) + without_magic(4) + good(5))
    assert (found.messages, offsets(found.unreadable), found.next_offset) == ([], [3], 4)


@pytest.mark.parametrize("more", [-1, 1, 500, 1 << 24])
def test_record_without_magic_and_with_a_wrong_size_is_a_record_error(more):
    damaged_record = without_magic(3)
    size = (len(damaged_record) + more).to_bytes(4, "big")
    for behind in (b"", good(4), good(4) + good(5)):
        with pytest.raises(RecordError, match="magic"):
            pulled(size + damaged_record[4:] + behind)


LENGTHS = {"body": 84, "topic": 92, "properties": 94}
"""Positions of the length fields in a record with a body of four bytes and a topic of one."""


def without_lengths(name, value=b"\xff"):
    """Return a record with the right size and another invalid length."""

    def record(queue_offset):
        data = good(queue_offset)
        at = LENGTHS[name]
        return data[:at] + value + data[at + 1 :]

    return record


@pytest.mark.parametrize("name", LENGTHS)
def test_record_with_bad_lengths_does_not_block_later_messages(name):
    poison = without_lengths(name)
    records = b"".join((poison if each == 5 else good)(each) for each in range(3, 8))
    found = pulled(records, 3)
    assert (offsets(found.messages), found.unreadable, found.next_offset) == ([3, 4], [], 5)
    found = pulled(poison(5) + good(6) + good(7), 5)
    assert (offsets(found.messages), offsets(found.unreadable), found.next_offset) == (
        [6, 7],
        [5],
        None,
    )
    [unreadable] = found.unreadable
    assert (unreadable.queue, unreadable.body) == (QUEUE, poison(5))


@pytest.mark.parametrize("wrong", [-1, 0, 2, 4, 7, 9, 11, 1 << 40])
def test_record_with_impossible_offset_does_not_move_others(wrong):
    """Without tags, offsets are consecutive from 3 to 10, so 5 belongs to another record."""
    records = b"".join(good(wrong, b"5 once") if each == 5 else good(each) for each in range(3, 10))
    found = pulled(records, 3, 10)
    assert offsets(found.messages) == [3, 4, 6, 7, 8, 9]
    assert (offsets(found.unreadable), found.next_offset) == ([5], None)
    found = pulled(good(wrong, b"5 once") + b"".join(map(good, range(6, 10))), 5, 10)
    assert offsets(found.unreadable) == [5]
    if 5 <= wrong < 10:
        assert (offsets(found.messages), found.next_offset) == ([6, 7, 8, 9], None)
    else:  # the client pulls the other messages again
        assert (found.messages, found.next_offset) == ([], 6)


@pytest.mark.parametrize("begin", [2, 3])
@pytest.mark.parametrize("more", [-1, 1 << 32])
def test_pull_response_with_wrong_offsets_yields_no_messages(more, begin):
    """A second response, from a broker whose queue is wrong, yields no messages either."""
    records = b"".join(good(each + more, b"body %d" % each) for each in range(begin, begin + 3))
    try:
        found = pulled(records, begin, begin + 3)
    except RecordError:
        return
    assert found.messages == []
    assert (offsets(found.unreadable), found.next_offset) == ([begin], begin + 1)


@pytest.mark.parametrize("order", [(3, 3, 5), (3, 3), (3, 4, 3)])
def test_decoded_pull_refuses_a_copy_in_place_of_another_record(order):
    """Skipping the copy would lose the message of that offset."""
    with pytest.raises(RecordError, match=f"record of offset {len(order) + 2 - (5 in order)}"):
        decode_pull(b"".join(map(good, order)), QUEUE, 3, 6)


@pytest.mark.parametrize("begin", [1, 3])
@pytest.mark.parametrize("order", [(4, 3), (3, 5, 4, 6), (4, 5, 3, 6), (6, 5, 4, 3)])
def test_decoded_pull_asks_again_for_records_that_are_out_of_order(order, begin):
    end = max(order) + 1
    had, at = [], begin
    records, doubted = b"".join(map(good, order)), None
    while at < end:
        try:
            found = decode_pull(records, QUEUE, at, end, doubted)
        except SuspectRecord:
            pass
        else:
            assert found.unreadable == []
            had += offsets(found.messages)
            at = end if found.next_offset is None else found.next_offset
        records = b"".join(map(good, range(max(at, 3), end)))
    assert had == sorted(order)


@given(st.lists(st.integers(-2, 40), min_size=1, max_size=12), st.data())
def test_pull_decoder_delivers_each_offset_once_with_damaged_queue_offsets(noise, data):
    """Pulls always end, and return each offset's message, except damaged ones."""
    begin, end = 0, 30
    true = sorted(data.draw(st.sets(st.integers(begin, end - 1), min_size=1)))
    damaged_at = dict(zip(data.draw(st.permutations(true)), noise, strict=False))
    had, lost, at = [], 0, begin
    for _ in range(2 * len(true) + 1):
        asked = [each for each in true if each >= at]
        if not asked:
            break
        try:
            records = [good(damaged_at.get(each, each), b"body %d" % each) for each in asked]
            found = pulled(b"".join(records), at, end)
        except RecordError:  # all offsets are wrong
            assert all(not at <= damaged_at.get(each, each) < end for each in asked)
            return
        had += offsets(found.messages)
        lost += len(found.unreadable)
        assert found.next_offset is None or found.next_offset > at
        at = end if found.next_offset is None else found.next_offset
    assert at > true[-1]
    assert had == sorted(set(had))
    if not damaged_at:
        assert (had, lost) == (true, 0)


@pytest.mark.parametrize("at", [1, 4])
def test_pull_decoder_stops_at_record_with_bad_size(at):
    records = b"".join((without_sense if each == at else good)(each) for each in range(7))
    assert pulled(records).next_offset == at


def test_garbage_first_record_is_a_record_error():
    with pytest.raises(RecordError):
        pulled(without_sense(0) + good(1))


def test_missing_codec_package_makes_no_dead_letters(monkeypatch):
    """Otherwise every message would become a dead letter, although none is damaged."""

    def plain_body(*_):
        raise CodecMissing("lz4", at="import", needed="the package lz4", found="none")

    monkeypatch.setattr(StoredMessage, "plain_body", plain_body)
    with pytest.raises(CodecMissing, match="the package lz4"):
        pulled(good(0, zlib.compress(b"good"), COMPRESSED) + good(1))


# ---- one flipped bit anywhere, in transit or at the broker


def member_has(records_from, begin, end):
    """Return a member's final messages from a broker that answers with these records."""
    had, lost, at = [], [], begin
    while at < end:
        found = pulled(records_from(at), at, end)
        had += found.messages
        lost += found.unreadable
        assert found.next_offset is None or found.next_offset > at
        at = end if found.next_offset is None else found.next_offset
    return had, lost


@given(st.integers(0, 5), st.integers(4 * 8, 120 * 8 - 1))
def test_flipped_bit_in_one_record_keeps_other_messages_readable(number, bit):
    """The size stays intact, because it leads to the next record."""
    begin, end = 7, 13
    stored = [bytearray(good(at, b"body %d" % at)) for at in range(begin, end)]
    damaged_record = stored[number]
    damaged_record[min(bit // 8, len(damaged_record) - 1)] ^= 1 << bit % 8

    def records_from(at):
        return b"".join(map(bytes, stored[at - begin :]))

    had, lost = member_has(records_from, begin, end)
    others = [at for at in range(begin, end) if at != begin + number]
    sound = [message.queue_offset for message in had if message.queue_offset in others]
    assert sound == others
    assert all(each.body == b"body %d" % each.queue_offset for each in had)
    assert len(had) + len(lost) == end - begin
    assert not {each.queue_offset for each in lost} & set(others)


def test_damaged_first_record_is_pulled_again():
    with pytest.raises(SuspectRecord, match="needed an intact record of that queue"):
        decode_pull(damaged(3) + good(4), QUEUE, 3, 5)
    found = decode_pull(good(3) + good(4), QUEUE, 3, 5, damaged(3))
    assert (offsets(found.messages), found.unreadable) == ([3, 4], [])


def test_records_of_another_queue_are_none_of_this_one_unless_it_is_a_light_queue():
    other = MessageQueue("T", "broker-a", 1)
    with pytest.raises(SuspectRecord):
        decode_pull(good(3) + good(4), other, 3, 5)
    found = decode_pull(good(3), MessageQueue("%LMQ%light", "broker-a", 0), 3, 4)
    assert offsets(found.messages) == [3]


def test_pull_decoder_pulls_again_past_the_limit_of_inflated_bytes():
    twelve_mib = random.Random(1).randbytes(1 << 14) * 768
    bomb = zlib.compress(twelve_mib)
    records = b"".join(good(at, bomb, COMPRESSED) for at in range(5))
    found = pulled(records, 0, 5)
    assert (offsets(found.messages), found.next_offset) == ([0, 1, 2], 3)
    found = pulled(damaged(0) + records[len(good(0, bomb, COMPRESSED)) :], 0, 5)
    assert (offsets(found.unreadable), offsets(found.messages), found.next_offset) == (
        [0],
        [1, 2, 3],
        4,
    )


def test_last_record_of_a_pull_must_lie_before_the_next_offset():
    found = pulled(good(3) + good(1 << 40), 3, 5)
    assert (offsets(found.messages), offsets(found.unreadable)) == ([3], [4])
