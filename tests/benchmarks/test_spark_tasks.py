import pytest

from benchmarks.spark import tasks

pytestmark = pytest.mark.deep

SUBJECTS = [
    f"{lengths}, columns {columns}"
    for lengths in ("100 B", "80 to 120 B", "1000 B", "800 to 1200 B")
    for columns in ("default", "body")
]


def test_ingest_is_measured_with_and_without_the_check_of_bodies(capsys):
    tasks.main(["--megabytes", "1", "--rounds", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        subject + what
        for subject in SUBJECTS
        for what in (", checkCrc=false", ", checkCrc=true", ", with the check")
    ]
    assert all("of the broker for 1,000,000 rows" in line or "times" in line for line in lines)
