"""Reput dispatches messages to queues and index, and notifies listeners."""

import errno
import os
import shutil
from itertools import pairwise

import pytest
from support.disks.faulty_disk import FaultIn, FaultyDisk
from support.stores.small_store import (
    Listener,
    bodies,
    components_of,
    log_files,
    message,
    open_store,
    put_batch,
    put_later,
)
from support.suite.log_records import lines_of

from rmq_spark.wire.chunk import encode_chunk
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.message.properties import tags_code
from rocketpoll.broker.store.bulk import bulk_tools
from rocketpoll.broker.store.config import BrokerRole, FlushDiskType
from rocketpoll.broker.store.files.disk import LocalDisk


@pytest.fixture
def listener():
    return Listener()


def test_arrival_listener_is_called_once_per_queue_with_all_tag_codes(tmp_path, listener):
    store = open_store(tmp_path, listener=listener)
    put_batch(store, *(message(number, tags=tag) for number, tag in enumerate("AAB")))
    assert listener.arrivals == [("T", 0, 3, [tags_code("A"), tags_code("A"), tags_code("B")])]
    store.put_message(message("x", queue_id=2))
    assert listener.arrivals[1:] == [("T", 2, 1, [0])]
    store.shutdown()


def test_message_is_readable_when_arrival_listener_is_called(tmp_path):
    """Otherwise a held pull would be woken, find nothing, and wait again."""
    read = []

    class Reads:
        def arriving(self, topic, queue_id, max_offset, tags_codes):
            read.append(bodies(store, topic, queue_id)[-len(tags_codes) :])
            assert store.queue_offsets(topic, queue_id).next == max_offset

    store = open_store(tmp_path, listener=Reads())
    put_batch(store, message("a"), message("b"))
    for queue_id in (1, 2):
        put_later(store, message("c", queue_id=queue_id))
    store.write_buffered()
    assert read == [["a", "b"], ["c"], ["c"]]
    store.shutdown()


def test_arrival_is_notified_while_another_queue_has_no_disk_space(tmp_path, listener):
    disk = FaultyDisk(LocalDisk())
    store = open_store(tmp_path, disk=disk, listener=listener)
    store.put_message(message("a"))
    disk.plan = [FaultIn(directory="2", persistent=True, kinds={"create"}, error=errno.ENOSPC)]
    for queue_id in (0, 1, 2):
        put_later(store, message("b", queue_id=queue_id))
    store.write_buffered()
    assert "disk is full" in store.state().degradation
    told = [arrival[1:3] for arrival in listener.arrivals]
    assert told == [(0, 1), (0, 2), (1, 1)]
    disk.plan = ()
    store.reput()
    assert (2, 1) in [arrival[1:3] for arrival in listener.arrivals]
    assert bodies(store, queue_id=2) == ["b"]
    store.shutdown()


@pytest.mark.parametrize(
    "error", [RuntimeError("strange"), OSError(errno.ENOSPC, "No space left on device")]
)
def test_failing_arrival_listener_is_still_called_for_other_queues(
    tmp_path, listener, caplog, error
):
    class Fails:
        def arriving(self, topic, queue_id, *more):
            if queue_id == 1:
                raise error
            listener.arriving(topic, queue_id, *more)

    store = open_store(tmp_path, listener=Fails())
    for queue_id in range(3):
        put_later(store, message("x", queue_id=queue_id))
    store.write_buffered()
    assert [queue_id for _, queue_id, _, _ in listener.arrivals] == [0, 2]
    assert (store.state().degradation, store.state().failure) == (None, None)
    assert "notifying of new messages in queue 1 of T failed" in caplog.text
    store.shutdown()


def test_last_message_of_a_quiet_topic_is_visible_at_once(tmp_path, listener):
    """R7: RocketMQ's last messages of a batch were not visible until more arrived."""
    store = open_store(tmp_path, listener=listener)
    for number in range(50):
        store.put_message(message(number))
        assert listener.arrivals[-1][2] == number + 1 == store.queue_offsets("T", 0).next
    store.shutdown()


def test_reput_dispatches_recent_writes_without_reading_the_log(tmp_path, listener, monkeypatch):
    store = open_store(tmp_path, listener=listener)
    with monkeypatch.context() as patch:
        patch.setattr(components_of(store).reput, "_next_records", None)
        for text, queue_id, tags in (("a", 0, "A"), ("b", 1, None), ("c", 0, "B")):
            put_later(store, message(text, queue_id=queue_id, tags=tags))
        store.write_buffered()
    assert listener.arrivals == [("T", 0, 2, [tags_code("A"), tags_code("B")]), ("T", 1, 1, [0])]
    assert (bodies(store), bodies(store, "T", 1)) == (["a", "c"], ["b"])
    store.shutdown()


def test_just_written_chunk_is_dispatched_without_reading_it_again(tmp_path, listener, monkeypatch):
    store = open_store(tmp_path, listener=listener)
    chunk = encode_chunk(
        {
            "topic": "T",
            "body": [b"a", b"b"],
            "tags": ["A", None],
            "keys": ["k1", "k2"],
            "storeHost": "[::1]:1",
        }
        | {"sysFlag": MessageSysFlag.STORE_HOST_V6.value}
    )
    with monkeypatch.context() as patch:
        patch.setattr(components_of(store).reput, "_next_records", None)
        for _ in range(2):
            store.put_chunk(chunk.data, chunk.sizes)
    assert listener.arrivals == [("T", 0, end, [tags_code("A"), 0]) for end in (2, 4)]
    assert bodies(store) == ["a", "b", "a", "b"]
    assert components_of(store).reput.index_from_offset == store.state().written_offset
    assert len(store.query_message("T", "k2", 10, 0, 1 << 62)) == 2
    store.shutdown()


def test_reput_reads_the_log_for_writes_that_are_no_longer_in_memory(tmp_path, listener):
    """Both kinds of append alternate, over several files, without a dispatch for a while."""
    store = open_store(
        tmp_path,
        listener=listener,
        wake_reput=lambda: None,
        flush_disk_type=FlushDiskType.SYNC_FLUSH,
    )
    for number in range(200):
        put_later(store, message(f"{number} later", tags="A"))
        store.write_buffered()
        last = store.put_message(message(f"{number} at once", tags="B"))
    store.wait_until_stored(last)
    store.reput()
    assert bodies(store) == [
        f"{number} {kind}" for number in range(200) for kind in ("later", "at once")
    ]
    assert listener.arrivals[-1][2] == 400
    store.shutdown()


def test_messages_dispatched_at_start_are_no_arrivals(tmp_path, listener):
    open_and_put(tmp_path, "x")
    (tmp_path / "checkpoint").unlink()  # so that everything is dispatched again
    store = open_store(tmp_path, listener=listener)
    assert (bodies(store), listener.arrivals) == (["x"], [])
    store.put_message(message("y"))
    assert listener.arrivals == [("T", 0, 2, [0])]
    store.shutdown()


def test_slave_store_refuses_writes_and_calls_no_listener(tmp_path, listener):
    open_and_put(tmp_path, "x")
    (tmp_path / "checkpoint").unlink()  # so that everything is dispatched again
    store = open_store(tmp_path, listener=listener, broker_role=BrokerRole.SLAVE)
    assert listener.arrivals == []
    assert bodies(store) == ["x"]
    assert store.put_message(message("y")).status.name == "SERVICE_NOT_AVAILABLE"
    store.shutdown()


def open_and_put(root, *texts):
    store = open_store(root)
    for text in texts:
        store.put_message(message(text))
    store.shutdown()


def test_prepared_transaction_message_is_not_dispatched(tmp_path, listener):
    store = open_store(tmp_path, listener=listener)
    half = message("half")
    store.put_message(
        type(half)(**{**fields(half), "sys_flag": MessageSysFlag.TRANSACTION_PREPARED})
    )
    store.put_message(message("whole"))
    assert bodies(store) == ["whole"]
    assert [arrival[2] for arrival in listener.arrivals] == [1]
    store.shutdown()


def fields(each):
    return {name: getattr(each, name) for name in each.__dataclass_fields__}


def test_records_over_many_files_are_followed_through_their_blanks(tmp_path):
    store = open_store(tmp_path)
    texts = [f"{number} " + "x" * (number * 37 % 900) for number in range(60)]
    for text in texts:
        store.put_message(message(text))
    assert len(log_files(store)) > 5
    assert bodies(store) == texts
    store.shutdown()


def test_index_catches_up_when_it_is_queried(tmp_path):
    store = open_store(tmp_path)
    store.put_message(message("x", keys="k1 k2", UNIQ_KEY="U1"))
    assert components_of(store).reput.index_from_offset == 0
    for key in ("k1", "k2", "U1"):
        assert len(store.query_message("T", key, 10, 0, 1 << 62)) == 1
    assert components_of(store).reput.index_from_offset == store.state().written_offset
    store.shutdown()


def test_index_catches_up_in_small_steps(tmp_path):
    """A step of 4,000 records took a whole turn of the loop on a busy machine."""
    count = 3_000
    store = open_store(tmp_path, mapped_file_size_commit_log=4 << 20, max_index_num=1 << 14)
    for _ in range(count):
        last = store.put_message(message("body", keys="k"))
    size = last.physical_offset // (count - 1)
    bulk_tools.start_loading().result()
    steps, is_done = [0], False
    while not is_done:
        is_done = components_of(store).reput.catch_up_index(lambda: True)
        steps.append(components_of(store).reput.index_from_offset // size)
    assert steps[-1] == count
    assert max(end - start for start, end in pairwise(steps)) <= 1_024
    assert len(store.query_message("T", "k", count, 0, 1 << 62)) == count
    store.shutdown()


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("behind_start", [84, 1, 90, -12])
def test_reput_skips_damaged_record_and_dispatches_those_past_it(
    tmp_path, caplog, behind_start, many
):
    """A start does not scan such a large log, and queues and index are missing."""
    settings = {"check_whole_log_bytes": 0, "mapped_file_size_commit_log": 1 << 17}
    texts = [f"{number} " + "x" * 20 for number in range(500 if many else 20)]
    store = open_store(tmp_path, **settings)
    placed = [store.put_message(message(text, keys="k")).physical_offset for text in texts]
    store.shutdown()
    path = tmp_path / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[placed[5 if behind_start >= 0 else 6] + behind_start] ^= 0x40
    path.write_bytes(data)
    for name in ("index", "consumequeue"):
        shutil.rmtree(tmp_path / name)
    if many:
        assert bulk_tools.RecordChunk  # the bulk tools are loaded
    again = open_store(tmp_path, **settings)
    whole = [text for number, text in enumerate(texts) if number != 5]
    assert bodies(again) == whole
    assert again.state().holes == ((placed[5], placed[6]),)
    assert len(again.query_message("T", "k", 10, 0, 1 << 62)) == 10
    assert caplog.text.count("the commit log is damaged from") == 1
    again.put_message(message("after"))
    assert bodies(again)[-1] == "after"
    again.shutdown()


def test_closing_store_dispatches_nothing_and_reports_no_damage(tmp_path, caplog):
    """The flush of the stop itself is the last event that wakes reput."""
    disk = FullForQueues(LocalDisk())
    store = open_store(tmp_path, disk)
    disk.is_full = True
    store.put_message(message("one"))
    store.shutdown()
    disk.is_full = False
    assert store.reput()
    assert "damaged" not in caplog.text
    assert not list((tmp_path / "consumequeue").rglob("0" * 20))
    again = open_store(tmp_path)
    assert bodies(again) == ["one"]
    again.shutdown()


class FullForQueues(FaultyDisk):
    """A disk with space for the log, and sometimes none for consume queues."""

    is_full = False

    def _run(self, call):
        if self.is_full and call.kind in {"create", "write"} and "consumequeue" in call.path.parts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(call.path))
        return super()._run(call)


@pytest.mark.parametrize("when", ["before it is read", "while it is read"])
def test_files_deleted_before_indexing_are_not_logged_as_damage(
    tmp_path, caplog, monkeypatch, when
):
    store = open_store(tmp_path)
    for number in range(400):
        store.put_message(message("x" * 500, KEYS=f"k{number}"))
    store.reput()
    files = components_of(store).log.files
    assert len(files.files) > 2
    assert components_of(store).reput.index_from_offset == 0

    def delete():
        files.delete_before(files.files[-1].from_offset)

    if when == "before it is read":
        delete()
    else:
        read = components_of(store).log.read

        def read_once(*place):
            monkeypatch.undo()
            delete()
            return read(*place)

        monkeypatch.setattr(components_of(store).log, "read", read_once)
    assert len(store.query_message("T", "k399", 5, 0, 1 << 62)) == 1
    assert store.state().holes == ()
    assert (
        lines_of(
            caplog,
            "rocketpoll.broker.store.dispatch.reput",
            "rocketpoll.broker.store.index.index_service",
        )
        == []
    )
    store.shutdown()


@pytest.mark.parametrize(
    "error", [ValueError("a mistake"), KeyError("T"), AssertionError(), RecursionError()]
)
def test_permanent_dispatch_error_stops_the_store_from_taking_messages(
    tmp_path, monkeypatch, caplog, error
):
    """Otherwise messages would be acknowledged that never become visible."""
    store = open_store(tmp_path)
    store.put_message(message("seen"))

    def failing(*_):
        raise error

    monkeypatch.setattr(components_of(store).dispatcher, "entries_of_few", failing)
    store.put_message(message("the last that is taken"))
    assert repr(error) in store.state().failure
    assert "dispatching messages to their consume queues failed" in caplog.text
    assert repr(error) in store.put_message(message("refused")).remark
    assert bodies(store) == ["seen"]
    monkeypatch.undo()
    store.shutdown()
    again = open_store(tmp_path)
    assert bodies(again) == ["seen", "the last that is taken"]
    again.shutdown()


def test_dispatch_out_of_memory_is_retried(tmp_path, monkeypatch):
    store = open_store(tmp_path)

    def failing(*_):
        raise MemoryError

    with monkeypatch.context() as lacking:
        lacking.setattr(components_of(store).dispatcher, "entries_of_few", failing)
        store.put_message(message("a"))
        assert (store.state().failure, "short of memory" in store.state().degradation) == (
            None,
            True,
        )
    store.reput()
    assert (bodies(store), store.state().degradation) == (["a"], None)
    store.shutdown()


@pytest.mark.parametrize("behind_start", [84, 1])
def test_record_damaged_before_indexing_does_not_block_others(tmp_path, behind_start):
    store = open_store(tmp_path)
    placed = [store.put_message(message(f"{n}", keys="k")).physical_offset for n in range(20)]
    assert len(bodies(store)) == 20
    path = tmp_path / "commitlog" / ("0" * 20)
    with path.open("r+b") as file:
        file.seek(placed[5] + behind_start)
        (byte,) = file.read(1)
        file.seek(placed[5] + behind_start)
        file.write(bytes([byte ^ 0x40]))
    assert len(store.query_message("T", "k", 32, 0, 1 << 62)) == 19
    assert store.state().holes == ((placed[5], placed[6]),)
    store.shutdown()
