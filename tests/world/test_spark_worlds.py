"""Some random stories of Spark's source and sink; `make sparkworld SEEDS=20000` runs more.

A failing story is shrunk, and the report says how to run it again.
"""

import os
from pathlib import Path

import pytest
from support.suite.selection import spread
from world.shrinking import failure_of
from world.spark.drawing import POINTS, draw
from world.spark.world import SparkWorld
from world.trials import assert_all_end_well, assert_ends_well, assert_told_alike_in_any_process

SEEDS = int(os.environ.get("ROCKETPOLL_SPARK_WORLD_SEEDS", "40"))
FIRST = int(os.environ.get("ROCKETPOLL_SPARK_WORLD_FIRST", "0"))
AT_A_TIME = 5
KEPT = sorted((Path(__file__).parent / "spark_stories").glob("*.json"))


@pytest.mark.parametrize("first", spread(1, range(FIRST, FIRST + SEEDS, AT_A_TIME)))
def test_spark_world_reads_every_row_once_or_reports_data_loss(first):
    assert_all_end_well(range(first, first + AT_A_TIME), draw, SparkWorld, "world.spark")


def test_tasks_read_files_in_some_stories_and_pull_in_others():
    worlds = [SparkWorld(draw(seed)) for seed in range(4)]
    for world in worlds:
        world.tell()
    read = [world.files.bytes_read > 0 for world in worlds]
    assert any(read)
    assert not all(read)


def test_batches_that_are_rolled_back_leave_gaps_in_some_stories():
    worlds = [SparkWorld(draw(seed)) for seed in (512_011, 512_021)]
    for world in worlds:
        world.tell()
    assert all(world.rolled_back.gaps for world in worlds)


@pytest.mark.parametrize("path", spread(4, KEPT), ids=lambda path: path.stem)
def test_spark_story_that_once_failed_passes(path):
    assert_ends_well(path, SparkWorld)


@pytest.mark.wide
def test_spark_world_is_identical_for_a_seed_in_any_process():
    assert_told_alike_in_any_process((2, 5, 7, 1245), draw, SparkWorld)


def test_spark_stories_draw_every_kind_of_step_and_trouble():
    """A step or trouble that no seed draws is not tested."""
    stories = [draw(seed) for seed in range(400)]
    steps = [step for story in stories for client in story.clients for step in client.steps]
    assert {step.kind for step in steps} == {
        "stream", "at", "read", "action", "sink", "write", "send", "wait",
    }  # fmt: skip
    assert {step.arguments["point"] for step in steps if step.kind == "at"} == set(POINTS)
    assert {trouble.kind for story in stories for trouble in story.troubles} == {
        "kill a broker", "stop a broker", "lose power", "kill a driver", "kill a planner",
        "make again", "change queues", "fill", "forget a broker", "cut", "silence", "hold up",
        "slow", "clock", "damage", "rename", "older copy", "slave", "roll back", "plain", "hide",
        "lie",
    }  # fmt: skip
    given = {name for step in steps if step.kind == "stream" for name in step.arguments["options"]}
    assert given >= {
        "tags", "sql", "onBrokerAway", "failOnDataLoss", "maxOffsetsPerTrigger",
        "maxBytesPerTrigger", "minOffsetsPerTrigger", "minPartitions", "maxRecordsPerPartition",
        "maxPartitions", "consumerGroup", "subscribePattern", "endingOffsets", "isolation",
        "onBadRecord", "assign", "namespace", "brokerAddresses", "bodyFormat", "bodySchema",
        "bodyColumn",
    }  # fmt: skip
    streams = [step.arguments for step in steps if step.kind == "stream"]
    assert {len(each.get("united_with", ())) for each in streams} == {0, 1, 2}
    damaged = [each for each in streams if "onBadRecord" in each["options"]]
    assert {each["options"]["onBadRecord"] for each in damaged} == {"fail", "null", "skip"}
    assert {each["on_bad_record_then"] for each in damaged} == {"null", "skip"}
    changed = [each for stream in streams for each in stream.get("options_of_lives", ())]
    assert {name for each in changed for name in each} >= {
        "minPartitions", "maxRecordsPerPartition", "maxPartitions", "maxOffsetsPerTrigger",
        "maxBytesPerTrigger", "minOffsetsPerTrigger", "consumerGroup", "onBrokerAway",
        "failOnDataLoss", "localFiles",
    }  # fmt: skip
    seconds = [
        client.steps[0].arguments["is_stream"]
        for story in stories
        for client in story.clients
        if client.name == "writes2"
    ]
    assert {*seconds} == {True, False}
    sinks = [step.arguments["options"] for step in steps if step.kind == "sink"]
    formats = {"text", "json", "avro"}
    assert {each.get("bodyFormat") for each in sinks} == {None, *formats}
    assert any("namespace" in each and "brokerAddresses" in each for each in sinks)
    typed = [each["options"] for each in streams if "onBadRecord" in each["options"]]
    assert {(each["onBadRecord"], each.get("bodyFormat")) for each in typed} == {
        (how, kind) for how in ("fail", "null", "skip") for kind in (None, *formats)
    }
    ways = {(each.get("delivery"), each.get("visibleTo")) for each in sinks}
    assert ways == {(None, None), ("exactly_once", None), ("exactly_once", "all")}


def test_spark_world_finds_unreported_losses(monkeypatch):
    """A test of the checks themselves; `make seeded` has more."""
    for module in (
        "plan.latest_offsets", "plan.micro_batch_planner", "plan.partition_planner",
        "read.partition_reader", "read.record_chunks",
    ):  # fmt: skip
        monkeypatch.setattr(
            f"rmq_spark.spark.{module}.report_losses", lambda losses, is_failure: None
        )
    failures = (failure_of(draw(seed), SparkWorld) for seed in range(SEEDS))
    assert "nobody was told" in str(
        next(failure for failure in failures if failure is not None).error
    )
