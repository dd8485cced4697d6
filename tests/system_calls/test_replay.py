"""Recorded system calls are replayed into a model of the disk."""

import os
from pathlib import PurePath

import pytest
from support.disks.power_loss import PowerLossModel, every_state
from system_calls.replay import Replay, Unseen

CREATE = os.O_CREAT | os.O_RDWR


@pytest.fixture
def model():
    return PowerLossModel()


@pytest.fixture
def take(model):
    replay = Replay(model)

    def take(*calls):
        for call in calls:
            replay.take(*call)

    return take


def found(model):
    trees = every_state(lambda choices: model.draw(choices, choices))
    return {
        frozenset((path.name, image and image.content) for path, image in tree.items())
        for tree in trees
    }


def test_replayed_file_is_durable_once_it_and_its_directory_are_flushed(model, take):
    take(("open", 1, "log", CREATE), ("write", 1, 0, b"data"))
    take(("open", 2, "", os.O_RDONLY))
    take(("begin_flush", 3, 1), ("end_flush", 3))
    assert found(model) == {frozenset(), frozenset({("log", b"data")})}
    take(("begin_flush", 4, 2), ("end_flush", 4))
    assert found(model) == {frozenset({("log", b"data")})}


def test_replayed_handle_follows_its_file_through_a_rename(model, take):
    take(("open", 1, "a", CREATE), ("rename", "a", "b"), ("open", 2, "a", CREATE))
    take(("write", 1, 0, b"old"), ("write", 2, 0, b"new"))
    assert {path.name: image.content for path, image in model.seen().items()} == {
        "a": b"new",
        "b": b"old",
    }


def test_replayed_reopened_file_keeps_its_content_unless_truncated(model, take):
    take(
        ("open", 1, "a", CREATE),
        ("write", 1, 0, b"old"),
        ("open", 2, "a", CREATE),
        ("write", 2, 3, b"er"),
    )
    assert model.seen()[PurePath("a")].content == b"older"
    take(("open", 3, "a", CREATE | os.O_TRUNC))
    assert model.seen()[PurePath("a")].content == b""


def test_replayed_failed_or_unfinished_flush_guarantees_nothing(model, take):
    take(("open", 1, "a", CREATE), ("begin_flush", 2, 1), ("fail_flush", 2), ("begin_flush", 3, 1))
    assert found(model) == {frozenset(), frozenset({("a", b"")})}


def test_replayed_directories_are_created_and_removed(model, take):
    take(
        ("make_directory", "d"),
        ("make_directory", "d/e"),
        ("open", 1, "d/a", CREATE),
        ("truncate", 1, 3),
    )
    take(("delete", "d/e"))
    seen = {path.as_posix(): image and image.content for path, image in model.seen().items()}
    assert seen == {"d": None, "d/a": bytes(3)}


def test_unseen_system_call_spoils_the_replay(take):
    with pytest.raises(Unseen, match="past the recorder"):
        take(("unseen", "os.link", "a", "b"))
