"""Every case of the TLS benchmark runs; speed is not checked."""

import pytest

from benchmarks.harness import check_peers
from benchmarks.tls import Sides, tls_cases

pytestmark = pytest.mark.deep


def test_tls_benchmark_cases_run():
    with Sides() as sides:
        cases = tls_cases(sides)
        check_peers(cases)
        before = sides.clock()
        for case in cases:
            case.run()
        assert sides.clock() > before
