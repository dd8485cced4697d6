"""One index file: RocketMQ's format, hash chains that always end, and states after a crash."""

import random
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.disks.faulty_disk import Fault, FaultyDisk, RecordingDisk, power_loss_states

from rocketpoll.broker.store.errors import StoreFailed
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.file_pool import FileGroup, FilePool, PooledFile
from rocketpoll.broker.store.index.index_file import (
    INDEX_HOPS_MAX,
    IndexFile,
    IndexSizes,
)

SIZES = IndexSizes(hash_slot_num=3, index_num=6)
NOON = 1_700_000_000_500
ALWAYS = (0, 1 << 62)


def create(directory, sizes=SIZES, disk=None):
    return IndexFile.create(
        FileGroup(FilePool(disk or LocalDisk())), Path(directory) / "20231114221320500", sizes
    )


def open_again(directory, sizes=SIZES, disk=None):
    disk, path = disk or LocalDisk(), Path(directory) / "20231114221320500"
    return IndexFile(PooledFile(FileGroup(FilePool(disk)), path.parent, path.name), sizes)


def append(file, *keys):
    """Add keys, given as hash, physical offset and store timestamp."""
    columns = list(zip(*keys, strict=True)) or [(), (), ()]
    dtypes = (np.int32, np.int64, np.int64)
    return file.append(
        *(np.array(each, dtype) for each, dtype in zip(columns, dtypes, strict=True))
    )


def found(file, key_hash, window=ALWAYS, max_num=64, **kwargs):
    return file.walk(key_hash, *window, max_num, **{"hops_max": INDEX_HOPS_MAX, **kwargs})[0]


def write_entry(file, number, key_hash, physical_offset, time_diff, previous, sizes=SIZES):
    at = 40 + 4 * sizes.hash_slot_num + 20 * number
    file._file.write(struct.pack(">iqii", key_hash, physical_offset, time_diff, previous), at)


def write_count(directory, count, sizes=SIZES):
    file = open_again(directory, sizes)
    file._file.write(struct.pack(">i", count), 36)


def test_index_file_bytes_equal_rocketmqs(tmp_path):
    file = create(tmp_path)
    assert append(file, (7, 1000, NOON), (4, 1000, NOON)) == 2
    assert (
        append(file, (2, 1300, NOON + 1999), (7, 1600, NOON + 61_000), (1, 1900, NOON + 61_001))
        == 3
    )
    file.flush()
    written = (tmp_path / "20231114221320500").read_bytes()
    assert len(written) == 40 + 3 * 4 + 6 * 20
    assert written == b"".join(
        [
            struct.pack(">qqqqii", NOON, NOON + 61_001, 1000, 1900, 2, 6),
            struct.pack(">iii", 0, 5, 3),
            struct.pack(">iqii", 0, 0, 0, 0),
            struct.pack(">iqii", 7, 1000, 0, 0),
            struct.pack(">iqii", 4, 1000, 0, 1),
            struct.pack(">iqii", 2, 1300, 1, 0),
            struct.pack(">iqii", 7, 1600, 61, 2),
            struct.pack(">iqii", 1, 1900, 61, 4),
        ]
    )


def test_default_index_file_size_equals_rocketmqs():
    assert IndexSizes().file_bytes == 420_000_040


@pytest.mark.parametrize("sizes", [(0, 10), (1, 1)])
def test_index_file_sizes_without_room_are_refused(sizes):
    with pytest.raises(ValueError, match="at least 1 slot and 2 entries"):
        IndexSizes(*sizes)


def test_index_file_accepts_keys_until_it_is_full(tmp_path):
    file = create(tmp_path)
    keys = [(hash_, 1000 + hash_, NOON) for hash_ in range(7)]
    assert append(file, *keys) == 5
    assert file.is_full
    assert append(file, *keys[5:]) == 0
    assert [found(file, hash_) for hash_ in range(6)] == [
        [1000],
        [1001],
        [1002],
        [1003],
        [1004],
        [],
    ]
    file.seal()
    assert [found(file, hash_) for hash_ in range(6)] == [
        [1000],
        [1001],
        [1002],
        [1003],
        [1004],
        [],
    ]


def test_index_times_out_of_range_are_clamped(tmp_path):
    file = create(tmp_path)
    append(file, (7, 1000, NOON), (8, 1300, NOON - 5000), (9, 1600, NOON + (1 << 42)))
    assert found(file, 8, (NOON, NOON)) == [1300]
    assert found(file, 9, (NOON + 1000 * 0x7FFFFFFF,) * 2) == [1600]


def test_index_entry_without_timestamp_does_not_set_the_base_time(tmp_path):
    file = create(tmp_path)
    append(file, (7, 1000, 0), (7, 1300, NOON))
    assert found(file, 7, (0, 0)) == [1300, 1000]


hashes = st.sampled_from([0, 1, 2, 3, 1000, 1003, 2112, (1 << 31) - 1])
steps = st.lists(
    st.tuples(hashes, st.integers(1, 500), st.integers(0, 2500)), max_size=12
) | st.sampled_from(["flush", "reopen"])


@given(
    st.lists(steps, max_size=12),
    st.integers(1, 7),
    hashes,
    st.integers(0, 9000),
    st.integers(0, 9000),
)
def test_index_file_answers_like_a_list_of_its_entries(script, slot_num, wanted, begin, duration):
    sizes = IndexSizes(slot_num, 41)
    model, physical_offset, timestamp = [], 0, NOON
    with tempfile.TemporaryDirectory() as directory:
        file = create(directory, sizes)
        for step in script:
            if step == "flush":
                file.flush()
            elif step == "reopen":
                file.flush()
                file.close()
                file = open_again(directory, sizes)
                assert file.prepare_append()
            else:
                keys = []
                for hash_, bytes_on, ms_on in step:
                    physical_offset, timestamp = physical_offset + bytes_on, timestamp + ms_on
                    keys.append((hash_, physical_offset, timestamp))
                taken = append(file, *keys)
                assert taken == min(len(keys), 40 - len(model))
                model += keys[:taken]
        window = (NOON + begin, NOON + begin + duration)
        expected = []
        for hash_, place, stored in model:
            counted = model[0][2] + (stored - model[0][2]) // 1000 * 1000
            if hash_ == wanted and window[0] - 999 <= counted <= window[1]:
                expected.insert(0, place)
        assert found(file, wanted, window) == expected
        assert file.header.index_count == len(model) + 1
        assert file.header.hash_slot_count == len({hash_ % slot_num for hash_, _, _ in model})
        file.flush()
        assert found(open_again(directory, sizes), wanted, window) == expected


@pytest.mark.parametrize("previous", [1, 2, 3, 4, 5, 6, 7, -1, 0x7FFFFFFF, -0x80000000])
def test_index_chain_with_a_wrong_previous_entry_ends(tmp_path, previous):
    file = create(tmp_path)
    append(file, *[(3, 1000 + number, NOON) for number in range(4)])
    write_entry(file, 2, 3, 1001, 0, previous)
    assert found(file, 3) == [1003, 1002, 1001, *([1000] if previous == 1 else [])]


@pytest.mark.parametrize("first", [0, -1, 5, 6, 0x7FFFFFFF, -0x80000000])
def test_index_slot_with_an_invalid_first_entry_finds_nothing(tmp_path, first):
    file = create(tmp_path)
    append(file, *[(3, 1000 + number, NOON) for number in range(4)])
    file.flush()
    file._file.write(struct.pack(">i", first), 40)
    assert found(open_again(tmp_path), 3) == []


@pytest.mark.parametrize("count", [-5, 0, 1, 3, 6, 7, 0x7FFFFFFF, -0x80000000])
def test_index_file_with_wrong_count_is_readable(tmp_path, count):
    file = create(tmp_path)
    append(file, *[(3, 1000 + number, NOON) for number in range(4)])
    file.flush()
    write_count(tmp_path, count)
    lying = open_again(tmp_path)
    assert found(lying, 3) == ([1003, 1002, 1001, 1000] if count >= 6 else [])
    assert lying.count_last(1003) in {0, 1}
    assert lying.is_full == (count >= 6)


def test_index_entry_with_a_negative_time_ends_its_chain(tmp_path):
    file = create(tmp_path)
    append(file, *[(3, 1000 + number, NOON) for number in range(4)])
    write_entry(file, 2, 3, 1001, -1, 1)
    assert found(file, 3) == [1003, 1002]


@given(st.binary(min_size=40 + 4 * 3 + 20 * 6, max_size=40 + 4 * 3 + 20 * 6), st.integers(0, 10))
def test_index_query_ends_for_any_file_content(content, wanted):
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "20231114221320500").write_bytes(content)
        file = open_again(directory)
        places, certain, hops = file.walk(wanted, -(1 << 63), 1 << 63, 64, INDEX_HOPS_MAX)
        assert certain <= len(places) <= hops <= 5
        assert 0 <= file.count_last(0) <= 5
        if file.prepare_append():
            append(file, (wanted, 1000, NOON))


def test_index_query_hops_are_limited(tmp_path):
    sizes = IndexSizes(hash_slot_num=1, index_num=6000)
    file = create(tmp_path, sizes)
    append(file, (5, 999, NOON), *[(7, 1000 + number, NOON) for number in range(5000)])
    assert found(file, 5) == []
    assert found(file, 5, hops_max=5001) == [999]
    assert found(file, 7, max_num=9000, hops_max=2) == [5999, 5998]
    assert file.walk(5, *ALWAYS, 64, INDEX_HOPS_MAX) == ([], 0, INDEX_HOPS_MAX)


def test_index_flush_writes_only_changed_pages(tmp_path):
    disk = RecordingDisk(LocalDisk(), tmp_path)
    sizes = IndexSizes(hash_slot_num=10_000, index_num=100)
    file = create(tmp_path, sizes, disk)
    append(file, *[(hash_, 1000, NOON) for hash_ in (0, 1013, 1014, 5000, 9999)])
    disk.operations.clear()
    file.flush()
    kinds = [each.kind for each in disk.operations]
    flush = ["begin_flush", "end_flush"]
    assert kinds == ["write", "write", "write", *flush, "write", *flush]
    writes = [each.arguments for each in disk.operations if each.kind == "write"]
    assert [(position, len(data)) for _, data, position in writes] == [
        (40, 8192 - 40),
        (4 * 4096, 4096),
        (9 * 4096, 40 + 40_000 - 9 * 4096),
        (0, 40),
    ]
    disk.operations.clear()
    file.flush()
    assert not disk.operations


def test_index_file_after_a_kill_equals_its_last_flush(tmp_path):
    file = create(tmp_path)
    append(file, (7, 1000, NOON), (4, 1000, NOON))
    file.flush()
    append(file, (7, 1300, NOON))
    assert found(file, 7) == [1300, 1000]
    again = open_again(tmp_path)
    assert again.prepare_append()
    assert found(again, 7) == [1000]
    assert again.count_last(1000) == 2


def test_power_loss_during_an_index_flush_leaves_the_content_of_some_flush(tmp_path):
    """Slots cover several pages, so that a flush can be torn between them and the header."""
    root, scratch = tmp_path / "store", tmp_path / "scratch"
    root.mkdir()
    scratch.mkdir()
    disk, sizes, dice = RecordingDisk(LocalDisk(), root), IndexSizes(4000, 400), random.Random(7)
    file = create(root, sizes, disk)
    states = [[]]
    for _ in range(3):
        states.append(list(states[-1]))
        for _ in range(2):
            last = states[-1][-1][1] if states[-1] else 0
            keys = [(dice.randrange(40) * 250, last + 1 + at, NOON + last) for at in range(20)]
            states[-1] += keys
            append(file, *keys)
        file.flush()
    torn = 0
    for point in range(len(disk.operations) + 1):
        for found_root in power_loss_states(disk.log(point), dice, 12, scratch):
            path = found_root / file.path.name
            if not path.exists() or path.stat().st_size == 0:
                continue
            after = open_again(found_root, sizes)
            slots = np.frombuffer(path.read_bytes()[40 : 40 + 4 * sizes.hash_slot_num], ">i4")
            torn += int(slots.max() >= after.header.index_count)
            assert after.prepare_append()
            content = states[(after.header.index_count - 1) // 40]
            for key_hash in {key[0] for key in content}:
                assert found(after, key_hash) == [
                    key[1] for key in reversed(content) if key[0] == key_hash
                ]
    assert torn


def test_failed_index_file_write_can_be_repeated(tmp_path):
    disk = FaultyDisk(LocalDisk(), [Fault(1, prefix=30), Fault(3, prefix=3)])
    file = create(tmp_path, disk=disk)
    with pytest.raises(OSError, match="20231114221320500"):
        append(file, (7, 1000, NOON), (4, 1300, NOON))
    assert file.is_empty
    assert append(file, (4, 1300, NOON)) == 1
    with pytest.raises(OSError, match="20231114221320500"):
        file.flush()
    file.flush()
    assert found(open_again(tmp_path), 4) == [1300]


def test_index_header_after_a_failed_flush_covers_no_entry_that_may_be_lost(tmp_path):
    disk = FaultyDisk(LocalDisk(), [Fault(3)])
    file = create(tmp_path, disk=disk)
    append(file, (7, 1000, NOON))
    with pytest.raises(StoreFailed, match="20231114221320500"):
        file.flush()
    with pytest.raises(StoreFailed, match=r"flushing .*20231114221320500 failed"):
        file.flush()
    assert open_again(tmp_path).is_empty
