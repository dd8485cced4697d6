"""Every case of the embedded broker's benchmark runs; speed is not checked."""

import pytest

from benchmarks.embedded import OneAtATime, embedded_cases
from benchmarks.harness import check_peers

pytestmark = pytest.mark.deep


def test_embedded_benchmark_cases_run_and_leave_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with OneAtATime() as brokers:
        cases = embedded_cases(brokers)
        check_peers(cases)
        for case in cases:
            case.prepare()
            case.run()
    assert list(tmp_path.iterdir()) == []
