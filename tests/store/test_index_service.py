"""The index over many files: adding, rolling over, loss and recovery, lookup."""

import errno
import random
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.disks.faulty_disk import (
    Fault,
    FaultyDisk,
    ManualClock,
    RecordingDisk,
    power_loss_states,
)

from rmq_spark.wire.codes import MessageSysFlag
from rocketpoll.broker.store.errors import ForeignFile, StoreClosed
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.file_pool import FilePool
from rocketpoll.broker.store.index.index_file import IndexSizes
from rocketpoll.broker.store.index.index_keys import KeyColumns, hash_columns
from rocketpoll.broker.store.index.index_service import NOTHING_INDEXED, IndexService

SLOTS, ENTRIES = 7, 9  # eight keys in each file
FILE_BYTES = IndexSizes(SLOTS, ENTRIES).file_bytes
NOON = 1_700_000_000_000
EVER = 1 << 62


def message(physical_offset, keys="", unique_key=None, topic="orders", timestamp=NOON, sys_flag=0):
    return (topic, keys, unique_key, physical_offset, timestamp, sys_flag)


def load(directory, disk=None, clock=None, index_num=ENTRIES):
    service = IndexService(
        FilePool(disk or LocalDisk()),
        Path(directory),
        clock or ManualClock(),
        hash_slot_num=SLOTS,
        index_num=index_num,
    )
    service.load()
    return service


def dispatch(service, *messages):
    topics, keys, unique_keys, places, times, flags = (
        zip(*messages, strict=True) if messages else [()] * 6
    )
    columns = KeyColumns(
        pa.array(topics, pa.string()),
        pa.array(unique_keys, pa.string()),
        pa.array(keys, pa.string()),
        np.array(places, np.int64),
        np.array(times, np.int64),
        np.array(flags, np.int32),
    )
    return service.add(*hash_columns(columns))


def found(service, key, topic="orders", begin=0, end=EVER, max_num=64):
    return service.query(topic, key, begin, end, max_num).physical_offsets


def names(directory):
    return sorted(path.name for path in Path(directory).iterdir())


def numbered(count, start=0):
    """Return messages 100 bytes apart, each with a unique key."""
    return [message(100 * number, f"k{number}") for number in range(start, start + count)]


def test_messages_are_found_by_unique_key_and_by_each_word_newest_first(tmp_path):
    service = load(tmp_path)
    assert (
        dispatch(service, message(0, "a b", "U1"), message(100, " b  c ", "U2"), message(200, None))
        == 6
    )
    assert found(service, "U1") == found(service, "a") == [0]
    assert found(service, "b") == [100, 0]
    assert found(service, "b", max_num=1) == [100]
    assert found(service, "c") == [100]
    assert found(service, "b", topic="others") == found(service, "") == found(service, "d") == []
    assert service.last_indexed_physical_offset == 100


def test_unique_key_comes_first_so_that_files_are_the_same_as_rocketmqs(tmp_path):
    service = load(tmp_path)
    dispatch(service, message(0, "x", "U"), message(100, "x y", "U"))
    service.flush()
    entries = [
        (tmp_path / names(tmp_path)[0]).read_bytes()[40 + 4 * SLOTS + 20 * n :][:4]
        for n in range(1, 6)
    ]
    assert entries[0] == entries[2] != entries[1] == entries[3] != entries[4]


def test_keys_that_share_a_hash_are_left_to_the_caller(tmp_path):
    service = load(tmp_path)
    dispatch(service, message(0, "Aa"), message(100, "BB"))
    assert found(service, "Aa") == found(service, "BB") == [100, 0]


def test_index_skips_rolled_back_messages_and_keeps_prepared_ones(tmp_path):
    service = load(tmp_path)
    flags = MessageSysFlag
    dispatch(
        service,
        message(0, "k", "U", sys_flag=flags.TRANSACTION_ROLLBACK | flags.COMPRESSED),
        message(100, "k", "U", sys_flag=flags.TRANSACTION_PREPARED),
        message(200, "k", "U", sys_flag=flags.TRANSACTION_COMMIT),
        message(300, "k", "U", sys_flag=flags.TRANSACTION_ROLLBACK),
    )
    assert found(service, "k") == found(service, "U") == [200, 100]
    assert service.last_indexed_physical_offset == 200


def test_index_of_messages_without_keys_makes_no_file(tmp_path):
    service = load(tmp_path / "index")
    assert dispatch(service) == 0
    assert dispatch(service, message(0), message(100, None), message(200, "  ")) == 0
    assert names(tmp_path / "index") == []
    assert service.last_indexed_physical_offset == NOTHING_INDEXED
    assert found(service, "k") == []
    service.flush()
    service.close()


def test_full_index_file_is_followed_by_one_with_a_new_name(tmp_path):
    clock = ManualClock()
    service = load(tmp_path, clock=clock)
    dispatch(service, *numbered(20))
    clock.now_ms -= 3_600_000
    dispatch(service, *numbered(20, start=20))
    assert len(names(tmp_path)) == 5
    assert service.file_names == tuple(names(tmp_path))
    clock.now_ms += 7_200_000
    dispatch(service, *numbered(1, start=40))
    assert int(names(tmp_path)[-1]) > int(names(tmp_path)[-2]) + 1
    assert all(found(service, f"k{number}") == [100 * number] for number in range(41))


def test_index_files_are_named_by_local_time(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kathmandu")  # 5:45 hours ahead, no summer time
    time.tzset()
    try:
        dispatch(load(tmp_path, clock=ManualClock(1_700_000_000_007)), message(0, "k"))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert names(tmp_path) == ["20231115035820007"]


def test_index_query_reads_files_newest_first_within_its_time_span(tmp_path):
    service = load(tmp_path)
    dispatch(service, *[message(100 * n, "k", timestamp=NOON + 1000 * n) for n in range(30)])
    assert found(service, "k") == [100 * n for n in reversed(range(30))]
    assert found(service, "k", max_num=10) == [100 * n for n in reversed(range(20, 30))]
    assert found(service, "k", begin=NOON + 5000, end=NOON + 17_999) == [
        100 * n for n in range(17, 4, -1)
    ]
    assert found(service, "k", end=NOON - 1) == found(service, "k", begin=NOON + 30_000) == []


@given(st.lists(st.integers(0, 3), max_size=40).map(sorted), st.integers(-1, 4), st.integers(-1, 4))
@settings(max_examples=200)
def test_index_query_by_time_equals_a_linear_scan(seconds, first, last):
    """The equal times that the query wants lie on both sides of a file boundary."""
    times = [NOON + 1000 * second for second in seconds]
    begin, end = NOON + 1000 * first, NOON + 1000 * last
    expected = [100 * n for n, each in enumerate(times) if begin <= each <= end]
    with tempfile.TemporaryDirectory() as directory:
        service = load(directory)
        dispatch(service, *[message(100 * n, "k", timestamp=at) for n, at in enumerate(times)])
        assert found(service, "k", begin=begin, end=end) == expected[::-1]
        service.close()


def test_index_query_hops_are_limited_over_all_files(tmp_path):
    service = load(tmp_path, index_num=1001)
    dispatch(service, *[message(n, "k") for n in range(6000)])
    assert len(found(service, "k", max_num=100_000)) == 4096


def test_index_skips_messages_that_are_already_indexed(tmp_path):
    service = load(tmp_path)
    messages = [message(100 * n, f"a{n} b c", "U") for n in range(10)]
    assert dispatch(service, *messages[:7]) == 28
    assert dispatch(service, *messages[3:]) == 12
    assert dispatch(service, *messages) == 0
    assert found(service, "U") == found(service, "c") == [100 * n for n in reversed(range(10))]


def test_closed_index_refuses_messages(tmp_path):
    service = load(tmp_path)
    service.close()
    with pytest.raises(StoreClosed, match="the index was shut down"):
        dispatch(service, *numbered(1))


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        (
            "20231114221320000",
            b"x" * 100,
            f"needed {FILE_BYTES} bytes for 7 slots and 9 entries, found 100: start with",
        ),
        (
            "20231114221320000",
            b"x" * 420,
            f"needed {FILE_BYTES} bytes for 7 slots and 9 entries, found 420",
        ),
        ("2023111422132000", b"", "named by 17 digits"),
        ("2023111422132000x", b"", "named by 17 digits"),
        ("\u0662\u0660231114221320000", b"", "named by 17 digits"),
        ("20231114221320000.bak", bytes(FILE_BYTES), "named by 17 digits"),
        ("20231114221320000", None, "named by 17 digits"),
    ],
)
def test_foreign_file_in_the_index_directory_is_refused_and_kept(tmp_path, name, content, what):
    (tmp_path / "20200101000000000").touch()
    if content is None:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ForeignFile, match=what):
        load(tmp_path)
    assert names(tmp_path) == sorted(["20200101000000000", name])


def test_empty_index_files_at_the_end_are_deleted(tmp_path):
    service = load(tmp_path)
    dispatch(service, *numbered(8))
    service.close()
    kept = names(tmp_path)
    (tmp_path / "20991231000000000").write_bytes(bytes(FILE_BYTES))
    (tmp_path / "20991231000000001").touch()
    again = load(tmp_path)
    assert names(tmp_path) == kept
    assert again.last_indexed_physical_offset == 700
    assert dispatch(again, *numbered(9)) == 1


def test_torn_index_file_is_deleted_and_its_messages_are_indexed_again(tmp_path):
    service = load(tmp_path)
    dispatch(service, *numbered(10))
    service.flush()
    newest = tmp_path / names(tmp_path)[-1]
    content = bytearray(newest.read_bytes())
    content[40:44] = (1 << 20).to_bytes(4, "big")  # more entries than fit into a file
    newest.write_bytes(content)
    again = load(tmp_path)
    assert len(names(tmp_path)) == 1
    assert again.last_indexed_physical_offset == 700
    assert dispatch(again, *numbered(10)) == 2
    assert all(found(again, f"k{number}") == [100 * number] for number in range(10))


def test_truncation_of_the_log_deletes_index_files_past_it(tmp_path):
    service = load(tmp_path)
    dispatch(service, *numbered(20))
    assert service.discard_from(1901) == 0
    assert service.discard_from(1200) == 2
    assert service.last_indexed_physical_offset == 700
    dispatch(service, *numbered(12), message(1200, "new"))
    assert found(service, "new") == [1200]
    assert found(service, "k12") == []
    assert service.discard_from(0) == 2
    assert names(tmp_path) == []
    assert service.last_indexed_physical_offset == NOTHING_INDEXED


def test_index_files_before_the_log_are_deleted_but_never_the_newest(tmp_path):
    service = load(tmp_path)
    dispatch(service, *numbered(20))
    assert service.delete_before(700) == 0
    assert service.delete_before(701) == 1
    assert found(service, "k7") == []
    assert found(service, "k8") == [800]
    assert service.delete_before(1 << 40) == 1
    assert names(tmp_path) == [service.file_names[-1]]
    assert found(service, "k19") == [1900]


def test_delete_all_empties_the_index(tmp_path):
    service = load(tmp_path)
    dispatch(service, *numbered(20))
    assert service.delete_all() == 3
    assert names(tmp_path) == []
    dispatch(service, *numbered(2))
    assert found(service, "k1") == [100]


def test_full_disk_loses_no_index_key_once_there_is_room(tmp_path):
    """The disk may fill up between two keys of one message; each try adds as many as fit."""
    messages = [message(100 * n, "a b c", "U") for n in range(30)]
    for kinds in ({"create"}, {"write"}):
        directory = tmp_path / min(kinds)
        disk = FaultyDisk(LocalDisk())
        service = load(directory, disk)
        for start in range(0, 30, 5):
            for prefix in (0, 50):
                faulty = Fault(len(disk.operations), persistent=True, kinds=frozenset(kinds))
                disk.plan = [Fault(faulty.number, True, faulty.kinds, errno.ENOSPC, prefix)]
                with pytest.raises(OSError, match="No space left"):
                    dispatch(service, *messages[start : start + 5])
                disk.plan = []
                service.flush()
            dispatch(service, *messages[start : start + 5])
        for key in ("a", "b", "c", "U"):
            assert found(service, key) == [100 * n for n in reversed(range(30))]
        service.close()
        assert len(names(directory)) == len(load(directory).file_names) == 15


def test_failed_flush_of_index_file_names_is_retried(tmp_path):
    disk = FaultyDisk(LocalDisk(), [Fault(kinds=frozenset({"flush_directory"}), persistent=True)])
    service = load(tmp_path, disk)
    dispatch(service, message(0, "k"))
    with pytest.raises(OSError, match="Input/output error"):
        service.flush()
    tried = len(disk.operations)
    disk.plan = []
    service.flush()
    kinds = [operation.kind for operation in disk.operations[tried:]]
    assert kinds == ["flush_directory", "write", "flush", "write", "flush"]
    service.flush()
    assert len(disk.operations) == tried + len(kinds)


key = st.sampled_from(["Aa", "BB", "a", "b", "\u00e9", "key-1"])
keys = st.none() | st.lists(key | st.just(""), max_size=4).map(" ".join)
messages = st.builds(
    message,
    st.integers(1, 300),
    keys,
    st.none() | key,
    st.sampled_from(["orders", "\u00fc"]),
    st.integers(0, 1500),
    st.sampled_from([0, 0, 4, 8, 12]),
)
steps = st.lists(messages, max_size=8) | st.sampled_from(["flush", "restart", "kill"])


@given(st.lists(steps, max_size=14))
def test_index_answers_like_a_dictionary_over_restarts(script):
    """After a start, all possibly missing messages are dispatched again; repeats are harmless."""
    log, physical_offset, timestamp = [], 0, NOON
    with tempfile.TemporaryDirectory() as directory:
        service = load(directory)
        for step in script:
            if step == "flush":
                service.flush()
            elif step == "restart":
                service.close()
                service = load(directory)
                assert dispatch(service, *log) == 0
            elif step == "kill":
                service = load(directory)
                known = service.last_indexed_physical_offset
                dispatch(service, *[each for each in log if each[3] >= known])
            else:
                batch = []
                for topic, words, unique_key, bytes_on, ms_on, flag in step:
                    physical_offset, timestamp = physical_offset + bytes_on, timestamp + ms_on
                    batch.append((topic, words, unique_key, physical_offset, timestamp, flag))
                log += batch
                dispatch(service, *batch)
        model = defaultdict(list)
        for topic, words, unique_key, place, _, flag in log:
            own = ([unique_key] if unique_key else []) + [
                word for word in (words or "").split(" ") if word
            ]
            for each in own if flag != 12 else []:
                model[topic, {"BB": "Aa"}.get(each, each)].insert(0, place)
        for topic in ("orders", "\u00fc"):
            for each in ("Aa", "BB", "a", "b", "\u00e9", "key-1"):
                expected = model[topic, {"BB": "Aa"}.get(each, each)]
                assert found(service, each, topic, max_num=1000) == expected


def test_index_after_power_loss_is_completed_by_dispatching_again(tmp_path):
    root, scratch, dice = tmp_path / "store", tmp_path / "scratch", random.Random(3)
    root.mkdir()
    scratch.mkdir()
    disk = RecordingDisk(LocalDisk(), root)
    service = load(root / "index", disk)
    log = [message(100 * n, f"k{n} all", "U") for n in range(24)]
    for start in range(0, 24, 3):
        dispatch(service, *log[start : start + 3])
        if start % 9 == 0:
            service.flush()
    service.close()
    for point in range(len(disk.operations) + 1):
        for after in power_loss_states(disk.log(point), dice, 8, scratch):
            again = load(after / "index")
            known = again.last_indexed_physical_offset
            dispatch(again, *[each for each in log if each[3] >= known])
            assert (
                found(again, "all") == found(again, "U") == [100 * n for n in reversed(range(24))]
            )
            again.close()
            again = load(after / "index")
            assert dispatch(again, *log) == 0
            assert all(found(again, f"k{n}") == [100 * n] for n in range(24))


def test_rocketmq_would_write_a_repeated_last_record_twice_and_this_does_not(tmp_path):
    """RocketMQ adds the record at endPhyOffset again; our index adds only missing keys."""
    service = load(tmp_path)
    dispatch(service, message(100, "a b", "U"))
    path = tmp_path / service.file_names[0]
    service.close()
    before = path.read_bytes()
    again = load(tmp_path)
    dispatch(again, message(100, "a b", "U"))
    again.close()
    assert path.read_bytes() == before
