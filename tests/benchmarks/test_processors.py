"""Processor profiles of the benchmarks: when perf is started, and how its report is read and
sorted."""

import os
import shutil
import time

import pytest

from benchmarks.broker.cases import Case
from benchmarks.processors import (
    PerfUnavailable,
    check_perf,
    looks_during,
    profile_of,
    read_looks,
)
from benchmarks.spark.process_tree import children_of

REPORT = """
    40.10%|         401  |rocketpoll       |[kernel.kallsyms]
    20.00%|         200  |Executor task l  |perf-1234.map
     5.00%|          50  |Executor task l  |[JIT] tid 1234
     1.00%|          10  |python           |libz.so.1.2.13
    30.00%|         300  |swapper          |[kernel.kallsyms]
     0.50%|           5  |perf             |libc.so.6
"""


@pytest.fixture
def perf():
    try:
        check_perf()
    except PerfUnavailable as error:
        pytest.skip(str(error))


def test_perf_report_is_parsed_without_idle_and_perf_itself():
    assert read_looks(REPORT) == {
        ("rocketpoll", "[kernel.kallsyms]"): 401,
        ("Executor task l", "compiled code"): 250,
        ("python", "libz.so.1.2.13"): 10,
    }


def test_missing_perf_names_its_package(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(PerfUnavailable, match="linux-perf"):
        looks_during(lambda: None)


def test_perf_without_permission_gives_the_reason(monkeypatch, tmp_path):
    perf = tmp_path / "perf"
    perf.write_text("#!/bin/sh\necho 'you may not' >&2\nexit 1\n")
    perf.chmod(0o700)
    monkeypatch.setattr(shutil, "which", lambda _: str(perf))
    with pytest.raises(PerfUnavailable, match="you may not"):
        check_perf()


@pytest.mark.deep
@pytest.mark.usefixtures("perf")
def test_perf_profile_shows_each_side_of_a_case():
    def burn(_):
        began = time.process_time()
        while time.process_time() - began < 0.3:
            pass
        return []

    said = []
    table = profile_of(
        [Case("burning", [], burn, roles=("ours", "peer"))], {"ours": "us"}, said.append
    )
    assert said == ["profile: burning: ours"]
    lines = table.splitlines()
    assert lines[1] == "burning: us"
    seconds = sum(float(line.split()[0]) for line in lines[2:])
    assert seconds > 0.2
    assert lines[-1].split()[2] == "others"


@pytest.mark.deep
@pytest.mark.usefixtures("perf")
def test_failing_case_leaves_no_perf_process():
    before = children_of(os.getpid())
    with pytest.raises(ZeroDivisionError):
        looks_during(lambda: 1 / 0)
    assert set(children_of(os.getpid())) <= set(before)
