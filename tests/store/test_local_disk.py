"""Operations that `LocalDisk` reports as done were requested of the system, below Python's `os`."""

import os
import socket
from pathlib import Path

import pytest
from support.disks.power_loss import every_state
from support.stores.small_store import bodies, log_files, message, open_store
from system_calls.recorded_programs import RecordedProgram
from system_calls.rules import Rule

from rocketpoll.broker.store.files.disk import LocalDisk

PROGRAM = """
    from rocketpoll.broker.store.files.disk import LocalDisk
    local = LocalDisk()
    local.make_directory(disk / "store")
    local.flush_directory(disk)
    log = local.create(disk / "store" / "log", 400)
    log.write(b"0123456789" * 30, 50)
    log.flush()
    local.flush_directory(disk / "store")
    local.write_whole(disk / "store" / "table.tmp", b"a table " * 40)
    local.rename(disk / "store" / "table.tmp", disk / "store" / "table")
    local.flush_directory(disk / "store")
    log.write(b"more", 396)
    log.flush()
"""
DONE = {
    "store": None,
    "store/log": bytes(50) + b"0123456789" * 30 + bytes(46) + b"more",
    "store/table": b"a table " * 40,
}


@pytest.mark.parametrize(
    "rules", [(), (Rule("short", "write"),)], ids=["a system that does what it can", "short writes"]
)
def test_power_loss_after_disk_operations_keeps_them(tmp_path, rules):
    with RecordedProgram(tmp_path, PROGRAM, *rules) as program:
        assert program.ended() == ("", 0)
        model = program.model()
    for tree in every_state(lambda choices: model.draw(choices, choices)):
        assert {path.as_posix(): image and image.content for path, image in tree.items()} == DONE


def something_else(kind, path):
    """Create something that is not a file under this name."""
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a directory":
        path.mkdir()
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    else:
        path.symlink_to({"a link to nowhere": "nowhere", "a link to a device": "/dev/zero"}[kind])


KINDS = ["a pipe", "a directory", "a socket", "a link to nowhere", "a link to a device"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", KINDS)
def test_special_file_in_place_of_a_table_is_an_error(tmp_path, kind):
    path = tmp_path / "topics.json"
    something_else(kind, path)
    with pytest.raises(OSError, match=str(path)) as raised:
        LocalDisk().read(path)
    assert not isinstance(raised.value, FileNotFoundError)
    if kind != "a link to nowhere":  # a write through that link creates a file
        with pytest.raises(OSError, match=str(path)):
            LocalDisk().write_whole(path, b"x")


@pytest.mark.parametrize("kind", KINDS)
def test_directory_with_other_things_than_files_is_refused(tmp_path, kind):
    something_else(kind, tmp_path / "0")
    if kind == "a directory":
        assert LocalDisk().list_directories([tmp_path]) == [{"0": None}]
    else:
        with pytest.raises(OSError, match=str(tmp_path / "0")):
            LocalDisk().list_directories([tmp_path])


def test_consume_queues_use_no_memory_maps(tmp_path):
    """A process usually has at most 65,530 maps, fewer than one for each queue."""
    store = open_store(tmp_path, mapped_file_size_commit_log=1 << 20, max_message_size=1 << 19)
    for queue_id in range(100):
        store.put_message(message("x" * 5_000, queue_id=queue_id))
    for queue_id in range(100):
        assert len(bodies(store, "T", queue_id)) == 1
    maps = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    assert [name for name in maps if name.startswith(f"{tmp_path}/consumequeue")] == []
    assert sum(name.startswith(str(tmp_path)) for name in maps) <= len(log_files(store))
    store.shutdown()
