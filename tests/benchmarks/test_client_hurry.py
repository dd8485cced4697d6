import pytest

from benchmarks.client import hurry

pytestmark = pytest.mark.deep


def test_hurry_benchmark_agrees_with_the_log(monkeypatch, capsys):
    monkeypatch.setattr(hurry, "SENDS", 40)
    hurry.main()
    heads, *said = capsys.readouterr().out.splitlines()
    assert len(said) == 6
    for line in said:
        name, counts = line[:34], [int(count) for count in line[34:].split()]
        stored, stored_in_log, failed, failed_in_log, unknown, _, repeats = counts
        assert stored + failed + unknown == 40, name
        assert stored_in_log == stored, name
        assert failed_in_log == repeats == 0, name
    assert heads.endswith("repeats")
