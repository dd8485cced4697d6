import pytest

from benchmarks.client import beside

pytestmark = pytest.mark.deep


def test_it_says_how_long_messages_take_beside_a_host_that_has_vanished(monkeypatch, capsys):
    monkeypatch.setattr(beside, "MESSAGES", 5)
    monkeypatch.setattr(beside, "WARMING_UP", 1)
    beside.main()
    said = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in said] == [
        "alone",
        "beside a black hole",
        "beside / alone",
    ]
