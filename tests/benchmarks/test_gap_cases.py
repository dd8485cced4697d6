"""The gap benchmark covers every request and job of a broker, and each kind of turn runs."""

import pytest

from benchmarks.gaps import gaps
from benchmarks.gaps.asked import QUICK
from benchmarks.gaps.measured import Client, MeasuredBroker
from rmq_spark.wire.codes import RequestCode, ResponseCode

pytestmark = pytest.mark.deep

OTHERS = {"/metrics", "arrival", "checks", "connection_lost", "deadline", "delivery", "sweep"}
"""Other work of the loop: scrapes, arrivals, lost connections, timers."""
REFUSALS = {
    ResponseCode.SUCCESS,
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    ResponseCode.NO_PERMISSION,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.QUERY_NOT_FOUND,
    ResponseCode.CONSUME_MSG_TIMEOUT,
    ResponseCode.POLLING_TIMEOUT,
}
"""Expected codes of some answers: a request that finds nothing has to search everything."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return all rows, the response codes, the requests that the broker serves, and its jobs."""
    patch = pytest.MonkeyPatch()
    clients = []
    made = Client.__init__
    patch.setattr(
        Client, "__init__", lambda self, broker: clients.append(self) or made(self, broker)
    )
    broker = MeasuredBroker(tmp_path_factory.mktemp("store"))
    try:
        rows = list(gaps(broker, QUICK))
        served = {RequestCode(code).name for code in broker.controller.processors.dispatch.codes}
        jobs = {name_of(job) for job in broker.controller.housekeeping._timers}
    finally:
        broker.shutdown()
        patch.undo()
    return rows, {code for client in clients for code in client.codes}, served, jobs


def name_of(job):
    """Return the name of a housekeeping job, or of the first part of a compound one."""
    while hasattr(job, "func"):
        job = job.args[-1] if job.func.__name__ == "_start_in_thread" else job.func
    return job.__name__


@pytest.mark.wide
def test_gap_benchmark_measures_every_kind(measured):
    rows, codes, _, _ = measured
    assert all(0 <= gap.cpu_ms <= gap.whole_ms + 50 for _, _, gap in rows)
    assert codes <= REFUSALS


def test_gap_benchmark_has_a_row_for_every_served_request(measured):
    rows, _, served, _ = measured
    assert served <= {each for about, _, _ in rows for each in about}


def test_gap_benchmark_has_a_row_for_every_housekeeping_job(measured):
    rows, _, served, jobs = measured
    about = {each for about, _, _ in rows for each in about}
    assert about - served - OTHERS == jobs - {"_load_numpy"}  # a measured broker has loaded it
