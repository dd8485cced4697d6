"""JSON tables: backups, quarantine, failing disks and power losses."""

import errno
import json
import os
import random
import threading
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.disks.faulty_disk import Fault, FaultyDisk, RecordingDisk, power_loss_states
from support.suite.selection import count, some

from rmq_spark.errors import BodyError
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.configs import (
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rocketpoll.broker.store.errors import DamagedTable
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.json_table import JsonTable, with_checksum

NAME = "consumerOffset.json"
DEFAULT = ConsumerOffsetSerializeWrapper()

# Longer campaigns: ROCKETPOLL_POWER_LOSSES=1000
STATES = int(os.environ.get("ROCKETPOLL_POWER_LOSSES", "40"))


def offsets(number):
    # Larger than a sector and than a page, so that it can be torn.
    return ConsumerOffsetSerializeWrapper(
        offset_table={
            f"topic-{topic}@group": {0: number, 1: number} for topic in range(number % 7 * 40 + 1)
        }
    )


def table_in(directory, disk=None):
    return JsonTable(disk or LocalDisk(), directory / NAME, ConsumerOffsetSerializeWrapper)


def load_from(directory):
    return table_in(directory).load(DEFAULT)


def content(directory):
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def number_of(value):
    """Return which of the `offsets` a table holds; it must be one of them, complete."""
    if value == DEFAULT:
        return 0
    number = value.offset_table["topic-0@group"][0]
    assert value == offsets(number)
    return number


def saved(value):
    """Return a table's file content."""
    return with_checksum(encode_body(value))


@pytest.fixture
def root(tmp_path):
    (tmp_path / "config").mkdir()
    return tmp_path / "config"


# ---- saving and loading


def test_table_that_was_never_saved_loads_its_default(root):
    table = table_in(root)
    assert table.load(offsets(5)) == offsets(5)
    assert table.loaded_from is None
    assert content(root) == {}


def test_json_table_saves_and_keeps_previous_version_as_backup(root):
    table = table_in(root)
    for number in (1, 2, 3):
        table.save(offsets(number))
        assert load_from(root) == offsets(number)
    assert content(root) == {NAME: saved(offsets(3)), f"{NAME}.bak": saved(offsets(2))}
    assert table.load(DEFAULT) == offsets(3)
    assert table.loaded_from == table.path == root / NAME
    assert table.quarantined is None


TABLES = [
    TopicConfigSerializeWrapper(
        topic_config_table={"T": TopicConfig(topic_name="T", attributes={"+a": "b"})}
    ),
    SubscriptionGroupWrapper(
        subscription_group_table={"G": SubscriptionGroupConfig(group_name="G")}
    ),
    DelayOffsetSerializeWrapper(offset_table={1: 10, 2: 0}),
]


@pytest.mark.parametrize("value", TABLES, ids=lambda value: type(value).__name__)
def test_json_table_stores_every_body_type(root, value):
    JsonTable(LocalDisk(), root / "table.json", type(value)).save(value)
    assert JsonTable(LocalDisk(), root / "table.json", type(value)).load(type(value)()) == value


def test_json_table_loads_files_written_by_java(root):
    (root / NAME).write_text('{\n\t"offsetTable":{"T@G":{0:12,1:13\n\t\t}\n\t}\n}')
    assert load_from(root).offset_table == {"T@G": {0: 12, 1: 13}}
    (root / "delayOffset.json").write_text('{\n\t"offsetTable":{1:10,2:0}\n}')
    table = JsonTable(LocalDisk(), root / "delayOffset.json", DelayOffsetSerializeWrapper)
    assert table.load(DelayOffsetSerializeWrapper()).offset_table == {1: 10, 2: 0}


@pytest.mark.parametrize(
    "value", [*TABLES, offsets(3), DEFAULT], ids=lambda value: type(value).__name__
)
def test_flipped_bit_never_loads_as_another_table(root, value):
    data = saved(value)
    told = 0
    bits = some(range(8 * len(data)), "ROCKETPOLL_FLIPPED_BITS", 400)
    for bit in bits:
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        (root / NAME).write_bytes(changed)
        table = JsonTable(LocalDisk(), root / NAME, type(value))
        try:
            assert table.load(type(value)()) == value
        except DamagedTable as error:
            told += 1
            assert str(root / NAME) in str(error)
    assert told > len(bits) // 2


def test_table_without_checksum_is_accepted_and_wrong_checksum_refused(root):
    table = table_in(root)
    (root / NAME).write_bytes(encode_body(offsets(1)))
    assert (table.load(DEFAULT), table.has_checksum) == (offsets(1), False)
    table.save(offsets(2))
    assert (table.load(DEFAULT), table.has_checksum) == (offsets(2), True)
    (root / NAME).write_bytes(saved(offsets(2)).replace(b'"0":2', b'"0":3'))
    assert (table.load(DEFAULT), table.has_checksum) == (offsets(1), False)
    assert "remove it after editing the file by hand" in table.quarantined.reason


@pytest.mark.parametrize("name", [NAME, f"{NAME}.bak"])
def test_members_that_this_release_does_not_know_are_named_once(root, caplog, name):
    newer = with_checksum(encode_body(offsets(1))[:-1] + b',"colour":1,"lines\nfeed":2}')
    (root / name).write_bytes(newer)
    table = table_in(root)
    for _ in range(2):
        assert table.load(DEFAULT) == offsets(1)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{root / name}: the next save drops members that are unknown here")
    assert ": 'colour', 'lines\\nfeed'. To keep them, stop the broker" in line
    table.save(offsets(2))
    assert table_in(root).load(DEFAULT) == offsets(2)
    assert len(caplog.records) == 1


def test_unknown_members_are_logged_up_to_a_limit(root, caplog):
    many = {f"name{number:03d}": number for number in range(900)}
    (root / NAME).write_text(json.dumps({"offsetTable": {}, **many}))
    assert table_in(root).load(DEFAULT) == DEFAULT
    assert "'name000', 'name001'" in caplog.text
    assert "'name007' and 892 more. To keep them, stop the broker" in caplog.text


def test_unconfirmed_temporary_file_is_never_loaded(root):
    (root / f"{NAME}.tmp").write_bytes(saved(offsets(1)))
    assert load_from(root) == DEFAULT


def test_unreadable_table_value_is_refused_before_saving(root):
    table = table_in(root)
    table.save(offsets(1))
    before = content(root)
    for impossible in (1 << 63, 1 << 64, "one"):
        with pytest.raises(BodyError):
            table.save(ConsumerOffsetSerializeWrapper(offset_table={"T@G": {0: impossible}}))
    assert content(root) == before


def test_concurrent_table_saves_leave_a_table_of_one_of_them(root):
    table = table_in(root)
    threads = [
        threading.Thread(target=table.save, args=(offsets(number),)) for number in range(1, 9)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert number_of(load_from(root)) in range(1, 9)
    assert not (root / f"{NAME}.tmp").exists()


# ---- damage

WHOLE = saved(offsets(2))
DAMAGE = {
    "empty": b"",
    "blank": b" \n",
    "zeros": bytes(len(WHOLE)),
    "cut": WHOLE[:-1],
    "garbage behind": WHOLE + b"}\0",
    "part of an older one behind": WHOLE + WHOLE[-9:],
    "no text": b"\xff\xfe",
    "no object": b"[]",
    "null": b"null",
    "another type": b'{"offsetTable":{"T@G":[1]}}',
    "too deep": b"[" * 100_000,
}
damages = pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())


@damages
def test_damaged_table_is_quarantined_and_backup_loaded(root, damage):
    table_in(root).save(offsets(1))
    table_in(root).save(offsets(2))
    (root / NAME).write_bytes(damage)
    table = table_in(root)
    assert table.load(DEFAULT) == offsets(1)
    assert table.loaded_from == root / f"{NAME}.bak"
    assert table.quarantined.path == root / f"{NAME}.corrupt"
    assert "needed" in table.quarantined.reason
    assert table.quarantined.path.read_bytes() == damage
    table.save(offsets(3))
    assert load_from(root) == offsets(3)
    assert content(root)[f"{NAME}.bak"] == saved(offsets(1))
    assert table.load(DEFAULT) == offsets(3)
    assert table.quarantined is None


@damages
@pytest.mark.parametrize("missing", ["", ".bak", "neither"])
def test_unreadable_table_and_backup_are_refused_unchanged(root, damage, missing):
    for suffix in ("", ".bak"):
        if suffix != missing:
            (root / f"{NAME}{suffix}").write_bytes(damage)
    (root / f"{NAME}.tmp").write_bytes(saved(offsets(3)))
    before = content(root)
    table = table_in(root)
    for use in (table.load, table.save, table.load):
        with pytest.raises(DamagedTable) as caught:
            use(offsets(4))
    text = str(caught.value)
    assert f"{root / NAME} cannot be read (" in text
    assert f"backup {root / NAME}.bak (" in text
    assert ("it is missing" in text) == (missing != "neither")
    assert f"Put a good copy at {root / NAME}" in text
    assert content(root) == before


def test_repaired_table_is_loaded_after_refusal(root):
    (root / NAME).write_bytes(b"")
    table = table_in(root)
    with pytest.raises(DamagedTable):
        table.load(DEFAULT)
    (root / NAME).write_bytes(saved(offsets(1)))
    assert table.load(DEFAULT) == offsets(1)


def test_save_without_load_keeps_the_sound_backup(root):
    table_in(root).save(offsets(1))
    table_in(root).save(offsets(2))
    (root / NAME).write_bytes(b"")
    table = table_in(root)
    table.save(offsets(3))
    assert content(root)[f"{NAME}.bak"] == saved(offsets(1))
    assert table.quarantined.path.read_bytes() == b""


def test_quarantine_keeps_earlier_quarantined_files(root):
    for number, damage in enumerate((b"first", b"second", b"third"), 1):
        table_in(root).save(offsets(number))
        table_in(root).save(offsets(number))
        (root / NAME).write_bytes(damage)
        load_from(root)
    found = content(root)
    assert [found[f"{NAME}.corrupt{number}"] for number in ("", "-2", "-3")] == [
        b"first",
        b"second",
        b"third",
    ]


def test_lost_file_counts_as_damaged_and_missing_permission_does_not(root):
    table_in(root).save(offsets(1))
    table_in(root).save(offsets(2))

    class Unreadable(LocalDisk):
        code = errno.EACCES

        def read(self, path):
            if path.name == NAME:
                raise OSError(self.code, os.strerror(self.code), str(path))
            return super().read(path)

    disk = Unreadable()
    with pytest.raises(PermissionError):
        table_in(root, disk).load(DEFAULT)
    assert (root / NAME).exists()
    disk.code = errno.EIO
    table = table_in(root, disk)
    assert table.load(DEFAULT) == offsets(1)
    assert os.strerror(errno.EIO) in table.quarantined.reason


@given(data=st.binary(max_size=200) | st.text('{}[]:,"0afl$ \\.-@', max_size=60).map(str.encode))
@settings(max_examples=300, deadline=None)
def test_load_of_random_bytes_returns_table_or_raises(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("config")
    (root / NAME).write_bytes(data)
    try:
        assert isinstance(load_from(root), ConsumerOffsetSerializeWrapper)
    except DamagedTable:
        assert content(root) == {NAME: data}
    (root / f"{NAME}.bak").write_bytes(WHOLE)
    load_from(root)
    assert data in content(root).values()


# ---- failing disks

SAVE = ["write_whole", "rename", "rename", "flush_directory"]


def test_table_save_takes_four_disk_operations(root):
    disk = FaultyDisk(LocalDisk())
    table = table_in(root, disk)
    table.save(offsets(1))
    table.save(offsets(2))
    assert [each.kind for each in disk.operations] == SAVE + SAVE


@pytest.mark.parametrize("prefix", [0, 1, 700])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("number", range(len(SAVE)))
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_disk_error_during_a_save_leaves_old_or_new_table(root, error, number, persistent, prefix):
    disk = FaultyDisk(LocalDisk())
    table = table_in(root, disk)
    table.save(offsets(1))
    table.save(offsets(2))
    done = len(disk.operations)
    disk.plan = [Fault(done + number, persistent=persistent, error=error, prefix=prefix)]
    for value in (offsets(3), offsets(4)) if persistent else (offsets(3),):
        with pytest.raises(OSError, match=os.strerror(error)):
            table.save(value)
        assert number_of(load_from(root)) in (2, 3, 4)
    disk.plan = []
    table.save(offsets(5))
    assert table.load(DEFAULT) == load_from(root) == offsets(5)


def test_save_on_a_full_disk_is_refused_until_there_is_space(root):
    disk = FaultyDisk(LocalDisk(), capacity=1 << 20)
    table = table_in(root, disk)
    table.save(offsets(1))
    disk.capacity = disk.used
    for _ in range(3):
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            table.save(offsets(6))
        assert load_from(root) == offsets(1)
    disk.capacity = 1 << 20
    table.save(offsets(6))
    assert load_from(root) == offsets(6)


def test_load_that_cannot_quarantine_or_flush_raises_and_loses_nothing(root):
    table_in(root).save(offsets(1))
    table_in(root).save(offsets(2))
    (root / NAME).write_bytes(b"")
    for number in range(2):
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            table_in(root, FaultyDisk(LocalDisk(), [Fault(number)])).load(DEFAULT)
        assert load_from(root) == offsets(1)
        (root / NAME).write_bytes(b"")


# ---- power losses


def assert_each_power_loss_leaves_a_table(disk, returned, tmp_path, dice, states=STATES):
    """Check that each power loss leaves the last value whose save returned, or a later one.
    ``returned`` has, for each save in order, its number and the count of operations when it
    returned; None if it failed."""
    for point in range(len(disk.operations) + 1):
        before = [at for at, (_, done) in enumerate(returned) if done is not None and done <= point]
        newest = before[-1] if before else None
        allowed = (
            [number for number, _ in returned[newest:]]
            if before
            else [0, *(each[0] for each in returned)]
        )
        log = disk.log(point if point < len(disk.operations) else None)
        for state in power_loss_states(log, dice, states, tmp_path):
            root = state / "config"
            number = number_of(load_from(root))
            assert number in allowed, (point, number, allowed)
            again = table_in(root)
            again.save(offsets(99))
            assert load_from(root) == offsets(99)


def test_power_loss_while_replacing_a_damaged_table_leaves_the_backup_or_the_new_one(tmp_path):
    recorded = tmp_path / "recorded"
    (recorded / "config").mkdir(parents=True)
    table_in(recorded / "config").save(offsets(1))
    table_in(recorded / "config").save(offsets(2))
    (recorded / "config" / NAME).write_bytes(b"")
    disk = RecordingDisk(LocalDisk(), recorded)
    table = table_in(recorded / "config", disk)
    assert table.load(DEFAULT) == offsets(1)
    returned = [(1, 0)]
    table.save(offsets(2))
    returned.append((2, len(disk.operations)))
    assert_each_power_loss_leaves_a_table(disk, returned, tmp_path, random.Random(1))


steps = st.lists(
    st.sampled_from(["save", "save", "load", "restart", "fail"]), min_size=1, max_size=12
)


@given(steps=steps, dice=st.randoms(use_true_random=False), prefix=st.sampled_from([0, 1, 600]))
@settings(max_examples=count("ROCKETPOLL_STORIES", 25, wide=60), deadline=None)
def test_power_loss_after_any_table_history_leaves_a_table(tmp_path_factory, steps, dice, prefix):
    tmp_path = tmp_path_factory.mktemp("history")
    recorded = tmp_path / "recorded"
    (recorded / "config").mkdir(parents=True)
    faulty = FaultyDisk(LocalDisk())
    disk = RecordingDisk(faulty, recorded)
    table = table_in(recorded / "config", disk)
    returned = []
    for number, step in enumerate(steps, 1):
        faulty.plan = []
        if step == "restart":
            table = table_in(recorded / "config", disk)
        elif step == "load":
            number_of(table.load(DEFAULT))
        else:
            if step == "fail":
                faulty.plan = [Fault(len(faulty.operations) + dice.randrange(4), prefix=prefix)]
            done = None
            with suppress(OSError):
                table.save(offsets(number))
                done = len(disk.operations)
            returned.append((number, done))
    faulty.plan = []
    assert_each_power_loss_leaves_a_table(disk, returned, tmp_path, dice, states=4)


def test_power_loss_check_of_tables_detects_a_missing_directory_flush(tmp_path):
    class Forgetful(RecordingDisk):
        def flush_directory(self, path):
            pass

    recorded = tmp_path / "recorded"
    (recorded / "config").mkdir(parents=True)
    disk = Forgetful(LocalDisk(), recorded)
    table = table_in(recorded / "config", disk)
    table.save(offsets(1))
    returned = [(1, len(disk.operations))]
    table.save(offsets(2))
    returned.append((2, len(disk.operations)))
    with pytest.raises(AssertionError):
        assert_each_power_loss_leaves_a_table(disk, returned, tmp_path, random.Random(1))
