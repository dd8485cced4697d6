"""Every case of the asyncio client's benchmark runs and does its work; speed is not checked."""

from __future__ import annotations

import pytest

from benchmarks.aio import MESSAGES, Stage, aio_cases, cpu_said, threads_said


@pytest.mark.deep
def test_aio_benchmark_cases_report_their_figures():
    with Stage(consumers=3) as stage:
        assert len(cpu_said(aio_cases(stage, 3 * MESSAGES))) == 6
        assert len(threads_said(stage)) == 3
