import pytest

from benchmarks.client import stalled


@pytest.mark.wide
def test_it_says_what_a_producer_holds_whose_broker_takes_nothing_more(monkeypatch, capsys):
    monkeypatch.setattr(stalled, "SENDS", 80)
    monkeypatch.setattr(stalled, "TIMEOUT_MS", 300)
    stalled.main()
    first, *ends, memory, pending = capsys.readouterr().out.splitlines()
    assert first.startswith("80 sends of 1 MiB")
    assert sum(int(line.split()[0]) for line in ends) == 80
    assert memory.startswith("memory ")
    assert pending == "still pending: 0 sends, 0 bytes"
