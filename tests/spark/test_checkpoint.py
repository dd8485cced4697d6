"""Offsets are read from checkpoints."""

import json

import pytest

from rmq_spark.spark.errors import CheckpointError
from rmq_spark.spark.monitoring.checkpoint import read_checkpoint, starting_offsets
from rmq_spark.spark.options.start_positions import OffsetPosition, parse_positions
from rmq_spark.spark.plan.source_offset import QueuePosition
from rmq_spark.wire.message_queue import MessageQueue

QUEUE = MessageQueue("T", "b", 0)


def offset(at):
    return json.dumps(
        {"v": 1, "offsets": {"T": {"b": {"0": at}}}, "stored": {"T": {"b": {"0": 5}}}}
    )


@pytest.fixture
def checkpoint(tmp_path):
    """Write three batches, two of them committed; the first source is ours, the second
    another one."""
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    for number in range(3):
        lines = [
            "v1",
            json.dumps({"batchTimestampMs": 1000 + number}),
            offset(10 * number),
            '{"rate": 3}',
            "-",
        ]
        (tmp_path / "offsets" / str(number)).write_text("\n".join(lines), encoding="utf-8")
        (tmp_path / "offsets" / f".{number}.crc").write_bytes(b"crc")
        if number < 2:
            (tmp_path / "commits" / str(number)).write_text("v1\n{}", encoding="utf-8")
    return tmp_path


def test_checkpoint_batches_have_end_offsets(checkpoint):
    batches = read_checkpoint(checkpoint)
    assert [(b.batch_id, b.is_committed, b.timestamp_ms) for b in batches] == [
        (0, True, 1000),
        (1, True, 1001),
        (2, False, 1002),
    ]
    ends = [batch.offsets[0].positions[QUEUE] for batch in batches]
    assert ends == [QueuePosition(0, 5), QueuePosition(10, 5), QueuePosition(20, 5)]
    assert all(set(batch.offsets) == {0} for batch in batches)


def test_named_sources_are_found_by_their_names(checkpoint):
    """Spark 4.2 and later write names if the query names its sources."""
    for path in (checkpoint / "offsets").glob("[0-9]"):
        _, metadata, ours, other, _ = path.read_text(encoding="utf-8").splitlines()
        lines = ["v2", metadata, f"rate:{other}", f"orders:{ours}", f"0:{ours}", "none:-"]
        path.write_text("\n".join(lines), encoding="utf-8")
    assert [list(batch.offsets) for batch in read_checkpoint(checkpoint)] == [["orders", 0]] * 3
    assert starting_offsets(checkpoint, source="orders") == '{"T": {"b": {"0": 10}}}'
    assert starting_offsets(checkpoint) == '{"T": {"b": {"0": 10}}}'
    with pytest.raises(
        CheckpointError,
        match=r"(?m)source rate of batch 1 is not a rocketpoll source\. Use one of.*: orders, 0$",
    ):
        starting_offsets(checkpoint, source="rate")


@pytest.mark.parametrize("form", [str, lambda path: f"file://{path}", lambda path: path])
def test_checkpoint_batch_is_converted_to_starting_offsets(checkpoint, form):
    assert starting_offsets(form(checkpoint)) == '{"T": {"b": {"0": 10}}}'
    text = starting_offsets(form(checkpoint), batch_id=2)
    assert parse_positions("startingOffsets", text).position_of("T", "b", 0) == OffsetPosition(20)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"batch_id": 7}, "has the batches 0 to 2, not 7"),
        ({"source": 1}, "source 1 of batch 1 is not a rocketpoll source. Use one .*: 0"),
    ],
)
def test_missing_checkpoint_part_is_reported(checkpoint, more, said):
    with pytest.raises(CheckpointError, match=said):
        starting_offsets(checkpoint, **more)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is damaged"),
        ("v1", "is damaged"),
        ("v3\n{}\n{}", "is of version v3"),
        ("v1\n{\n{}", "is damaged"),
        ("v1\n{}\n" + offset(1).replace('"v": 1', '"v": 9'), "version 9"),
    ],
)
def test_damaged_checkpoint_batch_is_named_in_the_error(checkpoint, text, said):
    (checkpoint / "offsets" / "2").write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=said):
        read_checkpoint(checkpoint)


def test_directory_that_is_no_checkpoint_is_refused(tmp_path, checkpoint):
    with pytest.raises(CheckpointError, match="is not the checkpoint of a query"):
        read_checkpoint(tmp_path / "commits")
    with pytest.raises(CheckpointError, match="is not a local directory: give a Spark session"):
        read_checkpoint("s3a://bucket/checkpoint")
    for path in (checkpoint / "commits").iterdir():
        path.unlink()
    with pytest.raises(CheckpointError, match=r"no batch of .* has been committed"):
        starting_offsets(checkpoint)
