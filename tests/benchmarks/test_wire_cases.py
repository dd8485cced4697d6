"""Every case of the wire benchmark runs; speed is not checked."""

import pytest

from benchmarks.harness import check_peers
from benchmarks.wire import wire_cases
from benchmarks.wire.samples import pull_request
from rmq_spark.wire.codes import SerializeType

CASES = wire_cases(chunk_bytes=20_000)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_case_runs(case):
    case.run()


def test_all_peers_are_there_and_names_are_unique():
    check_peers(CASES)


def test_the_pull_request_is_as_long_as_javas():
    assert len(pull_request(SerializeType.JSON).ext_fields) == 11
