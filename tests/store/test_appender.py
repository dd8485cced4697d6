"""Appends: positions, batches, full and failing disks, and concurrent deletions."""

import dataclasses
import errno
import os

import pyarrow as pa
import pytest
from support.disks.faulty_disk import Fault, FaultIn, FaultyDisk
from support.stores.small_store import (
    LOG_FILE_BYTES,
    STORE_HOST,
    bodies,
    crash,
    encoded,
    log_files,
    message,
    open_store,
    put_batch,
    put_later,
    read_all,
)

from rmq_spark.wire.chunk import encode_chunk
from rmq_spark.wire.message.hosts import parse_host
from rmq_spark.wire.message.record import decode_record
from rocketpoll.broker.store.append.record_encoding import (
    RecordDraft,
    RecordRun,
    RecordTemplate,
    UniformParts,
    draft_of,
)
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.log.commit_log import BLANK_BYTES
from rocketpoll.broker.store.results import PutMessageStatus as Status


@pytest.fixture
def store(tmp_path):
    store = open_store(tmp_path)
    yield store
    store.shutdown()


def chunk_of(texts, **columns):
    chunk = encode_chunk(
        {
            "topic": "T",
            "body": [text.encode() for text in texts],
            "storeHost": str(STORE_HOST),
            **columns,
        }
    )
    return bytes(chunk.data), chunk.sizes.tolist()


def test_appended_messages_get_successive_offsets_in_each_queue(store):
    results = [store.put_message(message(n, queue_id=n % 2)) for n in range(6)]
    assert [result.queue_offset for result in results] == [0, 0, 1, 1, 2, 2]
    assert all(result.status is Status.PUT_OK for result in results)


def test_batch_gets_successive_offsets_in_one_file(store):
    store.put_message(message("before"))
    result = put_batch(store, *(message(f"{n}" + "x" * 500) for n in range(5)))
    assert (result.status, result.queue_offset, result.message_count) == (Status.PUT_OK, 1, 5)
    places = [each.physical_offset // LOG_FILE_BYTES for each in read_all(store, "T", 0, 1)]
    assert len(set(places)) == 1
    assert [text[0] for text in bodies(store)] == list("b01234")


def test_put_draft_takes_texts_as_bytes(store):
    def draft(text, queue_id=3):
        return RecordDraft(
            "T", queue_id, text, b"TAGS\x01a", 5, STORE_HOST.encode(), STORE_HOST.encode()
        )

    assert store.put_draft(draft(b"one")).queue_offset == 0
    template = RecordTemplate(draft(b""))
    tags = b"TAGS\x01a"
    parts = UniformParts((7, 0), (b"two", memoryview(b"three")), (tags, tags + b"\x02"))
    batch = RecordRun.uniform(template, parts, 6)
    result, sizes = store.put_batch(batch), batch.sizes
    assert (result.status, result.queue_offset, result.message_count) == (Status.PUT_OK, 1, 2)
    assert sum(sizes) == result.end_offset - result.physical_offset
    found = [(each.flag, each.born_timestamp) for each in read_all(store, "T", 3)]
    assert found == [(0, 5), (7, 6), (0, 6)]

    def refused(*parts):
        return store.put_batch(RecordRun.uniform(template, UniformParts(*parts), 6)).remark

    assert refused((), (), ()) == "the batch is empty"
    assert "does not fit" in refused((0,), (bytes(1 << 20),), (b"",))
    assert "32 bits" in refused((1 << 31,), (b"x",), (b"",))
    assert "topic" in store.put_draft(dataclasses.replace(draft(b"x"), topic="a b")).remark
    assert bodies(store, "T", 3) == ["one", "two", "three"]
    assert {each.tags for each in read_all(store, "T", 3)} == {"a"}


def test_put_chunk_across_log_files_is_checked_and_patched(store):
    texts = [f"{number} " + "x" * 300 for number in range(40)]
    store.put_message(message("before"))
    data, sizes = chunk_of(texts, tags="A", keys=[f"k{n}" for n in range(40)])
    result = store.put_chunk(data, sizes)
    assert (result.status, result.queue_offset, result.message_count) == (Status.PUT_OK, 1, 40)
    found = read_all(store, "T", 0, 1)
    assert [each.body.decode() for each in found] == texts
    assert [each.queue_offset for each in found] == list(range(1, 41))
    assert {each.store_timestamp for each in found} == {result.store_timestamp}
    assert all(bytes(store.record_at(each.physical_offset)) for each in found)
    assert len(store.query_message("T", "k7", 5, 0, 1 << 62)) == 1


def test_chunk_with_ipv4_and_ipv6_hosts_is_patched_correctly(store):
    v6 = parse_host("[::1]:9876")
    hosts = [str(v6), str(STORE_HOST)] * 3
    data, sizes = chunk_of([f"{n}" for n in range(6)], bornHost=hosts, sysFlag=[0x10, 0] * 3)
    store.put_chunk(data, sizes)
    found = read_all(store, "T", 0)
    assert [str(each.born_host) for each in found] == hosts
    assert len({each.store_timestamp for each in found}) == 1


def test_messages_with_ipv6_hosts_are_stored(store):
    v6 = parse_host("[2001:db8::1]:10911")
    sent = dataclasses.replace(message("x"), born_host=v6, store_host=v6, sys_flag=0x30)
    result = store.put_message(sent)
    found = decode_record(store.record_at(result.physical_offset))
    assert (found.born_host, found.store_timestamp) == (v6, result.store_timestamp)


@pytest.mark.parametrize("topic", ["", "../../x", "a/b", "a b", "x" * 256, "é"])
def test_message_with_a_hostile_topic_is_refused_before_writing(store, topic):
    result = store.put_message(message("x", topic=topic))
    assert result.status is Status.MESSAGE_ILLEGAL
    assert "topic" in result.remark
    if 0 < len(topic.encode()) < 128:  # other names have no template
        assert put_batch(store, message("x", topic=topic)).status is Status.MESSAGE_ILLEGAL
    assert store.state().written_offset == 0


@pytest.mark.parametrize(
    ("change", "status", "remark"),
    [
        ({"body": b"x" * (4 << 20) + b"x"}, Status.MESSAGE_ILLEGAL, "is over 4194304"),
        ({"body": b"x" * LOG_FILE_BYTES}, Status.MESSAGE_ILLEGAL, "does not fit into one file"),
        ({"properties_text": "x" * 32_768}, Status.PROPERTIES_SIZE_EXCEEDED, "are over 32750"),
        ({"queue_id": -1}, Status.MESSAGE_ILLEGAL, "queue -1 does not exist"),
        ({"sys_flag": 0x10}, Status.MESSAGE_ILLEGAL, "IPv6 bits"),
        ({"topic": "x" * 200}, Status.MESSAGE_ILLEGAL, "MAGIC_V2"),
    ],
)
def test_message_that_cannot_be_stored_returns_reason_and_leaves_no_trace(
    store, change, status, remark
):
    result = store.put_draft(draft_of(dataclasses.replace(message("x"), **change)))
    assert result.status is status
    assert remark in result.remark
    assert store.state().written_offset == 0
    assert store.put_message(message("next")).queue_offset == 0


def test_stored_message_over_a_lowered_size_limit_can_be_put_again(tmp_path):
    """The limit may have been higher earlier; returning or delivering the message must
    not lose it."""
    store = open_store(tmp_path, max_message_size=10)
    long = message("x" * 11)
    assert store.put_draft(draft_of(long)).status is Status.MESSAGE_ILLEGAL
    assert store.put_message(long).status is Status.PUT_OK
    store.shutdown()


def test_batch_is_stored_whole_or_not_at_all(store):
    assert "does not fit" in put_batch(store, *[message("x" * 1500)] * 3).remark
    assert "over" in put_batch(store, message("x"), message(b"x" * (5 << 20))).remark
    assert store.state().written_offset == 0


def test_chunk_must_have_one_queue_and_whole_messages(store):
    assert "one queue" in store.put_chunk(*chunk_of(["a", "b"], queueId=[0, 1])).remark
    assert "one queue" in store.put_chunk(*chunk_of(["a", "b"], topic=["A", "B"])).remark
    assert "topic" in store.put_chunk(*chunk_of(["a"], topic="a b")).remark
    assert "half messages" in store.put_chunk(*chunk_of(["a"], sysFlag=4)).remark
    for name in ("DELAY", "TIMER_DELAY_MS"):
        properties = pa.array([[], [(name, "3")]], pa.map_(pa.string(), pa.string()))
        refusal = store.put_chunk(*chunk_of(["a", "b"], properties=properties))
        assert f"a chunk cannot contain delayed messages (property {name})" in refusal.remark
    assert "empty" in store.put_chunk(b"", []).remark
    assert "is over" in store.put_chunk(*chunk_of(["x" * LOG_FILE_BYTES])).remark
    assert store.state().written_offset == 0


def test_put_chunk_does_not_modify_the_callers_buffer(store):
    data, sizes = chunk_of(["one", "two"])
    buffer = bytearray(data)
    store.put_message(message("before"))
    store.put_chunk(buffer, sizes)
    assert buffer == data


# ---- buffered puts


def later(store, *texts, **named):
    return put_later(store, *(message(text, **named) for text in texts))


def test_buffered_messages_are_written_by_one_write(tmp_path):
    disk = FaultyDisk(LocalDisk())
    store = open_store(tmp_path, disk)
    store.put_message(message("before"))
    before = len(disk.operations)
    assert later(store, "a", "b") == [None, None]
    assert later(store, "c", queue_id=1) == [None]
    assert (bodies(store), len(disk.operations)) == (["before"], before)
    results = store.write_buffered()
    assert [each.kind for each in disk.operations[before:] if "commitlog" in each.path.parts] == [
        "write"
    ]
    assert [(each.status, each.queue_offset) for each in results] == [
        (Status.PUT_OK, 1), (Status.PUT_OK, 2), (Status.PUT_OK, 0),
    ]  # fmt: skip
    found = [decode_record(store.record_at(each.physical_offset)) for each in results]
    assert [each.body for each in found] == [b"a", b"b", b"c"]
    assert [each.physical_offset for each in found[1:]] == [
        each.end_offset for each in results[:-1]
    ]
    assert bodies(store) == ["before", "a", "b"]
    assert store.write_buffered() == ()
    store.shutdown()


def test_unbuffered_puts_come_after_buffered_ones(store):
    later(store, "a")
    assert store.put_message(message("b")).queue_offset == 1
    later(store, "c")
    assert store.put_chunk(*chunk_of(["d", "e"])).queue_offset == 3
    later(store, "f")
    assert put_batch(store, message("g")).queue_offset == 6
    assert [each.queue_offset for each in store.write_buffered()] == [0, 2, 5]
    assert bodies(store) == list("abcdefg")


def test_append_larger_than_a_file_is_written_in_several_pieces(tmp_path):
    store = open_store(tmp_path, mapped_file_size_commit_log=1 << 16)
    texts = [f"{number} " + "x" * (number * 37 % 3000) for number in range(150)]
    later(store, *texts)
    assert store.state().written_offset > 0
    assert store._appender._buffered
    assert [each.queue_offset for each in store.write_buffered()] == list(range(150))
    assert len(log_files(store)) > 2
    assert bodies(store) == texts
    store.shutdown()


def test_buffered_put_returns_refusal_at_once(store):
    (fault,) = later(store, "x", topic="a b")
    assert (fault.status, "topic" in fault.remark) == (Status.MESSAGE_ILLEGAL, True)
    (fault,) = later(store, "x" * LOG_FILE_BYTES)
    assert (fault.status, "does not fit" in fault.remark) == (Status.MESSAGE_ILLEGAL, True)
    template = RecordTemplate(draft_of(message("x")))
    fault = store.put_buffered(template, b"x", b"", 1 << 63)
    assert (fault.status, "64 bits" in fault.remark) == (Status.MESSAGE_ILLEGAL, True)
    later(store, "good")
    assert [each.queue_offset for each in store.write_buffered()] == [0]
    store.stop_accepting("the disk is nearly full")
    (fault,) = later(store, "refused")
    assert fault.remark == "the disk is nearly full"
    assert store.write_buffered() == ()


def test_messages_put_together_are_in_one_file_and_in_order(store):
    store.put_message(message("x" * (LOG_FILE_BYTES - 300)))
    pair = message("one", tags="a"), message("two", topic="U", queue_id=1, keys="k")
    first, second = store.put_together(pair)
    assert (first.status, second.status) == (Status.PUT_OK, Status.PUT_OK)
    assert (first.queue_offset, second.queue_offset) == (1, 0)
    assert first.physical_offset == LOG_FILE_BYTES
    assert first.end_offset == second.physical_offset
    assert store.state().written_offset == second.end_offset
    assert [each.tags for each in read_all(store, "T", 0, 1)] == ["a"]
    assert bodies(store, "U", 1) == ["two"]
    assert len(store.query_message("U", "k", 5, 0, 1 << 62)) == 1


@pytest.mark.parametrize(
    ("second", "remark"),
    [
        (message("x", topic="a b"), "topic"),
        (message("x" * LOG_FILE_BYTES), "does not fit"),
        (message("x" * (LOG_FILE_BYTES - 300)), "does not fit"),
        (dataclasses.replace(message("x"), flag=1 << 31), "32 bits"),
        (dataclasses.replace(message("x"), born_timestamp=1 << 63), "64 bits"),
    ],
)
def test_messages_put_together_are_all_refused_if_one_is_illegal(store, second, remark):
    results = store.put_together((message("first" * 20), second))
    assert [each.status for each in results] == [Status.MESSAGE_ILLEGAL] * 2
    assert remark in results[0].remark
    assert store.state().written_offset == 0
    assert store.put_message(message("next")).queue_offset == 0


@pytest.mark.parametrize("prefix", [0, 40, 200])
def test_messages_put_together_are_all_refused_by_a_full_disk(tmp_path, prefix):
    disk = FaultyDisk(LocalDisk())
    store = open_store(tmp_path, disk)
    disk.plan = (Fault(0, persistent=True, kinds={"write"}, error=errno.ENOSPC, prefix=prefix),)
    results = store.put_together((message("one"), message("two", topic="U")))
    assert [each.status for each in results] == [Status.SERVICE_NOT_AVAILABLE] * 2
    disk.plan = ()
    results = store.put_together((message("one"), message("two", topic="U")))
    assert [each.queue_offset for each in results] == [0, 0]
    crash(store)
    store = open_store(tmp_path)
    assert (bodies(store), bodies(store, "U")) == (["one"], ["two"])
    store.stop_accepting("the end has come")
    assert store.put_together([message("three")])[0].remark == "the end has come"
    store.shutdown()


@pytest.mark.parametrize("prefix", [0, 40, 200])
def test_full_disk_gives_back_the_queue_offsets_of_all_waiting_messages(tmp_path, prefix):
    disk = FaultyDisk(LocalDisk())
    store = open_store(tmp_path, disk)
    store.put_message(message("before"))
    disk.plan = (Fault(0, persistent=True, kinds={"write"}, error=errno.ENOSPC, prefix=prefix),)
    later(store, "lost", "lost, too")
    later(store, "lost", queue_id=1)
    refusal = (
        f"the disk is full: [Errno {errno.ENOSPC}] No space left on device: "
        f"'{tmp_path}/commitlog/00000000000000000000'"
    )
    assert [(each.status, each.remark) for each in store.write_buffered()] == [
        (Status.SERVICE_NOT_AVAILABLE, refusal)
    ] * 3
    disk.plan = ()
    later(store, "a")
    later(store, "b", queue_id=1)
    assert [each.queue_offset for each in store.write_buffered()] == [1, 0]
    assert (bodies(store), bodies(store, "T", 1)) == (["before", "a"], ["b"])
    store.shutdown()
    again = open_store(tmp_path)
    assert (bodies(again), bodies(again, "T", 1)) == (["before", "a"], ["b"])
    again.shutdown()


def test_disk_that_fills_up_during_a_batched_write_refuses_only_the_rest(tmp_path):
    disk = FaultyDisk(LocalDisk())
    store = open_store(tmp_path, disk)
    later(store, *["x" * 1000] * 4)
    assert 3000 < store.state().written_offset < 4000
    disk.plan = (Fault(0, persistent=True, kinds={"create"}, error=errno.ENOSPC),)
    refused = Status.SERVICE_NOT_AVAILABLE
    assert [each.status for each in store.write_buffered()] == [Status.PUT_OK] * 3 + [refused]
    disk.plan = ()
    assert store.put_message(message("y" * 1000)).queue_offset == 3
    assert len(bodies(store)) == 4
    store.shutdown()


@pytest.mark.parametrize("error", [errno.EIO, errno.EFBIG, errno.EACCES, errno.EAGAIN])
def test_failed_write_is_undone_and_the_next_succeeds(tmp_path, error):
    disk = FaultyDisk(LocalDisk())
    store = open_store(tmp_path, disk)
    disk.plan = (Fault(0, persistent=True, kinds={"write", "create"}, error=error, prefix=100),)
    later(store, "a", "b")
    refused = store.write_buffered()
    assert [each.status for each in refused] == [Status.SERVICE_NOT_AVAILABLE] * 2
    assert all(
        os.strerror(error) in each.remark and str(tmp_path) in each.remark for each in refused
    )
    assert os.strerror(error) in store.state().degradation
    disk.plan = ()
    later(store, "c")
    assert [each.queue_offset for each in store.write_buffered()] == [0]
    assert store.put_message(message("d")).status is Status.PUT_OK
    assert (bodies(store), store.state().failure, store.state().degradation) == (
        ["c", "d"],
        None,
        None,
    )
    store.shutdown()


def test_failed_append_that_cannot_be_undone_closes_the_log_for_waiting_and_new_appends(tmp_path):
    disk = FaultyDisk(LocalDisk())
    store = open_store(tmp_path, disk)
    assert store.put_message(message("0")).status is Status.PUT_OK
    torn = Fault(len(disk.operations), kinds={"write"}, error=errno.EIO, prefix=100)
    disk.plan = (torn, Fault(0, persistent=True, kinds={"write"}, error=errno.EIO))
    later(store, "a")
    (undoable,) = store.write_buffered()
    assert "restart the broker" not in undoable.remark
    later(store, "b")
    results = list(store.write_buffered())
    disk.plan = ()
    later(store, "c")
    results += store.write_buffered()
    assert [each.status for each in results] == [Status.SERVICE_NOT_AVAILABLE] * 2
    assert all(each.remark.count("restart the broker") == 1 for each in results)
    assert store.put_message(message("d")).status is Status.SERVICE_NOT_AVAILABLE
    store.shutdown()


def test_topic_deleted_with_buffered_messages_restarts_at_offset_zero(store):
    later(store, "old", "older")
    store.delete_topic("T")
    later(store, "new")
    assert [each.queue_offset for each in store.write_buffered()] == [0, 1, 0]
    assert bodies(store) == ["new"]


@pytest.mark.parametrize("is_refused", [False, True])
def test_buffered_write_failure_after_topic_deletion_keeps_offsets_dense(tmp_path, is_refused):
    full = FaultIn(0, persistent=True, kinds={"write"}, error=errno.ENOSPC, directory="commitlog")
    disk = FaultyDisk(LocalDisk())
    store = open_store(tmp_path, disk)
    for text in ("0", "1", "2"):
        store.put_message(message(text))
    later(store, "waits", "waits as well")
    disk.plan = (full,) if is_refused else ()
    store.delete_topic("T")
    later(store, "of the next topic")
    waited = [each.queue_offset for each in store.write_buffered() if each.status is Status.PUT_OK]
    disk.plan = ()
    assert waited == ([] if is_refused else [3, 4, 0])
    first = waited.count(0)
    later(store, "new", "newer")
    assert [each.queue_offset for each in store.write_buffered()] == [first, first + 1]
    assert bodies(store) == [*["of the next topic"] * first, "new", "newer"]
    store.shutdown()


def test_store_shutdown_writes_waiting_messages(tmp_path):
    store = open_store(tmp_path)
    later(store, "last")
    store.shutdown()
    again = open_store(tmp_path)
    assert bodies(again) == ["last"]
    again.shutdown()


LONG_RECORDS = {
    "alone": lambda store, each: store.put_draft(draft_of(each)),
    "later": lambda store, each: put_later(store, each)[0],
    "a batch": lambda store, each: put_batch(store, each, message("short")),
    "a chunk": lambda store, each: store.put_chunk(encoded(each), [len(encoded(each))]),
}


@pytest.mark.parametrize("way", LONG_RECORDS)
def test_longest_client_record_leaves_room_for_its_dead_letter(tmp_path, way):
    store = open_store(tmp_path)
    store.put_message(message("first"))
    body_bytes = store.record_bytes_max - len(encoded(message("")))
    if way == "a batch":  # a batch never spans two files
        store = open_store(tmp_path / "large", mapped_file_size_commit_log=2 * LOG_FILE_BYTES)
        store.put_message(message("first"))
        body_bytes = store.record_bytes_max - len(encoded(message("")))
    refused = LONG_RECORDS[way](store, message("x" * (body_bytes + 1)))
    assert refused.status is Status.MESSAGE_ILLEGAL
    assert f"a record of {store.record_bytes_max + 1} bytes" in refused.remark
    assert str(store.record_bytes_max) in refused.remark.replace(
        str(store.record_bytes_max + 1), ""
    )
    if way != "a batch":
        taken = LONG_RECORDS[way](store, message("x" * body_bytes))
        assert taken is None or taken.status is Status.PUT_OK
    store.shutdown()


def put_together(store, *messages):
    assert put_later(store, *messages) == [None] * len(messages)
    return store.write_buffered()


def put_chunk(store, *messages):
    records = [encoded(each) for each in messages]
    return [store.put_chunk(b"".join(records), [len(each) for each in records])]


WAYS = {
    "one by one": lambda store, *messages: [store.put_message(each) for each in messages],
    "later": put_together,
    "a batch": lambda store, *messages: [put_batch(store, *messages)],
    "a chunk": put_chunk,
}


@pytest.mark.parametrize("left", [0, 1, BLANK_BYTES - 1, BLANK_BYTES, BLANK_BYTES + 1])
@pytest.mark.parametrize("way", WAYS)
def test_message_that_fills_a_log_file_is_recovered_with_the_next(tmp_path, way, left):
    before, last = (len(encoded(message(text))) for text in ("first", ""))
    first = "first" + "x" * (LOG_FILE_BYTES // 2)
    rest = LOG_FILE_BYTES - 2 * before - last - 1 - LOG_FILE_BYTES // 2 - left
    texts = [first, "second", "x" * rest]
    store = open_store(tmp_path)
    assert store.put_message(message(first)).status is Status.PUT_OK
    put = WAYS[way](store, *map(message, texts[1:]))
    assert {each.status for each in put} == {Status.PUT_OK}
    assert store.put_message(message("next")).status is Status.PUT_OK
    assert bodies(store) == [*texts, "next"]
    crash(store)
    again = open_store(tmp_path)
    assert (bodies(again), again.state().holes) == ([*texts, "next"], ())
    assert again.put_message(message("behind")).queue_offset == 4
    again.shutdown()
