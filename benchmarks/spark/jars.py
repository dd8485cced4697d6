"""Jars of the peer, fetched by Maven: each set is a list of dependencies in jars/NAME.xml."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from benchmarks.broker.java import ROOT, JavaUnavailable

_LISTS = Path(__file__).parent / "jars"
_SECONDS_MAX = 600


def bring_jars(name: str) -> Path:
    """Return the directory of a set's jars, filled by Maven if its list has changed."""
    dependencies = _LISTS / f"{name}.xml"
    directory = ROOT / "build" / "spark" / name
    mark = directory / ".complete"
    if mark.exists() and mark.stat().st_mtime > dependencies.stat().st_mtime:
        return directory
    maven = shutil.which("mvn")
    if maven is None:
        raise JavaUnavailable("no mvn on the path")
    shutil.rmtree(directory, ignore_errors=True)
    command = [
        maven,
        *("-q", "-B", "-Dstyle.color=never", "-f", str(dependencies)),
        *("dependency:copy-dependencies", f"-DoutputDirectory={directory}"),
    ]
    run = subprocess.run(  # noqa: S603  # what we have put together ourselves
        command, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
    )
    if run.returncode:
        raise JavaUnavailable(f"Maven cannot bring {dependencies}:\n{run.stdout}{run.stderr}")
    mark.touch()
    return directory
