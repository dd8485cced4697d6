"""Every case of the wire benchmark runs; speed is not checked."""

import pytest

from benchmarks.harness import check_peers
from benchmarks.wire import wire_cases
from benchmarks.wire.samples import pull_request
from rmq_spark.wire.codes import SerializeType

CASES = wire_cases(chunk_bytes=20_000)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_wire_benchmark_case_runs(case):
    case.run()


def test_wire_benchmark_names_are_unique_and_peers_exist():
    check_peers(CASES)


def test_benchmark_pull_request_has_as_many_fields_as_javas():
    assert len(pull_request(SerializeType.JSON).ext_fields) == 11
