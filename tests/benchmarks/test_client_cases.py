"""Every case of the client benchmark runs against our broker; speed is not checked."""

import json

import pytest

from benchmarks.broker.arena import Arena
from benchmarks.broker.figures import OURS, OURS_SYNC, PEER
from benchmarks.broker.rocketpoll import RocketPoll
from benchmarks.client import __main__ as command_line
from benchmarks.client.cases import QUICK, client_cases


@pytest.mark.wide
def test_client_benchmark_cases_measure_their_figures(tmp_path):
    with Arena(tmp_path, {OURS: RocketPoll()}, None) as arena:
        cases = client_cases(arena, QUICK)
        for case in cases:
            values = case.measure(OURS)
            assert len(values) == len(case.figures), case.subject
            for figure, value in zip(case.figures, values, strict=True):
                assert value > 0 or figure.unit in ("s", "KiB"), (case.subject, figure.name)
    assert len(cases) == len({case.subject for case in cases}) == 12


@pytest.mark.deep
def test_sends_are_measured_with_a_flush_before_the_answer_as_well(tmp_path):
    with Arena(tmp_path, {}, object()) as arena:
        roles = {case.subject: case.roles for case in client_cases(arena, QUICK)}
    for subject, its_roles in roles.items():
        is_send = subject.startswith(("send", "Java's producer"))
        assert tuple(its_roles) != (OURS, OURS_SYNC, PEER) or is_send, subject
        assert OURS_SYNC in its_roles or not is_send, subject


@pytest.mark.deep
def test_client_benchmark_runs_without_java(tmp_path, capsys):
    path = tmp_path / "client.json"
    command_line.main(
        ["--quick", "--client", "none", "--peer", "none", "--only", "held", "--json", str(path)]
    )
    assert "a held pull, from send to answer" in capsys.readouterr().out
    (p50, p99) = json.loads(path.read_text())["results"]
    assert (p50["figure"], p99["figure"]) == ("p50", "p99")
    assert p50["target"]["bound"] == pytest.approx(0.5)
