"""Every case of each benchmark without Spark and Java runs and does its work; speed is not checked.
The cases of the broker, of Spark and of long client runs have separate files."""

import json
from statistics import median

import pytest

from benchmarks.aio import MESSAGES, Stage, aio_cases, cpu_said, threads_said
from benchmarks.embedded import OneAtATime, embedded_cases
from benchmarks.filter import filter_cases
from benchmarks.filter.expressions import EXPRESSIONS
from benchmarks.harness import check_peers
from benchmarks.store import store_cases
from benchmarks.store.workspace import Workspace
from benchmarks.telemetry import Stage as TelemetryStage
from benchmarks.telemetry import telemetry_cases
from benchmarks.tls import Sides, tls_cases
from benchmarks.turns import Turns, flatness, turn_cases
from benchmarks.wire import wire_cases
from benchmarks.wire.samples import pull_request
from rmq_spark.wire.codes import SerializeType

FILTERS = filter_cases(messages=200)


def run_all(cases):
    check_peers(cases)
    for case in cases:
        if case.prepare is not None:
            case.prepare()
        case.run()


def test_wire_benchmark_cases_run():
    run_all(wire_cases(chunk_bytes=20_000))
    assert len(pull_request(SerializeType.JSON).ext_fields) == 11  # as many as Java's


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_sql_filter_benchmark_ways_give_equal_results(name):
    check_peers(FILTERS)
    one_at_a_time, by_chunk = (
        case.run() for case in FILTERS if case.subject == f"SQL92 filter, {name}"
    )
    assert by_chunk.tolist() == one_at_a_time


def test_turn_benchmark_cases_are_answered(tmp_path):
    turns = Turns(tmp_path)
    cases = turn_cases(turns)
    check_peers(cases)
    # With a slow disk, some answers come one run later.
    answers = {case.variant: median(case.run() for _ in range(3)) for case in cases}
    turns.shutdown()
    assert 200 * answers["1 sends"] * 0.95 < answers["200 sends"] < 200 * answers["1 sends"] * 1.05
    assert answers["a pull of 32"] > 3 * answers["a pull of 10"] > 40 * 10 * 3 * 100
    assert answers["a batch of 100"] > 40 * 100 * 33


def test_flatness_benchmark_rows_have_two_figures(capsys, tmp_path):
    few = ["--messages", "2000", "--clients", "10", "--queues", "40", "--rounds", "1"]
    flatness.main([*few, "--json", str(tmp_path / "flatness.json")])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    counts = ["1,000 messages", "2,000 messages", "1 clients", "10 clients"]
    assert [" ".join(row[:2]) for row in rows] == [*counts, "4 queues", "40 queues"]
    assert all(len(row) == 4 and float(figure) > 0 for row in rows for figure in row[2:])
    report = json.loads((tmp_path / "flatness.json").read_text())
    assert all(each["send_us"] > 0 < each["pulled_us"] for each in report["results"])


@pytest.mark.wide
def test_store_benchmark_cases_can_be_run_repeatedly(tmp_path):
    with Workspace(tmp_path) as workspace:
        cases = store_cases(workspace, messages=2_000, log_bytes=500_000, chunk_bytes=20_000)
        run_all(cases)
        run_all(cases)


@pytest.mark.deep
def test_aio_benchmark_cases_report_their_figures():
    with Stage(consumers=3) as stage:
        assert len(cpu_said(aio_cases(stage, 3 * MESSAGES))) == 6
        assert len(threads_said(stage)) == 3


@pytest.mark.deep
def test_embedded_benchmark_cases_run_and_leave_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with OneAtATime() as brokers:
        run_all(embedded_cases(brokers))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.deep
@pytest.mark.parametrize(
    ("stage", "cases_of"), [(TelemetryStage, telemetry_cases), (Sides, tls_cases)]
)
def test_benchmark_cases_with_a_stage_run(stage, cases_of):
    with stage() as staged:
        run_all(cases_of(staged))
