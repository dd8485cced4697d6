"""Queues that a start does not compare with the log: each record is checked when it is read."""

import pytest
from support.stores.small_store import (
    bodies,
    message,
    messages_of,
    open_store,
    served_and_refused,
    wants,
)
from support.suite.selection import spread

from rmq_spark.wire.bodies.clients import SubscriptionData
from rocketpoll.broker.filter.subscription import message_filter
from rocketpoll.broker.store.errors import UnreadableFile
from rocketpoll.broker.store.queues.consume_queue import ENTRY_BYTES

LARGE = {"check_whole_log_bytes": 0, "mapped_file_size_commit_log": 1 << 16}
LARGE["mapped_file_size_consume_queue"] = 200 * ENTRY_BYTES
COUNT = 90


def by_turns(root, *queues, size=20):
    """Return a stopped store with messages of one size, round-robin over the queues,
    and the size."""
    store = open_store(root, **LARGE)
    for number in range(COUNT):
        for topic, queue_id in queues:
            end = store.put_message(message(f"{number:03}".ljust(size), topic, queue_id))
    store.shutdown()
    return end.end_offset // (COUNT * len(queues))


def flip(path, at, bit):
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


def lead_to(root, topic, number, place):
    """Change a queue's entry to point at another position."""
    path = root / "consumequeue" / topic / "0" / f"{0:020}"
    data = bytearray(path.read_bytes())
    data[number * ENTRY_BYTES : number * ENTRY_BYTES + 8] = place.to_bytes(8, "big")
    path.write_bytes(data)


@pytest.mark.parametrize("count", spread(2, [1, 12, 80]))
@pytest.mark.parametrize("number", [0, 79])
@pytest.mark.parametrize("other", [("U", 0), ("T", 1)])
@pytest.mark.parametrize("by_tag", [False, True])
def test_queue_entry_leading_to_another_queues_message_is_refused_when_served(
    tmp_path, count, number, other, by_tag
):
    size = by_turns(tmp_path, ("T", 0), other)
    lead_to(tmp_path, "T", number, (2 * number + 1) * size)
    store = open_store(tmp_path, **LARGE)
    wanted = wants("*") if by_tag else None
    served, at = [], 0
    while at < number:
        found = store.get_message("T", 0, at, count_max=count, message_filter=wanted)
        served += messages_of(found)
        at = found.next_begin_offset
    assert [each.queue_offset for each in served] == [*range(number)]
    assert {(each.topic, each.queue_id) for each in served} <= {("T", 0)}
    with pytest.raises(UnreadableFile, match="where its message is not"):
        store.get_message("T", 0, number, count_max=count, message_filter=wanted)
    assert (
        messages_of(store.get_message("T", 0, number + 1, count_max=1))[0].queue_offset
        == number + 1
    )
    store.shutdown()


@pytest.mark.parametrize("count", spread(2, [1, 12, 80]))
@pytest.mark.parametrize("number", [0, 79])
@pytest.mark.parametrize("place", [1 << 20, 1 << 62])
@pytest.mark.parametrize("by_tag", [False, True])
def test_queue_entry_leading_beyond_the_log_is_refused_when_served(
    tmp_path, count, number, place, by_tag
):
    by_turns(tmp_path, ("T", 0), ("U", 0))
    lead_to(tmp_path, "T", number, place)
    store = open_store(tmp_path, **LARGE)
    wanted = wants("*") if by_tag else None
    at = 0
    while at < number:
        found = store.get_message("T", 0, at, count_max=count, message_filter=wanted)
        offsets = [each.queue_offset for each in messages_of(found)]
        assert offsets == [*range(at, found.next_begin_offset)]
        at = found.next_begin_offset
    with pytest.raises(UnreadableFile, match="where its message is not") as refused:
        store.get_message("T", 0, number, count_max=count, message_filter=wanted)
    assert str(tmp_path / "consumequeue" / "T" / "0") in str(refused.value)
    assert (
        messages_of(store.get_message("T", 0, number + 1, count_max=1))[0].queue_offset
        == number + 1
    )
    store.shutdown()


@pytest.mark.parametrize("count", [12, 80])
@pytest.mark.parametrize("at", [0, 4, 12])
def test_damaged_record_amid_a_stretch_is_not_served(tmp_path, count, at):
    size = by_turns(tmp_path, ("T", 0))
    flip(tmp_path / "commitlog" / f"{0:020}", 7 * size + at + 3, 4)
    store = open_store(tmp_path, **LARGE)
    found = store.get_message("T", 0, 0, count_max=count)
    assert [each.queue_offset for each in messages_of(found)] == [*range(7)]
    assert found.next_begin_offset == 7
    with pytest.raises(
        UnreadableFile, match=r"points to .*, where its message is not: the entry or the record"
    ):
        store.get_message("T", 0, 7, count_max=count)
    assert [each.queue_offset for each in messages_of(store.get_message("T", 0, 8))] == [
        *range(8, 40)
    ]
    store.shutdown()


@pytest.mark.parametrize("count", spread(2, [1, 3, 32, 80]))
@pytest.mark.parametrize("numbers", [(5, 6), (40, 70)])
@pytest.mark.parametrize("is_noise", [True, False])
@pytest.mark.parametrize("matching", ["n IS NULL", "n = 1"])
def test_messages_around_damaged_records_are_filtered_by_their_properties(
    tmp_path, count, numbers, is_noise, matching
):
    """Either all messages match, or none."""
    size = by_turns(tmp_path, ("T", 0))
    log = tmp_path / "commitlog" / f"{0:020}"
    data = bytearray(log.read_bytes())
    for number in numbers:
        topic_at = data.index(b"\x01T\x00", number * size) + 1
        if is_noise:
            data[number * size : (number + 1) * size] = b"\xa7" * size
        else:
            data[topic_at] = ord("X")
    log.write_bytes(data)
    store = open_store(tmp_path, **LARGE)
    wanted = message_filter(
        SubscriptionData(topic="T", sub_string=matching, expression_type="SQL92")
    )
    served, refused = served_and_refused(store, "T", 0, count_max=count, message_filter=wanted)
    assert refused == [*numbers]
    expected = [each for each in range(COUNT) if each not in numbers]
    assert served == (expected if matching == "n IS NULL" else [])
    store.shutdown()


def test_time_search_meeting_another_queues_messages_is_refused(tmp_path):
    size = by_turns(tmp_path, ("T", 0), ("U", 0), size=300)
    for number in range(COUNT):
        lead_to(tmp_path, "T", number, (2 * number + 1) * size)
    store = open_store(tmp_path, **LARGE)
    for search in (
        lambda: store.offset_by_time("T", 0, 5),
        lambda: store.offset_by_time("T", 0, 1 << 50, upper=True),
        lambda: store.earliest_timestamp("T", 0),
    ):
        with pytest.raises(UnreadableFile, match="found by a search"):
            search()
    store.shutdown()


def test_queue_entries_of_a_deleted_topic_serve_none_of_its_messages(tmp_path):
    by_turns(tmp_path, ("T", 0))
    path = tmp_path / "consumequeue" / "T" / "0" / f"{0:020}"
    old = path.read_bytes()
    store = open_store(tmp_path, **LARGE)
    store.delete_topic("T")
    for number in range(COUNT):
        store.put_message(message(f"new {number}"))
    assert len(bodies(store)) == COUNT
    store.shutdown()
    path.write_bytes(old)
    store = open_store(tmp_path, **LARGE)
    for count in (1, 12, 80):
        with pytest.raises(UnreadableFile, match="where its message is not"):
            store.get_message("T", 0, 0, count_max=count)
    store.shutdown()
