"""A start of a small store detects any wrong entry of a queue or of the index."""

import shutil

import pytest
from support.stores.small_store import bodies, message, messages_of, open_store, read_all, wants
from support.suite.log_records import lines_of

from rmq_spark.wire.names import SCHEDULE_TOPIC
from rocketpoll.broker.store.errors import UnreadableFile

COUNT = 20
QUEUE_SETTINGS = {"mapped_file_size_consume_queue": 20 * 100}


@pytest.fixture(params=["few", "many"])
def good(tmp_path, request, monkeypatch):
    """Return a stopped store whose records are compared a few or many at a time."""
    if request.param == "many":
        monkeypatch.setattr("rocketpoll.broker.store.startup.consistency_check.FEW_MAX", 0)
        monkeypatch.setattr("rocketpoll.broker.store.bulk.bulk_tools.are_loaded", lambda: True)
    store = open_store(tmp_path / "good", **QUEUE_SETTINGS)
    for number in range(COUNT):
        store.put_message(message(number, tags="a", keys=f"k{number}", queue_id=number % 2))
    store.shutdown()
    return tmp_path / "good"


def found(store):
    """Return the results of each kind of lookup."""
    plain = [bodies(store, "T", queue_id) for queue_id in (0, 1)]
    tagged = [
        [
            each.body.decode()
            for each in messages_of(store.get_message("T", queue_id, 0, message_filter=wants("a")))
        ]
        for queue_id in (0, 1)
    ]
    keyed = [len(store.query_message("T", f"k{number}", 9, 0, 1 << 62)) for number in range(COUNT)]
    return plain, tagged, keyed


ALL = (
    [[str(number) for number in range(queue_id, COUNT, 2)] for queue_id in (0, 1)],
    [[str(number) for number in range(queue_id, COUNT, 2)] for queue_id in (0, 1)],
    [1] * COUNT,
)


def test_consistent_store_is_left_unchanged_and_silent_at_start(good, caplog):
    before = {path: path.stat().st_mtime_ns for path in good.rglob("0*")}
    store = open_store(good, **QUEUE_SETTINGS)
    assert found(store) == ALL
    assert {path: path.stat().st_mtime_ns for path in good.rglob("0*")} == before
    store.shutdown()
    assert lines_of(caplog, "rocketpoll.broker.store") == []


def test_changed_delay_levels_are_no_damage(tmp_path, caplog):
    """Entries of delayed messages contain due times, computed from the delays at that time."""
    store = open_store(tmp_path, message_delay_level_ms=(3_600_000,), **QUEUE_SETTINGS)
    for number in range(COUNT):
        store.put_message(message(number, topic=SCHEDULE_TOPIC))
    store.shutdown()
    store = open_store(tmp_path, message_delay_level_ms=(7_200_000,), **QUEUE_SETTINGS)
    assert bodies(store, SCHEDULE_TOPIC) == [str(number) for number in range(COUNT)]
    store.shutdown()
    assert lines_of(caplog, "rocketpoll.broker.store") == []
    path = tmp_path / "consumequeue" / SCHEDULE_TOPIC / "0" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[3 * 20 + 7] ^= 1  # flips a bit of a position
    path.write_bytes(data)
    open_store(tmp_path, message_delay_level_ms=(3_600_000,), **QUEUE_SETTINGS).shutdown()
    assert "is damaged" in caplog.text


@pytest.mark.parametrize("room", ["consumequeue", "index"])
def test_flipped_bit_in_queue_or_index_is_repaired_and_logged(good, room, tmp_path, caplog, dice):
    name = next(path.relative_to(good) for path in (good / room).rglob("*") if path.is_file())
    data = (good / name).read_bytes()
    written = [at for at, byte in enumerate(data) if byte]
    said = 0
    for at in dice.sample(written, 25):
        again = shutil.copytree(good, tmp_path / "again")
        changed = bytearray(data)
        changed[at] ^= 1 << dice.randrange(8)
        (again / name).write_bytes(changed)
        caplog.clear()
        store = open_store(again, **QUEUE_SETTINGS)
        assert found(store) == ALL, at
        said += f"{again / room}" in caplog.text
        store.shutdown()
        shutil.rmtree(again)
    assert said > 5


def test_damaged_entries_of_a_large_store_are_an_error_when_read(good):
    large = {**QUEUE_SETTINGS, "check_whole_log_bytes": 0}
    path = good / "consumequeue" / "T" / "0" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[3 * 20 : 7 * 20] = bytes(4 * 20)
    path.write_bytes(data)
    store = open_store(good, **large)
    for wanted in (None, wants("a"), wants("b")):
        at = 0
        while at < 3:  # messages before the damage are served
            at = store.get_message("T", 0, at, message_filter=wanted).next_begin_offset
        assert at == 3
        with pytest.raises(UnreadableFile, match=r"delete /.*, and start"):
            store.get_message("T", 0, at, message_filter=wanted)
    with pytest.raises(UnreadableFile, match=r"delete /.*, and start"):
        store.offset_by_time("T", 0, 1)
    assert len(read_all(store, "T", 1)) == COUNT // 2
    store.shutdown()
    shutil.rmtree(path.parent)
    again = open_store(good, **large)
    assert found(again) == ALL
    again.shutdown()
