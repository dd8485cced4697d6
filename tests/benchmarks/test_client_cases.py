"""Every case of the client benchmark runs against our broker; speed is not checked."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.brokers.broker_kinds import wait_until

from benchmarks.broker.arena import Arena
from benchmarks.broker.figures import OURS
from benchmarks.broker.rocketpoll import RocketPoll
from benchmarks.client import __main__ as command_line
from benchmarks.client import beside, ending, hurry, stalled, topics
from benchmarks.client.cases import QUICK, client_cases

ROOT = Path(__file__).parents[2]


@pytest.fixture
def said(monkeypatch, capsys):
    """Return a function that runs a program of the benchmark with shorter settings and returns its
    output lines."""

    def run(program, **settings):
        for name, value in settings.items():
            monkeypatch.setattr(program, name, value)
        program.main()
        return capsys.readouterr().out.splitlines()

    return run


@pytest.mark.wide
def test_client_benchmark_cases_measure_their_figures(tmp_path):
    with Arena(tmp_path, {OURS: RocketPoll()}, None) as arena:
        cases = client_cases(arena, QUICK)
        for case in cases:
            values = case.measure(OURS)
            assert len(values) == len(case.figures), case.subject
            for figure, value in zip(case.figures, values, strict=True):
                assert value > 0 or figure.unit in ("s", "KiB"), (case.subject, figure.name)
    assert len(cases) == len({case.subject for case in cases}) == 14


@pytest.mark.deep
def test_client_benchmark_runs_without_java(tmp_path, capsys):
    path = tmp_path / "client.json"
    alone = ["--quick", "--client", "none", "--peer", "none", "--only", "held"]
    command_line.main([*alone, "--json", str(path)])
    assert "a held pull, from send to answer" in capsys.readouterr().out
    (p50, p99) = json.loads(path.read_text())["results"]
    assert (p50["figure"], p99["figure"]) == ("p50", "p99")


@pytest.mark.deep
def test_vanished_host_benchmark_reports_latency(said):
    lines = said(beside, MESSAGES=5, WARMING_UP=1)
    sides = ["alone", "beside a black hole", "beside / alone"]
    assert [line.split("  ")[0] for line in lines] == sides


@pytest.mark.deep
def test_client_ending_benchmark_reaches_and_ends_every_state(said):
    lines = said(ending, ROUNDS=1)
    assert len(lines) == len(ending.STATES) + 1


@pytest.mark.deep
def test_topics_benchmark_prints_a_line_for_each_way(capsys):
    topics.main(20)
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(topics.WAYS)


@pytest.mark.deep
def test_hurry_benchmark_agrees_with_the_log(said):
    heads, *lines = said(hurry, SENDS=40)
    assert len(lines) == 6
    for line in lines:
        name, counts = line[:34], [int(count) for count in line[34:].split()]
        stored, stored_in_log, failed, failed_in_log, unknown, _, repeats = counts
        assert stored + failed + unknown == 40, name
        assert stored_in_log == stored, name
        assert failed_in_log == repeats == 0, name
    assert heads.endswith("repeats")


@pytest.mark.wide
def test_stalled_benchmark_reports_memory_and_pending_sends(said):
    few = {"SENDS": 80, "TIMEOUT_MS": 300, "PLAIN_SENDS": 30, "ROOM_MIB": 20, "SLOW_SECONDS": 2.0}
    lines = said(stalled, **few)
    heads = [number for number, line in enumerate(lines) if " sends of " in line]
    for head, end, room in zip(heads, (*heads[1:], len(lines)), (64, 20, 64), strict=True):
        *ends, memory, pending = lines[head + 1 : end]
        assert sum(int(line.split()[0]) for line in ends) == int(lines[head].split()[0])
        assert memory.startswith("memory ")
        assert int(pending.split()[1]) <= room


def state_of(pid):
    """Return the state letter of a process, or None if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


@pytest.mark.wide
def test_killed_stalled_benchmark_leaves_no_broker():
    program = [sys.executable, "-m", "benchmarks.client.stalled"]
    with subprocess.Popen(program, cwd=ROOT, start_new_session=True) as running:
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        pids = wait_until(
            "a broker that is stopped",
            lambda: [pid for pid in children.read_text().split() if state_of(pid) == "T"],
        )
        os.kill(running.pid, signal.SIGKILL)
    wait_until("the broker is gone", lambda: state_of(pids[0]) in {None, "Z"})
