"""Every case of the client's benchmark does its work; how fast is no matter here."""

from benchmarks.client import client_cases
from benchmarks.client.running_broker import RunningBroker
from benchmarks.harness import check_peers


def test_every_case_runs_against_a_broker_that_is_gone_afterwards():
    with RunningBroker() as broker:
        cases = client_cases(broker)
        check_peers(cases)
        for case in cases:
            case.run()
    assert broker._process.returncode == 0
