"""The notebooks run from top to bottom, and hold no outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rmq_spark.cli.java import java_fault

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PATIENCE_SECONDS = 500


def code_of(notebook):
    """The cells that are code."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_it_is_kept_without_outputs(notebook):
    assert [cell for cell in code_of(notebook) if cell["outputs"] or cell["execution_count"]] == []


@pytest.mark.wide
@pytest.mark.skipif(java_fault() is not None, reason="Spark needs Java")
def test_the_quickstart_reads_all_it_sends_and_the_lag_falls_to_nothing(tmp_path):
    cells = code_of(ROOT / "notebooks" / "quickstart.ipynb")
    *story, end = ["".join(cell["source"]) for cell in cells]
    look = (
        "seen = [[lag.messages for lag in lags], spark.table('orders_read').count(), "
        "plot._repr_html_()]\nprint('SEEN', json.dumps(seen))"
    )
    program = tmp_path / "quickstart.py"
    program.write_text("\n\n".join([*story, look, end]), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    [said] = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    lags, rows, html = json.loads(said.removeprefix("SEEN "))
    assert rows == 600
    assert lags[:6] == [500, 400, 300, 200, 100, 0]
    assert html.count("<rect") == len(lags)
