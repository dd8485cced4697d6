"""Records are dispatched to entries of queues."""

import dataclasses

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.messages.stored_messages import has_offset
from support.stores.small_store import message

from rmq_spark.wire.chunk import RecordChunk
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.message.properties import tags_code
from rmq_spark.wire.message.record import encode_blank, encode_record
from rmq_spark.wire.names import SCHEDULE_TOPIC
from rocketpoll.broker.store.config import StoreConfig
from rocketpoll.broker.store.dispatch.dispatcher import Dispatcher
from rocketpoll.broker.store.queues.consume_queue import ENTRY_STRUCT
from rocketpoll.broker.store.records.fields import read_fields
from rocketpoll.broker.store.records.integrity import record_sizes
from rocketpoll.broker.store.records.recent_writes import RecentChunk, RecentRecord, RecentRun

DELAYS = StoreConfig.message_delay_level_ms
TIME = 1_700_000_000_000


def log_of(messages):
    """Return messages with queue offsets, as the log holds them."""
    next_offsets = {}
    records = []
    for each in messages:
        key = (each.topic, each.queue_id)
        counts = has_offset(each)
        offset = next_offsets.get(key, 0) if counts else 0
        next_offsets[key] = next_offsets.get(key, 0) + counts
        records.append(
            encode_record(dataclasses.replace(each, queue_offset=offset, store_timestamp=TIME))
        )
    return records


def as_table(runs):
    found = {}
    for run in runs:
        assert run.tags_codes == [code for _, _, code in ENTRY_STRUCT.iter_unpack(run.entries)]
        for number, entry in enumerate(ENTRY_STRUCT.iter_unpack(run.entries)):
            found[run.topic, run.queue_id, run.queue_offset + number] = entry
    return found


def both_ways(records, start=1000, deleted=None):
    """Return the dispatch results of the same records, one by one and in bulk."""
    data, sizes = b"".join(records), [len(record) for record in records]
    dispatcher = Dispatcher(DELAYS)
    dispatcher.deleted_topics = deleted or {}
    kept = dispatcher.exclude_deleted
    few = as_table(kept(dispatcher.entries_of_few(memoryview(data), sizes, start)))
    many = as_table(kept(dispatcher.entries_of_chunk(RecordChunk(data, sizes), start)))
    assert few == many
    fresh = fresh_run(records, start)
    if fresh is not None:
        assert as_table(kept(dispatcher.entries_of_recent([fresh]))) == few
        queues = {record.queue for record in fresh.records}
        if len(queues) == 1:  # like the records of a chunk
            recent = RecentChunk(RecordChunk(data, sizes), *queues, start)
            assert as_table(kept([dispatcher.entries_of_recent_chunk(recent)])) == few
    return few


def fresh_run(records, start):
    """Return an appender's summary of its records; None if some of them get no entry."""
    fresh, place = [], start
    for record in records:
        topic, queue_id, queue_offset, sys_flag, _, properties = read_fields(record, 0, len(record))
        if sys_flag & 0xC in (0x4, 0xC):
            return None
        fresh.append(
            RecentRecord((topic.decode(), queue_id), queue_offset, place, len(record), properties)
        )
        place += len(record)
    return RecentRun(fresh, TIME, place) if fresh else None


messages = st.lists(
    st.builds(
        lambda topic, queue_id, tags, state: dataclasses.replace(
            message("body", topic=topic, queue_id=queue_id, tags=tags), sys_flag=state
        ),
        st.sampled_from(["A", "B", SCHEDULE_TOPIC, "%RETRY%g"]),
        st.integers(0, 20),
        st.sampled_from([None, "x", "y", "AaAa", "BBBB", "标签"]),
        st.sampled_from([0, 0, 0, MessageSysFlag.TRANSACTION_COMMIT, 0x4, 0xC]),
    ),
    max_size=40,
)


@given(messages, st.sampled_from(["A", SCHEDULE_TOPIC]), st.integers(0, 20))
@settings(max_examples=60)
def test_recent_chunk_of_one_queue_gives_the_entries_of_its_records(sent, topic, queue_id):
    both_ways(log_of([dataclasses.replace(each, topic=topic, queue_id=queue_id) for each in sent]))


@given(messages)
@settings(max_examples=60)
def test_dispatcher_makes_the_same_entries_of_few_and_of_many_records(sent):
    records = log_of(sent)
    table = both_ways(records)
    expected = {}
    position, offsets = 1000, {}
    for each, record in zip(sent, records, strict=True):
        if has_offset(each):
            key = (each.topic, each.queue_id)
            offset = offsets.get(key, 0)
            offsets[key] = offset + 1
            code = tags_code(each.tags)
            if each.topic == SCHEDULE_TOPIC:
                code = TIME + DELAYS[min(each.queue_id, len(DELAYS) - 1)]
            expected[(*key, offset)] = (position, len(record), code)
        position += len(record)
    assert table == expected


def test_half_message_is_dispatched_only_once_committed():
    half = dataclasses.replace(message("half"), sys_flag=MessageSysFlag.TRANSACTION_PREPARED)
    done = dataclasses.replace(message("done"), sys_flag=MessageSysFlag.TRANSACTION_COMMIT)
    assert [key[2] for key in both_ways(log_of([half, done]))] == [0]


def test_dispatch_splits_runs_at_offset_gaps():
    records = log_of([message(number) for number in range(5)])
    data = b"".join(records[:2] + records[3:])
    sizes = [len(record) for record in records[:2] + records[3:]]
    runs = list(Dispatcher(DELAYS).entries_of_few(memoryview(data), sizes, 0))
    assert [(run.queue_offset, len(run.entries) // 20) for run in runs] == [(0, 2), (3, 2)]


def test_deleted_topic_position_only_moves_forward():
    dispatcher = Dispatcher(DELAYS)
    for place, known in ((500, 500), (300, 500), (700, 700)):
        dispatcher.note_deleted("T", place)
        assert dispatcher.deleted_topics == {"T": known}


def test_dispatch_skips_records_from_before_a_topic_deletion():
    records = log_of([message(number) for number in range(3)])
    start = 1000
    table = both_ways(records, start, deleted={"T": start + len(records[0]) + 1, "other": 10**9})
    assert [key[2] for key in table] == [2]


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize(
    "tail", [b"", bytes(8), bytes(200), encode_blank(150).ljust(150, b"\0"), b"\xff" * 200]
)
def test_record_sizes_are_followed_up_to_a_blank_zeros_or_a_truncated_record(count, tail):
    records = log_of([message(number) for number in range(count)])
    sizes = [len(record) for record in records]
    assert record_sizes(memoryview(b"".join(records) + tail)) == sizes
    cut = memoryview(b"".join(records))[:-1]
    assert record_sizes(cut) == sizes[:-1]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60)), min_size=1, max_size=6),
    st.sampled_from([0, 1, 95, 120]),
    st.sampled_from([1, 17, 18, 40, 1_000]),
    st.booleans(),
)
@example([(0, 17)], 1, 1, False)  # the last single record is truncated
def test_record_sizes_are_found_for_stretches_of_any_sizes(
    stretches, cut, count_max, ends_with_blank
):
    records = [
        encode_record(message("x" * length)) for length, count in stretches for _ in range(count)
    ]
    if ends_with_blank:  # as long as the last record
        records.append(encode_blank(len(records[-1])))
    sizes = list(map(len, records))
    data = b"".join(records)
    expected = sizes[:-1] if ends_with_blank or cut else sizes
    found = record_sizes(data[: len(data) - cut] if cut < sizes[-1] else data[: -sizes[-1]])
    assert found == expected
    if not ends_with_blank:
        assert record_sizes(data, count_max) == sizes[:count_max]
