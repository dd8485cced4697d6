"""Notebooks run from top to bottom in a Jupyter kernel, and their saved outputs come from a run."""

import re
from base64 import b64decode
from pathlib import Path

import nbformat
import pytest
from support.programs.notebook_runs import NOTEBOOKS, pictures_in, run

from rmq_spark.cli.spark.spark_runtime import java_fault

ALL = sorted(NOTEBOOKS.glob("*.ipynb"))
MACHINE_PATH = re.compile(
    r"(?:/(?:home|root|tmp|work|usr|opt|var|Users)/|site-packages|[A-Z]:\\\\)"
)
each_notebook = pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)


def kept(path):
    return nbformat.read(path, as_version=4)


def code_of(notebook):
    """Return the code cells."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts_of(output):
    """Return all texts of an output, without pictures."""
    data = output.get("data", {})
    return [output.get("text", ""), *(data[kind] for kind in data if kind.startswith("text/"))]


def shapes_of(notebook):
    """Return the kinds of each cell's outputs; the number of printed pieces is random."""
    return [
        sorted({(each.output_type, *sorted(each.get("data", {}))) for each in cell.outputs})
        for cell in code_of(notebook)
    ]


@each_notebook
def test_notebook_is_valid_and_was_run_once_in_order(path):
    notebook = kept(path)
    nbformat.validate(notebook)
    cells = code_of(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert all(each.output_type != "error" for cell in cells for each in cell.outputs)


@each_notebook
def test_notebook_output_has_no_machine_paths_and_no_stderr(path):
    for cell in code_of(kept(path)):
        for output in cell.outputs:
            assert output.get("name") != "stderr"
            for text in texts_of(output):
                assert MACHINE_PATH.search(text) is None, text


@each_notebook
def test_notebook_pictures_are_small(path):
    pictures = [b64decode(picture) for picture in pictures_in(kept(path))]
    assert pictures
    assert all(picture.startswith(b"\x89PNG") and len(picture) < 100_000 for picture in pictures)


@each_notebook
def test_notebook_asserts_its_results_and_stops_what_it_starts(path):
    sources = [cell.source for cell in code_of(kept(path))]
    assert any(re.search("^assert ", source, re.MULTILINE) for source in sources)
    assert "broker.stop()" in sources[-1]
    assert ("spark.stop()" in sources[-1]) == any("SparkSession" in source for source in sources)


def test_notebooks_page_lists_all_notebooks():
    page = (NOTEBOOKS / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[(\S+\.ipynb)\]", page, re.MULTILINE)) == [
        path.name for path in ALL
    ]


@pytest.mark.deep
@each_notebook
def test_notebook_runs_in_a_kernel_with_the_kept_output(path, tmp_path):
    notebook = kept(path)
    if any("SparkSession" in cell.source for cell in code_of(notebook)) and java_fault():
        pytest.skip("Spark needs Java")
    assert shapes_of(run(path, tmp_path)) == shapes_of(notebook)
    assert list(Path(tmp_path).iterdir()) == []  # it leaves no files in its working directory
