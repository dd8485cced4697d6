import pytest

from benchmarks.client import beside

pytestmark = pytest.mark.deep


def test_vanished_host_benchmark_reports_latency(monkeypatch, capsys):
    monkeypatch.setattr(beside, "MESSAGES", 5)
    monkeypatch.setattr(beside, "WARMING_UP", 1)
    beside.main()
    said = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in said] == [
        "alone",
        "beside a black hole",
        "beside / alone",
    ]
