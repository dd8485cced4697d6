import pytest

from benchmarks.client import ending


def is_quick(name, kind):
    return (name, kind) in {("idle", "admin"), ("starting", "lite pull"), ("rebalancing", "push")}


def test_ending_benchmark_reports_shutdown_times(monkeypatch, capsys):
    monkeypatch.setattr(ending, "ROUNDS", 1)
    monkeypatch.setattr(ending, "STATES", [each for each in ending.STATES if is_quick(*each[:2])])
    ending.main()
    said = capsys.readouterr().out.splitlines()
    assert [line[:40].split("  ")[0] for line in said] == [
        "idle",
        "rebalancing",
        "starting",
        "at most",
    ]


@pytest.mark.deep
def test_client_ending_benchmark_reaches_and_ends_every_state(monkeypatch, capsys):
    monkeypatch.setattr(ending, "ROUNDS", 1)
    ending.main()
    seconds = [float(line[40:].removesuffix(" s")) for line in capsys.readouterr().out.splitlines()]
    assert len(seconds) == len(ending.STATES) + 1
    assert max(seconds) < seconds[-1] + 1  # of a machine that has other things to do
