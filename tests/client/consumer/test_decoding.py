import zlib

import pytest

from rmq_spark.client.consumer.decoding import decoded_pull
from rmq_spark.errors import BodyError, RecordError
from rmq_spark.wire.flags import MessageSysFlag
from rmq_spark.wire.record import StoredMessage, encode_record

COMPRESSED = MessageSysFlag.COMPRESSED.value


def good(queue_offset, body=b"good", sys_flag=0):
    return encode_record(StoredMessage("T", body, "", queue_offset=queue_offset, sys_flag=sys_flag))


def not_compressed(queue_offset):
    """Says that its body is compressed, which it is not."""
    return good(queue_offset, b"not compressed", COMPRESSED)


def half_compressed(queue_offset):
    return good(queue_offset, zlib.compress(b"x" * 1_000)[:10], COMPRESSED)


def damaged(queue_offset):
    """Its body is not that of which it has the checksum."""
    return good(queue_offset, b"BODY").replace(b"BODY", b"body")


def without_sense(queue_offset):
    """Nobody knows where the next one begins."""
    return b"\x00\x00\x00\x03" + good(queue_offset)[4:]


def offsets(messages):
    return [message.queue_offset for message in messages]


def test_what_can_be_read_is_read_whether_compressed_or_not():
    records = good(1) + good(2, zlib.compress(b"good"), COMPRESSED)
    found = decoded_pull(records, "broker-a")
    assert [message.body for message in found.messages] == [b"good", b"good"]
    assert (found.unreadable, found.stops_at) == ([], None)


def test_nothing_is_nothing():
    assert decoded_pull(b"", "broker-a") == ([], [], None)


@pytest.mark.parametrize("poison", [not_compressed, half_compressed])
@pytest.mark.parametrize("at", [0, 3, 6])
def test_a_body_that_cannot_be_inflated_keeps_no_other_from_being_read(poison, at):
    records = b"".join((poison if each == at else good)(each) for each in range(7))
    found = decoded_pull(records, "broker-a")
    assert offsets(found.messages) == [each for each in range(7) if each != at]
    assert offsets(found.unreadable) == [at]
    assert found.stops_at is None


def test_what_cannot_be_read_has_its_body_as_it_is_stored():
    [unreadable] = decoded_pull(not_compressed(5), "broker-a").unreadable
    assert (unreadable.body, unreadable.sys_flag) == (b"not compressed", COMPRESSED)


def test_nothing_but_what_cannot_be_read_leads_on_as_well():
    found = decoded_pull(not_compressed(1) + half_compressed(2), "broker-a")
    assert (found.messages, offsets(found.unreadable), found.stops_at) == ([], [1, 2], None)


@pytest.mark.parametrize("at", [1, 3, 6])
def test_a_record_that_is_damaged_is_asked_for_again(at):
    """What lies before it is delivered; the next pull begins with it."""
    records = b"".join((damaged if each == at else good)(each) for each in range(7))
    found = decoded_pull(records, "broker-a")
    assert offsets(found.messages) == list(range(at))
    assert (found.unreadable, found.stops_at) == ([], at)


def test_a_record_that_is_damaged_though_asked_for_again_keeps_nothing_behind_it_back():
    found = decoded_pull(damaged(3) + good(4) + good(5), "broker-a")
    assert offsets(found.messages) == [4, 5]
    assert offsets(found.unreadable) == [3]


@pytest.mark.parametrize("at", [1, 4])
def test_behind_a_length_without_sense_nothing_is_guessed(at):
    records = b"".join((without_sense if each == at else good)(each) for each in range(7))
    assert decoded_pull(records, "broker-a").stops_at == at


def test_a_first_record_without_sense_is_an_error():
    with pytest.raises(RecordError):
        decoded_pull(without_sense(0) + good(1), "broker-a")


def test_what_only_is_not_installed_here_makes_no_dead_letters(monkeypatch):
    """Every message would be one, though there is nothing wrong with any."""

    def plain_body(_):
        raise BodyError("lz4", at="import", needed="the package lz4", found="none")

    monkeypatch.setattr(StoredMessage, "plain_body", plain_body)
    with pytest.raises(BodyError, match="the package lz4"):
        decoded_pull(good(0) + good(1), "broker-a")
