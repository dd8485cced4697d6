"""A recreated or shortened queue is detected by its last known message, and the new position is
found by time."""

from dataclasses import replace

import pytest
from support.messages.received_messages import received
from support.suite.clocks import Clock
from support.suite.log_records import lines_of

from rmq_spark.client.consumer.brokers.broker_client import DecodedPull
from rmq_spark.client.consumer.queues.queue_identity import (
    UNVERIFIED_MS_MAX,
    LastMessage,
    QueueFingerprint,
    StartPosition,
    unchanged_queues,
)
from rmq_spark.client.errors import BrokerRefused, ConnectionClosed
from rmq_spark.client.message import decode_messages
from rmq_spark.client.results import PullStatus
from rmq_spark.errors import WireError
from rmq_spark.wire.message.record import StoredMessage, encode_record
from rmq_spark.wire.message_queue import MessageQueue

QUEUE = MessageQueue("T", "broker-a", 0)
GONE = BrokerRefused(17, "topic[T] not exist", "b:1", 11)


def illegal(least, most, then):
    return DecodedPull(PullStatus.OFFSET_ILLEGAL, then, least, most, ())


def known(clock=None):
    last = QueueFingerprint(clock or Clock())
    last.observe([received(4), received(5)])
    return last


def stands(message):
    """Return a lookup's result: a message and its offset."""
    looked_at = []

    def look(queue, queue_offset):
        looked_at.append((queue, queue_offset))
        return message

    return look, looked_at


def searches(asked, found):
    def offset_since(queue, store_ms):
        asked.append((queue, store_ms))
        return found

    return offset_since


def test_fingerprint_relocates_lost_queue_by_store_time_of_last_message(caplog):
    last, asked = known(), []
    last.record_failure(ConnectionClosed("b:1", "gone"))
    assert not last.must_relocate
    last.record_failure(GONE)
    assert last.must_relocate
    assert last.relocate(QUEUE, 6, searches(asked, 0)) == 0
    assert asked == [(QUEUE, received(5).store_timestamp - 1)]
    assert not last.must_relocate
    [line] = lines_of(caplog, "rmq_spark.client.consumer")
    assert "resuming at offset 0, not 6" in line


def test_relocation_to_the_same_offset_is_not_logged(caplog):
    last = known()
    last.record_failure(GONE)
    assert last.relocate(QUEUE, 6, searches([], 6)) == 6
    assert lines_of(caplog, "rmq_spark.client.consumer") == []


def test_shorter_queue_must_be_relocated_and_later_start_is_followed():
    last = known()
    assert last.legal_offset(QUEUE, 6, illegal(40, 90, 40)) == 40
    assert not last.must_relocate
    assert last.legal_offset(QUEUE, 6, illegal(0, 3, 3)) is None
    assert last.must_relocate
    last.observe([])
    assert not last.must_relocate


def test_fingerprint_without_message_uses_the_brokers_legal_offset():
    last = QueueFingerprint()
    assert last.legal_offset(QUEUE, 6, illegal(1, 3, 3)) == 3
    assert last.legal_offset(QUEUE, 6, illegal(40, 90, 40)) == 40
    assert not last.must_relocate


@pytest.mark.parametrize("least", [0, -1])
def test_fingerprint_without_message_restarts_queue_that_may_be_recreated(least):
    last, asked = QueueFingerprint(), []
    assert last.legal_offset(QUEUE, 6, illegal(least, 3, 3)) is None
    assert last.relocate(QUEUE, 6, searches(asked, 0)) == 0
    assert asked == [(QUEUE, 0)]
    last.record_failure(GONE)
    assert last.must_relocate
    assert last.relocate(QUEUE, 6, searches(asked, 2)) == 2


def there(*messages):
    """Set the existing messages; return the offsets that were looked up."""
    asked = []

    def message_at(_, queue_offset):
        asked.append(queue_offset)
        found = [each for each in messages if each.queue_offset == queue_offset]
        return found[0] if found else None

    return message_at, asked


@pytest.mark.parametrize(
    ("messages", "asked"),
    [([5, 6], [5]), ([6, 7], [5, 6]), ([7], [5, 6])],
    ids=["the one before", "the one there", "none"],
)
def test_fingerprint_before_the_first_message_uses_the_message_before_its_offset(messages, asked):
    clock = Clock(0)
    last = QueueFingerprint(clock)
    look, looked_at = there(*map(received, messages))
    last.record_start(QUEUE, 6, look)
    assert looked_at == asked
    clock.now = UNVERIFIED_MS_MAX
    changes = {"commit_log_offset": 9, "born_timestamp": 1, "store_timestamp": 1}
    last.verify(QUEUE, there(*(replace(received(each), **changes) for each in messages))[0])
    assert last.must_relocate == (len(messages) == 2)
    searched = []
    last.relocate(QUEUE, 6, searches(searched, 0))
    since_ms = received(messages[0]).store_timestamp - 1 if len(messages) == 2 else 0
    assert searched == [(QUEUE, since_ms)]


def test_fingerprint_at_offset_zero_needs_no_lookup():
    look, looked_at = there(received(0))
    QueueFingerprint(Clock()).record_start(QUEUE, 0, look)
    assert looked_at == []


def test_fingerprint_observes_message_that_arrives_during_record_start():
    last = QueueFingerprint(Clock())

    def comes_meanwhile(_, queue_offset):
        last.observe([received(9)])
        return received(queue_offset)

    last.record_start(QUEUE, 6, comes_meanwhile)
    last.record_pause()
    look, looked_at = there(received(9))
    last.verify(QUEUE, look)
    assert looked_at == [9]


def test_fingerprint_start_with_unreachable_broker_is_not_retried():
    last = QueueFingerprint(Clock())

    def unreachable(*_):
        raise ConnectionClosed("b:1", "gone")

    last.record_start(QUEUE, 6, unreachable)
    assert not last.is_unverified
    assert last.legal_offset(QUEUE, 6, illegal(1, 3, 3)) == 3


def test_failed_relocation_keeps_queue_marked_as_lost():
    last = known()
    last.record_failure(GONE)

    def offset_since(*_):
        raise GONE

    with pytest.raises(BrokerRefused):
        last.relocate(QUEUE, 6, offset_since)
    assert last.must_relocate


# ---- checks without a hint that the queue has changed


def test_last_message_is_verified_once_after_a_pause():
    last = known(clock := Clock())
    look, looked_at = stands(received(5))
    last.verify(QUEUE, look)
    assert looked_at == []
    clock.now += UNVERIFIED_MS_MAX
    assert last.is_unverified
    last.verify(QUEUE, look)
    last.verify(QUEUE, look)
    assert looked_at == [(QUEUE, 5)]
    assert not last.is_unverified
    assert not last.must_relocate


def test_different_message_at_the_last_offset_means_recreated_queue():
    last = known()
    last.record_failure(ConnectionClosed("b:1", "gone"))
    last.verify(QUEUE, stands(replace(received(5), message_id="new", store_timestamp=9))[0])
    assert last.must_relocate
    assert last.relocate(QUEUE, 6, searches([], 2)) == 2
    last.record_failure(ConnectionClosed("b:1", "gone"))
    assert not last.is_unverified  # it has read nothing from this queue yet


def test_missing_message_at_the_last_offset_is_no_proof_of_recreated_queue():
    last = known()
    last.record_failure(ConnectionClosed("b:1", "gone"))
    last.verify(QUEUE, stands(None)[0])
    assert not last.is_unverified
    assert not last.must_relocate


def test_offset_is_not_stored_while_the_last_message_is_missing():
    last = known()
    last.record_failure(ConnectionClosed("b:1", "gone"))
    last.verify(QUEUE, stands(None)[0])
    assert last.may_be_recreated
    assert list(unchanged_queues({QUEUE: last}, stands(None)[0])) == []
    last.observe(())
    assert not last.may_be_recreated
    assert list(unchanged_queues({QUEUE: last}, stands(None)[0])) == [QUEUE]


def test_missing_last_message_is_settled_once_queue_has_legal_offset():
    last = known()
    last.record_failure(ConnectionClosed("b:1", "gone"))
    last.verify(QUEUE, stands(None)[0])
    assert last.legal_offset(QUEUE, 6, illegal(8, 9, 8)) == 8  # the last message may have expired
    assert not last.may_be_recreated


def test_failed_verification_keeps_queue_unverified():
    last = known()
    last.record_failure(ConnectionClosed("b:1", "gone"))

    def look(*_):
        raise GONE

    with pytest.raises(BrokerRefused):
        last.verify(QUEUE, look)
    assert last.is_unverified


def test_fingerprint_without_message_needs_no_verification():
    last = QueueFingerprint(clock := Clock())
    clock.now += UNVERIFIED_MS_MAX
    last.record_failure(ConnectionClosed("b:1", "gone"))
    assert not last.is_unverified


# ---- a flipped bit in transit does not move a member


@pytest.mark.parametrize("properties", ["", "UNIQ_KEY\x010A01\x02TAGS\x01red"])
def test_flipped_bit_in_last_message_or_lookup_is_not_taken_for_recreated_queue(properties):
    stored = StoredMessage(
        *("T", b"body", properties),
        queue_offset=5,
        physical_offset=1 << 20,
        born_timestamp=1_700_000_000_000,
        store_timestamp=1_700_000_000_007,
    )
    record = encode_record(stored)
    [sound] = decode_messages(record, "broker-a")
    readable = 0
    for bit in range(8 * len(record)):
        flipped = bytearray(record)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            [damaged] = decode_messages(bytes(flipped), "broker-a")
        except WireError:
            continue
        readable += 1
        for came, stood in ((damaged, sound), (sound, damaged)):
            last = QueueFingerprint(Clock())
            last.observe([came])
            last.record_pause()
            last.verify(QUEUE, stands(stood)[0])
            assert not last.must_relocate, f"bit {bit}"
    assert readable > 8 * 16  # the bits of the two times


def test_damaged_store_time_never_relocates_past_the_old_offset():
    last = QueueFingerprint(Clock())
    last.observe([replace(received(5), store_timestamp=1 << 50)])
    last.record_failure(GONE)
    assert last.relocate(QUEUE, 6, searches([], 300)) == 6


@pytest.mark.parametrize(
    "differs",
    [
        {"commit_log_offset": 900, "message_id": "new"},  # recreated within a millisecond
        {"store_timestamp": 9, "message_id": "new"},  # an older copy with a message of equal length
        {"store_timestamp": 9, "commit_log_offset": 900},  # the same message, sent again
    ],
)
def test_queue_with_a_different_message_mark_is_relocated(differs):
    last = known()
    last.record_pause()
    last.verify(QUEUE, stands(replace(received(5), **differs))[0])
    assert last.must_relocate


# ---- where consumption of a changed queue begins


OTHER = replace(received(5), message_id="new", store_timestamp=9)


def test_restarted_queue_is_unchanged_if_its_last_message_is_there():
    look, looked_at = stands(received(5))
    place = StartPosition.resolve(QUEUE, 3, look, LastMessage.from_message(received(5)))
    assert (place.offset, place.fingerprint.must_relocate) == (3, False)
    assert looked_at == [(QUEUE, 5)]


@pytest.mark.parametrize("there_now", [None, OTHER], ids=["nothing", "another"])
def test_start_position_relocates_by_time_if_last_message_is_missing_or_different(there_now):
    last, asked = replace(LastMessage.from_message(received(5)), store_timestamp=77), []
    place = StartPosition.resolve(QUEUE, 3, stands(there_now)[0], last)
    assert place.fingerprint.must_relocate
    assert place.fingerprint.relocate(QUEUE, 3, searches(asked, 1)) == 1
    assert asked == [(QUEUE, 76)]


def test_queue_does_not_start_while_its_last_message_cannot_be_read():
    def look(*_):
        raise ConnectionClosed("b:1", "gone")

    with pytest.raises(ConnectionClosed):
        StartPosition.resolve(QUEUE, 3, look, LastMessage.from_message(received(5)))


# ---- which offsets may be stored


@pytest.mark.parametrize(
    ("stands_there", "is_stored"), [(received(5), True), (OTHER, False), (None, False)]
)
def test_unverified_offset_is_stored_only_if_the_last_message_is_unchanged(stands_there, is_stored):
    last = known()
    last.record_pause()
    look, looked_at = stands(stands_there)
    assert list(unchanged_queues({QUEUE: last}, look)) == [QUEUE] * is_stored
    assert looked_at == [(QUEUE, 5)]
    assert last.is_unverified  # the next pull verifies the queue again


def test_offsets_of_a_lost_queue_are_not_stored_until_it_is_relocated():
    last = known()
    look, looked_at = stands(received(5))
    assert list(unchanged_queues({QUEUE: last}, look)) == [QUEUE]
    last.record_failure(GONE)
    assert list(unchanged_queues({QUEUE: last}, look)) == []
    last.relocate(QUEUE, 6, searches([], 0))
    assert list(unchanged_queues({QUEUE: last}, look)) == [QUEUE]
    assert looked_at == []


def test_unreachable_broker_holds_back_only_unverified_offsets():
    doubtful, others = known(), [MessageQueue("T", "broker-a", number) for number in (1, 2)]
    doubtful.record_pause()

    def look(*_):
        raise ConnectionClosed("b:1", "gone")

    queues = {QUEUE: doubtful, **{other: known() for other in others}}
    assert list(unchanged_queues(queues, look)) == others


# ---- a message is recognized in spite of one damaged mark


MESSAGE = received(5)
BY_MARK = {
    "store_timestamp": 9,
    "commit_log_offset": 900,
    "message_id": "new",
    "born_timestamp": 9,
    "body": b"new",
}


def test_last_message_equals_itself_with_offset_and_time():
    last = LastMessage.from_message(MESSAGE)
    assert not last.differs_from(MESSAGE)
    assert (last.queue_offset, last.store_timestamp) == (5, MESSAGE.store_timestamp)


@pytest.mark.parametrize("mark", BY_MARK)
def test_single_differing_mark_does_not_make_a_different_message(mark):
    assert not LastMessage.from_message(MESSAGE).differs_from(
        replace(MESSAGE, **{mark: BY_MARK[mark]})
    )


@pytest.mark.parametrize(
    "marks",
    [
        ("store_timestamp", "commit_log_offset"),
        ("commit_log_offset", "message_id"),
        ("store_timestamp", "body"),
        ("commit_log_offset", "born_timestamp"),
    ],
    ids=" and ".join,
)
def test_two_differing_marks_make_a_different_message(marks):
    other = replace(MESSAGE, **{mark: BY_MARK[mark] for mark in marks})
    assert LastMessage.from_message(MESSAGE).differs_from(other)


def test_differing_content_counts_as_one_mark():
    other = replace(MESSAGE, message_id="new", born_timestamp=9, body=b"new")
    assert not LastMessage.from_message(MESSAGE).differs_from(other)
