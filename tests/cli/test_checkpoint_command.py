"""``rocketpoll checkpoint`` shows checkpoints, and prints how to continue a query from one."""

import json
import os
from pathlib import Path

import pytest

from rmq_spark.cli.main import main


@pytest.fixture
def checkpoint(tmp_path):
    """Write a checkpoint of twelve batches; the last is not committed."""
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    for number in range(12):
        stored = {"T": {"b": {"0": 1_767_225_600_000 + number}}}
        offset = json.dumps(
            {"v": 1, "offsets": {"T": {"b": {"0": number, "1": 5}}}, "stored": stored}
        )
        metadata = json.dumps({"batchTimestampMs": 1_767_225_600_000})
        (tmp_path / "offsets" / str(number)).write_text(
            f"v1\n{metadata}\n{offset}", encoding="utf-8"
        )
        if number < 11:
            (tmp_path / "commits" / str(number)).write_text("v1\n{}", encoding="utf-8")
    return str(tmp_path)


def test_checkpoint_command_lists_last_batches_with_offsets(checkpoint, capsys):
    assert main(["checkpoint", checkpoint]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 earlier batches not shown. Add --all to see them"
    assert lines[1] == "batch 2  2026-01-01 00:00:00.000+00:00  committed"
    assert lines[-3:] == [
        "batch 11  2026-01-01 00:00:00.000+00:00  not committed",
        "  source 0  T > b > 0  next 11  last stored 2026-01-01 00:00:00.011+00:00",
        "  source 0  T > b > 1  next 5",
    ]


def test_checkpoint_command_lists_all_batches(checkpoint, capsys):
    assert main(["checkpoint", checkpoint, "--all"]) == 0
    assert capsys.readouterr().out.count("batch ") == 12


@pytest.mark.parametrize(("more", "at"), [([], 10), (["--batch", "3"], 3)])
def test_checkpoint_command_prints_starting_offsets_only(checkpoint, capsys, more, at):
    assert main(["checkpoint", checkpoint, "--start", *more]) == 0
    assert json.loads(capsys.readouterr().out) == {"T": {"b": {"0": at, "1": 5}}}


def test_checkpoint_command_refuses_directory_that_is_no_checkpoint(tmp_path, capsys):
    assert main(["checkpoint", str(tmp_path)]) == 1
    assert "is not the checkpoint of a query" in capsys.readouterr().err


@pytest.mark.parametrize("how", [[], ["--start"], ["--lag"]])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_checkpoint_command_names_entry_that_is_no_file(checkpoint, how, make, capsys):
    path = Path(checkpoint, "offsets", "12")
    make(path)
    assert main(["checkpoint", checkpoint, *how]) == 1
    assert f"{path} is not a file" in capsys.readouterr().err


def test_checkpoint_command_ignores_files_that_are_no_batches(checkpoint, capsys):
    for name in ("\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT TWO}", "13.tmp", ".12.crc"):
        for folder in ("offsets", "commits"):
            Path(checkpoint, folder, name).write_text("x", encoding="utf-8")
    os.mkfifo(Path(checkpoint, "offsets", "pipe"))
    assert main(["checkpoint", checkpoint, "--all"]) == 0
    assert capsys.readouterr().out.count("batch ") == 12


def test_checkpoint_command_counts_one_earlier_batch_in_singular(checkpoint, capsys):
    for folder in ("offsets", "commits"):
        Path(checkpoint, folder, "0").unlink()
    assert main(["checkpoint", checkpoint]) == 0
    assert capsys.readouterr().out.startswith("1 earlier batch not shown. Add --all to see them\n")


def test_checkpoint_command_prints_batches_as_json_rows(checkpoint, capsys):
    assert main(["checkpoint", checkpoint, "-o", "json"]) == 0
    *_, last = json.loads(capsys.readouterr().out)
    assert (last["batch"], last["committed"], last["queue"], last["next"]) == (11, False, 1, 5)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--batch", "1"], "--batch and --source need"),
        (["--lag", "--source", "1"], "--batch and --source need"),
        (["--start", "--all"], "exclude each other"),
        (["--lag", "--to-group", "G"], "exclude each other"),
        (["--lag", "--dry-run"], "--dry-run and --yes need --to-group"),
    ],
)
def test_checkpoint_command_refuses_contradicting_arguments(checkpoint, more, said, capsys):
    assert main(["checkpoint", checkpoint, *more]) == 2
    assert said in capsys.readouterr().err
