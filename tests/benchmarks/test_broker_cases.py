"""Every case of the broker benchmark runs, and its results are judged and displayed correctly.
Cases are as short as possible; speed is not checked."""

import json
import subprocess
import sys
from dataclasses import replace
from math import isfinite

import pytest
from support.rocketmq import java_programs, java_vectors

from benchmarks.broker import __main__ as command_line
from benchmarks.broker.arena import Arena
from benchmarks.broker.cases import QUICK, Case, broker_cases
from benchmarks.broker.figures import OURS, OURS_SYNC, PEER, Figure, Result, Target, percentile
from benchmarks.broker.java import JavaClasses, JavaUnavailable
from benchmarks.broker.process import Process, ProcessEnded
from benchmarks.broker.report import as_table
from benchmarks.broker.rocketmq import RocketMQ
from benchmarks.broker.rocketpoll import RocketPoll
from benchmarks.broker.rounds import run_rounds
from rocketpoll.broker.store.config import FlushDiskType

pytestmark = pytest.mark.deep

SMALL = replace(QUICK, seconds=0.05, held=(20,), idle_seconds=0.05)
SIDES = {OURS: RocketPoll(), OURS_SYNC: RocketPoll(FlushDiskType.SYNC_FLUSH)}
NAMES = {OURS: "rocketpoll", OURS_SYNC: "our sync flush", PEER: "RocketMQ"}

SPEED = Figure("messages", "msg/s", Target("ratio", 1.5))
LATENCY = Figure("p50", "ms", Target("value", 1.5))
RESULTS = [
    Result(
        "sending",
        SPEED,
        {OURS: (2_000, 6_000, 3_000), OURS_SYNC: (10,) * 3, PEER: (1_000, 2_000, 2_000)},
    ),
    Result("pushing", LATENCY, {OURS: (2.0, 2.0), OURS_SYNC: (9.0, 9.0), PEER: (3.0, 3.0)}),
    Result("starting", Figure("memory", "MB"), {OURS: (46.0,)}),
]


def test_anonymous_memory_of_a_process_is_measured(tmp_path):
    code = "held = bytearray(b'x') * 50_000_000; print(len(held), flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
    process = Process([sys.executable, "-c", code], tmp_path / "holder.log", tmp_path, **pipes)
    assert process.read_line() == "50000000\n"
    assert 50e6 < process.anonymous_bytes < process.rss_bytes
    process.stop()


def test_benchmark_ratio_is_taken_per_round_and_above_one_is_better():
    speed, latency, alone = RESULTS
    assert speed.ratio == 2.0
    assert latency.ratio == 1.5
    assert alone.ratio is None


def test_percentile_is_an_existing_value():
    assert [percentile(range(1, 101), percent) for percent in (1, 50, 95, 99, 100)] == [
        1,
        50,
        95,
        99,
        100,
    ]
    assert percentile([7.0], 99) == 7.0
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0


def test_benchmark_table_has_a_column_per_side_and_verdicts():
    assert as_table(RESULTS, NAMES).splitlines() == [
        "case          rocketpoll    ±  our sync flush   ±      RocketMQ    ±   ratio  target",
        "sending",
        (
            "  messages  3.00 k msg/s  67%      10.0 msg/s  0%  2.00 k msg/s  25%  2.00 x  >= 1.5 "
            "x: reached"
        ),
        "pushing",
        (
            "  p50            2.00 ms   0%         9.00 ms  0%       3.00 ms   0%  1.50 x  <= 1.50 "
            "ms: 75% of it"
        ),
        "starting",
        "  memory         46.0 MB   0%",
    ]


def test_benchmark_rounds_run_every_case_on_every_side_after_warming():
    done = []

    def case(subject, roles, *, is_warmed):
        def measure(role):
            done.append((subject, role))
            return [float(len(done))]

        return Case(subject, [Figure("number", "ms")], measure, roles, is_warmed)

    cases = [
        case("a", (OURS, OURS_SYNC, PEER), is_warmed=True),
        case("b", (OURS, PEER), is_warmed=False),
    ]
    first, second = run_rounds(cases, [OURS, PEER], 2, lambda _: None)
    a_round = [("a", OURS), ("a", PEER), ("b", OURS), ("b", PEER)]
    assert done == [*a_round[:2], *a_round, *a_round]
    assert first.rounds == {OURS: (3.0, 7.0), PEER: (4.0, 8.0)}
    assert second.rounds == {OURS: (5.0, 9.0), PEER: (6.0, 10.0)}


def test_ended_benchmark_process_is_reported_with_its_last_output(tmp_path):
    process = Process([sys.executable, "-c", "exit('no more')"], tmp_path / "short.log", tmp_path)
    process.popen.wait()
    with pytest.raises(ProcessEnded, match=r"short has ended with 1; it said:\nno more"):
        _ = process.cpu_seconds
    process.stop()


def test_our_broker_alone_is_measured_without_java_and_reported(tmp_path, capsys):
    path = tmp_path / "new" / "broker.json"
    command_line.main(
        ["--quick", "--client", "none", "--peer", "none", "--only", "held", "--json", str(path)]
    )
    printed = capsys.readouterr().out
    assert "a held pull, from send to answer" in printed
    assert "load average" in printed
    report = json.loads(path.read_text())
    assert report["conditions"]["java_clients"] == "none"
    for result in report["results"]:
        assert result["sides"]["rocketpoll"]["rounds"]
        assert result["target"] is None or result["target"]["quantity"] == "value"


def test_broker_benchmark_cases_without_java_clients_measure_and_clean_up(tmp_path):
    with Arena(tmp_path, SIDES, None) as arena:
        cases = {case.subject: case for case in broker_cases(arena, SMALL)}
        memory, idle_cpu, p50, p99, last = cases["20 held pulls"].measure(OURS)
        assert isfinite(
            memory
        )  # with twenty clients it is less than the memory that the process may free meanwhile
        assert idle_cpu >= 0  # so short a time may be one tick of each core
        assert 0 < p50 <= p99 <= last
        seconds, megabytes = cases["start, until a route is answered"].measure(OURS)
        assert seconds > 0
        assert megabytes > 10
        p50, p99 = cases["a held pull, from send to answer"].measure(OURS_SYNC)
        assert 0 < p50 <= p99
    assert [path.name for path in tmp_path.iterdir()] == [
        "3"
    ]  # the shared broker's; the others have ended


@pytest.mark.parametrize(
    "arguments", [["--only", "nothing of the kind"], ["--held", "0"], ["--rounds", "-1"]]
)
def test_benchmark_selection_without_cases_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        command_line.main(["--client", "none", "--peer", "none", *arguments])
    assert stopped.value.code != 0
    capsys.readouterr()


@pytest.mark.interop
@pytest.mark.peers
@pytest.mark.parametrize("version", java_vectors.VERSIONS)
def test_benchmark_case_with_java_clients_can_be_run_repeatedly(version, tmp_path):
    try:
        classes = JavaClasses(version)
    except JavaUnavailable as error:
        java_programs.unavailable(str(error))
    sides = {**SIDES, PEER: RocketMQ(classes)}
    with Arena(tmp_path, sides, classes) as arena:
        cases = [case for case in broker_cases(arena, SMALL) if case.subject.startswith("Java")]
        results = run_rounds(cases, sides, 2, lambda _: None)
    assert len(cases) == 8
    for result in results:
        for role, rounds in result.rounds.items():
            assert len(rounds) == 2, (result.subject, role)
            assert (
                min(rounds) > 0 or result.figure.unit == "s"
            )  # a short run may take no tick of the clock
