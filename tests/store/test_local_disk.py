"""What `LocalDisk` says is done has been asked of the system: seen below Python's `os`."""

from __future__ import annotations

import pytest
from every_state import every_state
from system_calls.recorded_programs import RecordedProgram
from system_calls.rules import Rule

PROGRAM = """
    from broker.store.disk import LocalDisk
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
def test_whatever_a_power_loss_takes_it_takes_nothing_of_what_is_done(tmp_path, rules):
    with RecordedProgram(tmp_path, PROGRAM, *rules) as program:
        assert program.ended() == ("", 0)
        model = program.model()
    for tree in every_state(lambda choices: model.draw(choices, choices)):
        assert {path.as_posix(): image and image.content for path, image in tree.items()} == DONE
