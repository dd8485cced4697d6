"""Python environments with this checkout and a given pyspark, as the peer may need another."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

from benchmarks.broker.java import ROOT

PEER_VERSION = "4.2.0"
"""The newest pyspark with a Kafka source."""

_SECONDS_MAX = 900


class SparkUnavailable(Exception):
    """Pip cannot install a pyspark."""


def python_with_spark(version: str) -> Path:
    """Return this Python if it has that pyspark, otherwise one in a virtual environment.

    The environment is created when first needed, and again when the project's dependencies change.
    """
    if _version_here() == version:
        return Path(sys.executable)
    directory = ROOT / "build" / "spark" / f"python-{version}"
    python = directory / "bin" / "python"
    mark = directory / ".complete"
    needs = (ROOT / "pyproject.toml", ROOT / "setup.cfg")
    if mark.exists() and mark.stat().st_mtime > max(file.stat().st_mtime for file in needs):
        return python
    _run([sys.executable, "-m", "venv", str(directory)])
    _run(
        [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--editable",
            str(ROOT),
            f"pyspark=={version}",
        ]
    )
    mark.touch()
    return python


def _version_here() -> str | None:
    try:
        return version_of("pyspark")
    except PackageNotFoundError:
        return None


def _run(command: list[str]) -> None:
    run = subprocess.run(  # noqa: S603  # what we have put together ourselves
        command, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
    )
    if run.returncode:
        raise SparkUnavailable(f"{' '.join(command)}:\n{run.stdout}{run.stderr}")
