"""The checkpoint file."""

import struct

import pytest
from support.disks.faulty_disk import RecordingDisk, power_loss_states

from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.log.checkpoint_file import (
    CHECKPOINT_BYTES,
    Checkpoint,
    load_checkpoint,
    save_checkpoint,
)

FIRST, SECOND = Checkpoint(1000, 1_700_000_000_000), Checkpoint(2000, 1_700_000_000_500)


def test_checkpoint_save_load_round_trip(tmp_path):
    save_checkpoint(LocalDisk(), tmp_path / "checkpoint", FIRST)
    assert load_checkpoint(LocalDisk(), tmp_path / "checkpoint") == FIRST


def test_checkpoint_file_has_rocketmqs_layout(tmp_path):
    save_checkpoint(LocalDisk(), tmp_path / "checkpoint", FIRST)
    data = (tmp_path / "checkpoint").read_bytes()
    assert len(data) == CHECKPOINT_BYTES
    assert struct.unpack_from(">6q", data) == (*[FIRST.store_timestamp] * 3, 1000, 1000, 1000)


@pytest.mark.parametrize("data", [None, b"", bytes(CHECKPOINT_BYTES), bytes(100)])
def test_foreign_checkpoint_file_is_ignored(tmp_path, data):
    if data is not None:
        (tmp_path / "checkpoint").write_bytes(data)
    assert load_checkpoint(LocalDisk(), tmp_path / "checkpoint") is None


def test_checkpoint_overwritten_by_another_program_is_not_used(tmp_path):
    """RocketMQ writes it in place, and may have appended records that we do not know."""
    save_checkpoint(LocalDisk(), tmp_path / "checkpoint", FIRST)
    data = (tmp_path / "checkpoint").read_bytes()
    (tmp_path / "checkpoint").write_bytes(struct.pack(">q", FIRST.store_timestamp + 1) + data[8:])
    assert load_checkpoint(LocalDisk(), tmp_path / "checkpoint") is None


def test_power_loss_during_a_checkpoint_save_leaves_the_old_or_new_one(tmp_path, dice):
    root = tmp_path / "store"
    root.mkdir()
    disk = RecordingDisk(LocalDisk(), root)
    save_checkpoint(disk, root / "checkpoint", FIRST)
    before = len(disk.operations)
    save_checkpoint(disk, root / "checkpoint", SECOND)
    for point in range(before, len(disk.operations) + 1):
        allowed = {FIRST, SECOND} if point < len(disk.operations) else {SECOND}
        for state in power_loss_states(disk.log(point), dice, 20, tmp_path):
            assert load_checkpoint(LocalDisk(), state / "checkpoint") in allowed
