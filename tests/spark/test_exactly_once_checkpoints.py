"""Checkpoints that were rolled back or copied, and invisible manifests: each row still counts once,
or the query fails with the reason."""

import shutil

import pytest
from support.spark.sink_fixture import ALL, BODIES, ONCE

pytestmark = pytest.mark.deep
EITHER_WAY = pytest.mark.parametrize("way", [ONCE, ALL], ids=["manifests", "staged"])


def sent_and_copied(room, bodies, **options):
    """Send these messages, and copy each in its own batch."""
    for body in bodies:
        room.send("in", body)
        room.copy(**options)


@pytest.mark.parametrize(
    ("way", "remedy"),
    [(ONCE, "Restore the latest checkpoint"), (ALL, "restore the latest")],
    ids=["manifests", "staged"],
)
def test_older_checkpoint_copy_is_detected_and_no_row_counts_twice(room, way, remedy):
    room.copy(**way)
    older = room.checkpoint.with_name("older")
    shutil.copytree(room.checkpoint, older)
    sent_and_copied(room, ["6", "7"], **way)
    shutil.rmtree(room.checkpoint)
    older.rename(room.checkpoint)
    room.send("in", "8")
    for _ in range(2):
        error = room.refusal(**way)
        assert "the checkpoint is an older copy" in error.lower()
        assert remedy in error
        assert room.counting() == [*BODIES, "6", "7"]


@EITHER_WAY
def test_two_queries_with_copies_of_a_checkpoint_are_reported(room, way):
    room.copy(**way)
    copy = room.checkpoint.with_name("copy")
    shutil.copytree(room.checkpoint, copy)
    sent_and_copied(room, ["6"], **way)
    room.send("in", "7")
    error = room.refusal(**way, checkpointLocation=str(copy))
    assert "with other rows. Another driver uses this checkpoint, or a copy" in error
    room.copy(**way)
    room.send("in", "8")
    error = room.refusal(**way, checkpointLocation=str(copy))
    assert "another driver" in error
    assert room.counting() == [*BODIES, "6", "7"]
    room.copy(**way)
    assert room.counting() == [*BODIES, "6", "7", "8"]
