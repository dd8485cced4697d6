"""Runs notebooks in a real Jupyter kernel; as a program, saves the outputs of their cells.

    python tests/support/programs/notebook_runs.py                # all, with their outputs
    python tests/support/programs/notebook_runs.py lag explore     # these two

A cell's warnings on stderr are not kept: Spark's JVM writes there, and names the machine.
"""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
CELL_SECONDS = 300


def run(path, directory):
    """Run a notebook from top to bottom in a new kernel, with this working directory."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(directory)}},
        record_timing=False,
    )
    outside = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    client.execute(env=outside)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    # without the Python release of this machine
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def pictures_in(notebook):
    """Return the PNGs in the cells' outputs, in base64."""
    return [
        output["data"]["image/png"]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]


def main(names):
    """Run these notebooks, or all, and save them with their outputs."""
    chosen = [NOTEBOOKS / f"{name}.ipynb" for name in names] or sorted(NOTEBOOKS.glob("*.ipynb"))
    for path in chosen:
        nbformat.write(run(path, NOTEBOOKS), path)


if __name__ == "__main__":
    main(sys.argv[1:])
