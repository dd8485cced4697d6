"""Worker Python: checks the Python that Spark would start for planning and tasks.

A small program is run by that Python in the directory and environment of this process, as Spark
would run it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from typing import Any, Final

from rmq_spark import __version__
from rmq_spark.cli.doctor.findings import Diagnosis

PYTHON_VARIABLE: Final = "PYSPARK_PYTHON"
_DEFAULT_PYTHON: Final = "python3"
_REQUIRED_PACKAGES: Final = ("numpy", "pyarrow", "orjson")
_TIMEOUT_SECONDS: Final = 60

# Spark runs workers as modules, so that the working directory comes first on their path, as with
# -c.
_PROBE: Final = """
import importlib.util, json, pkgutil, sys
def version():
    try:
        import rmq_spark
        return rmq_spark.__version__
    except ImportError:
        return None
print(json.dumps({
    "version": list(sys.version_info[:2]),
    "missing": [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None],
    "is_found": any(each.name == "pyspark_rocketpoll" for each in pkgutil.iter_modules()),
    "is_importable": importlib.util.find_spec("pyspark_rocketpoll") is not None,
    "rocketpoll": version(),
}))
"""


def check_worker_python() -> list[Diagnosis]:
    """Check which Python the workers would run, and, if it starts, which packages it has."""
    named = os.environ.get(PYTHON_VARIABLE)
    path = shutil.which(named or _DEFAULT_PYTHON)
    here = f"run export {PYTHON_VARIABLE}={shlex.quote(sys.executable)}"
    origin = (
        f"from {PYTHON_VARIABLE}"
        if named
        else f"{_DEFAULT_PYTHON} on PATH, as {PYTHON_VARIABLE} is not set"
    )
    if path is None:
        return [
            Diagnosis("worker Python", f"there is no {named or _DEFAULT_PYTHON} ({origin})", here)
        ]
    seen = _probe(path)
    if isinstance(seen, str):
        return [Diagnosis("worker Python", f"{path} fails: {seen}", here)]
    version = tuple(seen["version"])
    text = ".".join(map(str, version))
    if version != sys.version_info[:2]:
        driver = ".".join(map(str, sys.version_info[:2]))
        found = (
            f"{path} is Python {text}, this one {driver}: Spark needs the same version on driver "
            "and workers"
        )
        return [Diagnosis("worker Python", found, here)]
    found = f"{path}, Python {text} ({origin})"
    return [
        Diagnosis("worker Python", found),
        _check_packages(path, seen),
        _check_format(path, seen, here),
    ]


def _check_packages(path: str, report: dict[str, Any]) -> Diagnosis:
    missing = report["missing"]
    if missing:
        names = " ".join(missing)
        found = f"{path} has no {', '.join(missing)}"
        return Diagnosis(
            "its packages",
            found,
            f"run {shlex.quote(path)} -m pip install {names}, or set {PYTHON_VARIABLE} to another",
        )
    return Diagnosis("its packages", ", ".join(_REQUIRED_PACKAGES))


def _check_format(path: str, report: dict[str, Any], remedy: str) -> Diagnosis:
    what = "the format"
    if not report["is_importable"]:
        return Diagnosis(what, f"{path} has no rocketpoll: Spark cannot find the format", remedy)
    if not report["is_found"]:
        found = (
            f"{path} can import pyspark_rocketpoll, but Spark does not find it in a list of "
            "modules: it is an editable install"
        )
        again = f"run {shlex.quote(path)} -m pip install -e DIRECTORY without --config-settings"
        return Diagnosis(what, found, f"{again}, or put the directory on PYTHONPATH")
    if report["rocketpoll"] != __version__:
        found = f"{path} has rocketpoll {report['rocketpoll']}, this Python {__version__}"
        return Diagnosis(what, found, f"{remedy}, or install the same release in both")
    return Diagnosis(what, f"rocketpoll {__version__} is found")


def _probe(path: str) -> dict[str, Any] | str:
    """Return the report of the program run by ``path``, or the reason why there is none."""
    try:
        done = subprocess.run(  # noqa: S603  # the user's own Python
            [path, "-c", _PROBE, *_REQUIRED_PACKAGES],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
        said: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    except ValueError:
        return (
            (done.stderr or done.stdout or f"exit code {done.returncode}").strip().splitlines()[-1]
        )
    return said
