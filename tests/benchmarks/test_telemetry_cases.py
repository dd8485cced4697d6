"""Every case of the benchmark of OpenTelemetry does its work; how fast is no matter here."""

import pytest

from benchmarks.harness import check_peers
from benchmarks.telemetry import Stage, telemetry_cases

pytestmark = pytest.mark.deep


def test_telemetry_benchmark_cases_run():
    with Stage() as stage:
        cases = telemetry_cases(stage)
        check_peers(cases)
        for case in cases:
            case.run()
