"""Checkpoints of queries in the console: their batches and their lag."""

import json

import pytest
from support.programs.web_console import served, staged


@pytest.fixture
def stage(cluster):
    return staged(cluster)


@pytest.fixture
def checkpoint(tmp_path, stage):
    """Return a checkpoint of three batches: the last is not committed, the second ends before 5 and
    4."""
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    for number, ends in enumerate([(1, 1), (5, 4), (6, 6)]):
        queues = {str(queue): end for queue, end in enumerate(ends)}
        offset = json.dumps({"v": 1, "offsets": {stage.topic: {stage.broker: queues}}})
        metadata = json.dumps({"batchTimestampMs": 1_767_225_600_000})
        (tmp_path / "offsets" / str(number)).write_text(
            f"v1\n{metadata}\n{offset}", encoding="utf-8"
        )
        if number < 2:
            (tmp_path / "commits" / str(number)).write_text("v1\n{}", encoding="utf-8")
    return str(tmp_path)


def test_checkpoint_page_shows_its_batches_and_lag(addresses, checkpoint, stage):
    with served(addresses[0], checkpoints=(checkpoint,)) as browser:
        listed = browser.read("/checkpoints")
        assert f"{checkpoint} 1" in listed.text
        page = browser.read("/checkpoints/0")
        assert "Behind 3 Last committed batch 1" in page.text
        assert f"0 {stage.topic} {stage.broker}:0 5 6 1" in page.text
        assert f"0 {stage.topic} {stage.broker}:1 4 6 2" in page.text
        assert "not committed 3" in page.text
        assert browser.get("/checkpoints/1").status == 404


def test_checkpoint_page_marks_a_deleted_topic(addresses, checkpoint, stage, run):
    run("topic", "delete", stage.topic, "--yes")
    with served(addresses[0], checkpoints=(checkpoint,)) as browser:
        assert f"{stage.broker}:0 5 deleted" in browser.read("/checkpoints/0").text


def test_unreadable_checkpoint_page_says_so(addresses, tmp_path):
    with served(addresses[0], checkpoints=(str(tmp_path / "nothing"),)) as browser:
        assert "This checkpoint cannot be read" in browser.read("/checkpoints/0").text
        assert browser.get("/checkpoints").status == 200


def test_checkpoints_page_without_checkpoints_says_how_to_add_some(console):
    assert "rocketpoll console --checkpoint" in console.read("/checkpoints").text
