"""Invalid or lost data between an exactly-once sink and its readers gives one readable error, and
no partial batch."""

import errno
import json
import os
import shutil

import pytest
from pyspark.errors import StreamingQueryException
from support.spark.sink_fixture import (
    ALL,
    BODIES,
    ONCE,
    REFUSED,
    deleting,
    on_chunks,
    spoiling,
)
from support.spark.source_fixture import complaint

from rmq_spark.wire.codes import ResponseCode
from rocketpoll import Admin
from rocketpoll.broker.embedded.faults.embedded_disk import EmbeddedDisk
from rocketpoll.broker.processor.extensions.extensions import ExtensionsProcessor
from rocketpoll.broker.processor.request import RequestRejected
from rocketpoll.broker.store.staging.staging_area import StagingArea

pytestmark = pytest.mark.deep


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (on_chunks(lambda data: data[:-1] + bytes([data[-1] ^ 1])), "its CRC is not that of"),
        (on_chunks(lambda data: data[: len(data) // 2]), "is damaged: it has"),
        (on_chunks(lambda _: None), "is not staged"),
        (on_chunks(lambda data: data[:4] + bytes([0, 0, 0, 9]) + data[8:]), "a newer release"),
    ],
    ids=["damaged", "cut", "missing", "newer"],
)
def test_damaged_staged_chunk_fails_the_batch_without_visible_rows(room, spoil, said):
    error = room.refusal(into=spoiling(room, spoil), **ALL)
    assert "batch 0 of query" in error
    assert "is not committed, and none of its rows is visible" in error
    assert said in error
    assert room.seen() == []
    room.copy(**ALL)
    assert room.seen() == room.counting() == BODIES


def test_topic_deleted_between_stage_and_commit_fails_the_batch(room):
    error = room.refusal(into=spoiling(room, deleting()), **ALL)
    assert "topic out was deleted after rows had" in error
    room.broker.create_topic("out", 2)
    assert room.seen() == []
    room.copy(**ALL)
    assert room.seen() == room.counting() == BODIES


def test_topic_deleted_between_send_and_commit_is_data_loss(room):
    room.copy(into=spoiling(room, deleting()), **ONCE)
    room.broker.create_topic("out", 2)
    with pytest.raises(REFUSED, match="DataLoss"):
        room.counting()
    assert room.counting(failOnDataLoss="false") == []


@pytest.mark.parametrize(
    ("changes", "said", "is_passed_over"),
    [
        ({"spans": 5}, "it has no list of spans", True),
        ({"rows": 1}, "its spans are not those that were written", True),
        ({"parts": [99]}, "its part at offset 99 is gone", True),
        ({"v": 9}, "it is of version 9, and this release of rocketpoll reads 1", False),
    ],
    ids=["damaged", "of other rows", "missing part", "newer"],
)
def test_exactly_once_reader_names_an_unreadable_manifest_and_counts_none_of_it(
    room, changes, said, is_passed_over
):
    room.copy(**ONCE)
    (good,) = room.manifests
    room.send("out_COMMITS", json.dumps({**good, "query": "another", **changes}))
    for options in ({}, {"failOnDataLoss": "false"}):
        if options and is_passed_over:
            assert room.counting(**options) == BODIES
            continue
        with pytest.raises(REFUSED) as raised:
            room.counting(**options)
        assert said in complaint(raised)


def test_two_queries_with_one_sink_name_are_reported(room):
    others = str(room.checkpoint) + "-2"
    running = [room.copying(**ALL), room.copying(**ALL, checkpointLocation=others)]
    errors = []
    for each in running:
        try:
            each.ended()
        except StreamingQueryException as error:
            errors.append(str(error))
        each.stop()
    [error] = errors
    assert "If both must write, set option sinkName to another name" in error
    assert room.seen() == room.counting() == BODIES


# ---- unsupported brokers and topics


@pytest.mark.parametrize("way", [ONCE, ALL], ids=["manifests", "staged"])
def test_exactly_once_query_without_its_own_checkpoint_location_is_refused(room, tmp_path, way):
    setting = "spark.sql.streaming.checkpointLocation"
    room.spark.conf.set(setting, str(tmp_path / "of-all"))
    try:
        error = room.refusal(**way, checkpointLocation=None)
    finally:
        room.spark.conf.unset(setting)
    assert "Set option checkpointLocation" in error
    assert room.seen() == []


def test_broker_without_extensions_refuses_visible_to_all_and_supports_manifests(room, monkeypatch):
    def extensions(processor, connection, request):
        raise RequestRejected(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not known here")

    monkeypatch.setattr(ExtensionsProcessor, "extensions", extensions)
    room.broker.restart()
    error = room.refusal(**ALL)
    assert "does not support staged batches" in error
    assert "remove visibleTo" in error
    assert room.seen() == []
    shutil.rmtree(room.checkpoint)
    room.copy(**ONCE)
    assert room.counting() == BODIES


# ---- objects deleted during a write


def test_commits_topic_deleted_before_the_commit_is_recreated_by_the_next_run(
    room,
):
    into = spoiling(room, deleting("out_COMMITS"))
    error = room.refusal(into=into, **ONCE, retryTimeoutMs="300")
    assert "no name server knows the queue of topic out_COMMITS" in error
    room.copy(**ONCE)
    assert room.counting() == BODIES


def test_deleted_commits_topic_is_recreated_where_batches_are_visible_to_all(room):
    room.copy(**ALL)
    with Admin(room.broker.address) as admin:
        admin.delete_topic("out_COMMITS")
    room.send("in", "6")
    room.copy(**ALL)
    assert room.counting() == ["6"]
    assert room.seen() == [*BODIES, "6"]


# ---- full disk


def test_full_disk_during_commit_fails_the_batch_without_visible_rows(room, monkeypatch):
    """The disk fills up after the check of the staged rows."""
    checked, check, full = StagingArea.check_attempts, EmbeddedDisk.check, []

    def checked_and_full(self, *arguments):
        full.append(True)
        return checked(self, *arguments)

    def check_room(self, path, *, needs_room=False):
        if full and needs_room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        check(self, path, needs_room=needs_room)

    monkeypatch.setattr(StagingArea, "check_attempts", checked_and_full)
    monkeypatch.setattr(EmbeddedDisk, "check", check_room)
    error = room.refusal(**ALL, retryTimeoutMs="300")
    assert "whether batch 0 of query" in error
    assert "No space left on device" in error
    monkeypatch.undo()
    assert room.seen() == []
    room.copy(**ALL)
    assert room.seen() == room.counting() == BODIES
