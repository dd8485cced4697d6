"""Benchmark reports for people and as JSON, from invented results."""

import json
from argparse import ArgumentParser

import pytest

from benchmarks.command_line import run_benchmark
from benchmarks.harness import Case, Result, Target
from benchmarks.report import as_json, as_table

PEER = Case("reading", "slow", lambda: None, 1)
FAST = Case("reading", "fast", lambda: None, 1, peer="slow", target=Target("per_second", 2e6))
LATE = Case("writing", "late", lambda: None, 1, unit="frame", target=Target("microseconds", 6.0))
RESULTS = [
    Result(PEER, (4e-6, 4e-6)),
    Result(FAST, (0.25e-6, 0.25e-6), (16.0, 16.0)),
    Result(LATE, (0.002, 0.002)),
]


def test_benchmark_table_names_peers_units_and_verdicts():
    assert as_table(RESULTS).splitlines() == [
        "case           speed     µs  spread  vs peer       target",
        "reading",
        "  slow   250 k msg/s   4.00      0%",
        "  fast  4.00 M msg/s  0.250      0%  16.00 x slow  >= 2.00 M msg/s: reached",
        "writing",
        "  late   500 frame/s  2,000      0%                <= 6 µs: not reached",
    ]


def test_benchmark_json_holds_every_round():
    report = json.loads(json.dumps(as_json("some", {"cores": 2}, RESULTS)))
    assert (report["benchmark"], report["machine"]) == ("some", {"cores": 2})
    slow, fast, late = report["results"]
    assert fast == {
        "subject": "reading",
        "variant": "fast",
        "unit": "msg",
        "per_second": 4e6,
        "bytes_per_second": None,
        "microseconds": {
            "median": 0.25,
            "minimum": 0.25,
            "first_quartile": 0.25,
            "third_quartile": 0.25,
            "rounds": [0.25, 0.25],
        },
        "peer": {"variant": "slow", "ratio": 16.0, "rounds": [16.0, 16.0]},
        "target": {"quantity": "per_second", "bound": 2e6, "reached": True},
    }
    assert (slow["peer"], slow["target"]) == (None, None)
    assert late["target"]["reached"] is False


def test_benchmark_run_prints_the_table_and_writes_the_json(tmp_path, capsys):
    path = tmp_path / "new" / "some.json"
    arguments = ["--rounds", "2", "--seconds", "0", "--only", "fast", "--json", str(path)]
    run_benchmark("some", [PEER, FAST, LATE], ["numpy"], arguments)
    printed = capsys.readouterr().out
    assert "x slow" in printed
    assert "writing" not in printed
    assert "load average" in printed
    report = json.loads(path.read_text())
    assert [len(found["microseconds"]["rounds"]) for found in report["results"]] == [2, 2]
    assert report["machine"]["load_average_after"] >= 0


def test_benchmark_may_have_its_own_options_and_number_of_rounds(tmp_path, capsys):
    own = ArgumentParser(add_help=False)
    own.add_argument("--size", type=int, default=3, help="how large")
    path = tmp_path / "some.json"
    arguments = ["--seconds", "0", "--size", "7", "--json", str(path)]
    run_benchmark("some", [PEER], [], arguments, rounds=2, own_options=[own])
    (report,) = json.loads(path.read_text())["results"]
    assert len(report["microseconds"]["rounds"]) == 2
    capsys.readouterr()
    with pytest.raises(SystemExit):
        run_benchmark("some", [PEER], [], ["--help"], own_options=[own])
    assert "how large" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--only", "nothing of the kind"], ["--rounds", "0"]])
def test_benchmark_without_cases_or_rounds_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        run_benchmark("some", [PEER], [], arguments)
    assert stopped.value.code != 0
    capsys.readouterr()
