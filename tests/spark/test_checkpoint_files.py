"""Checkpoint files are found on this machine, or wherever a Spark session can read."""

import json
import shutil

import pytest

from rmq_spark.spark.errors import CheckpointError
from rmq_spark.spark.monitoring.checkpoint import CheckpointFiles, read_checkpoint, starting_offsets

pytestmark = pytest.mark.deep

OFFSET = json.dumps({"v": 1, "offsets": {"T": {"b": {"0": 7}}}, "stored": {"T": {"b": {"0": 5}}}})


@pytest.fixture
def checkpoint(tmp_path):
    """Write three batches, two of them committed."""
    for number in range(3):
        for folder, text in (
            ("offsets", f'v1\n{{"batchTimestampMs": 1}}\n{OFFSET}'),
            ("commits", "v1\n{}"),
        ):
            (tmp_path / folder).mkdir(exist_ok=True)
            if folder == "offsets" or number < 2:
                (tmp_path / folder / str(number)).write_text(text, encoding="utf-8")
                (tmp_path / folder / f".{number}.crc").write_bytes(b"crc")
    return tmp_path


def test_local_checkpoint_needs_no_spark_session(checkpoint):
    for location in (checkpoint, str(checkpoint), checkpoint.as_uri()):
        files = CheckpointFiles(location)
        assert (sorted(files.offsets()), files.committed()) == ([0, 1, 2], {0, 1})
    assert CheckpointFiles(checkpoint / "offsets").offsets() is None


@pytest.mark.parametrize("name", ["a%20b", "a b", "a#b", "a?b", "ü"])
def test_path_of_a_file_uri_is_taken_literally(tmp_path, checkpoint, name):
    place = tmp_path / "checkpoints" / name
    shutil.copytree(checkpoint, place, ignore=lambda *_: ["checkpoints"])
    for scheme in ("file:", "file://", "file://localhost"):
        files = CheckpointFiles(f"{scheme}{place}")
        assert files.committed() == {0, 1}


def test_remote_checkpoint_needs_a_spark_session():
    with pytest.raises(CheckpointError, match="is not a local directory: give a Spark session"):
        CheckpointFiles("hdfs:///queries/totals")


def test_checkpoint_on_another_file_system_is_read_by_spark(spark, checkpoint):
    settings = spark._jsc.hadoopConfiguration()
    settings.set("fs.viewfs.mounttable.away.link./queries", checkpoint.parent.as_uri())
    location = f"viewfs://away/queries/{checkpoint.name}"
    assert read_checkpoint(location, spark) == read_checkpoint(checkpoint)
    assert starting_offsets(location, spark=spark) == starting_offsets(checkpoint)
    with pytest.raises(
        CheckpointError, match=r"viewfs://away/queries/none is not the checkpoint of a query"
    ):
        read_checkpoint("viewfs://away/queries/none", spark)
    with pytest.raises(CheckpointError, match=r"nowhere://x/offsets cannot be read: .*nowhere"):
        read_checkpoint("nowhere://x", spark)
    for path in (checkpoint / "commits").iterdir():
        path.unlink()
    assert not any(batch.is_committed for batch in read_checkpoint(location, spark))
