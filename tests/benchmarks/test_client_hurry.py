import pytest

from benchmarks.client import hurry

pytestmark = pytest.mark.deep


def test_whoever_is_told_that_a_message_is_stored_or_not_is_told_the_truth(monkeypatch, capsys):
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
