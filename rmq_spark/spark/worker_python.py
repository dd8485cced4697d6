"""Worker Python: checks that the Python in which Spark plans and reads has what a query needs.

`load()` checks this first. Spark may run this module in a Python that finds the sources on a path
and no other package, so that it imports only the standard library and the errors.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from typing import Final

from rmq_spark.spark.errors import SetUpError

_PYTHON_VARIABLE: Final = "PYSPARK_PYTHON"
_DEFAULT_PYTHON: Final = "python3"
_REQUIRED_PACKAGES: Final = ("rmq_spark", "numpy", "pyarrow", "orjson")
_PROBE_SECONDS_MAX: Final = 20
_PROBE: Final = """
import importlib.util, sys
print("missing", *[name for name in sys.argv[1:] if importlib.util.find_spec(name) is None])
"""


def check_this_python() -> None:
    """Refuse the Python of this process if it lacks packages."""
    missing = tuple(name for name in _REQUIRED_PACKAGES if find_spec(name) is None)
    if missing:
        named = os.environ.get(_PYTHON_VARIABLE)
        origin = f" ({_origin(named)})" if shutil.which(named or _DEFAULT_PYTHON) else ""
        raise SetUpError(
            f"Spark runs this query in {sys.executable}{origin}, which has no "
            f"{', '.join(missing)}. Before Spark is started, set {_PYTHON_VARIABLE} to the Python "
            "in which rocketpoll was installed with pip"
        )


def check_worker_python() -> None:
    """Refuse a Python that lacks packages, of this process or of the workers.

    Spark may already call this in a worker, whose path has only the sources. A worker Python that
    cannot be inspected from here is accepted.
    """
    check_this_python()
    named = os.environ.get(_PYTHON_VARIABLE)
    path = shutil.which(named or _DEFAULT_PYTHON)
    if path is None or path == sys.executable:
        return
    missing = _missing_packages(path, os.pathsep.join(_extra_module_path()))
    if missing:
        raise SetUpError(
            f"Spark would run this query in {path} ({_origin(named)}), which has no "
            f"{', '.join(missing)}; {sys.executable} has all packages. Before Spark is started, "
            f"run export {_PYTHON_VARIABLE}={shlex.quote(sys.executable)}"
        )


def _origin(named: str | None) -> str:
    """Return why Spark uses the Python that it does."""
    if named:
        return f"{_PYTHON_VARIABLE} names it"
    return f"{_PYTHON_VARIABLE} is not set, and PATH has it first"


def _extra_module_path() -> list[str]:
    """Return the module path that Spark or the user has set, which workers inherit."""
    prefixes = (sys.prefix, sys.base_prefix)
    return [entry for entry in sys.path if entry and not entry.startswith(prefixes)]


@cache
def _missing_packages(path: str, module_path: str) -> tuple[str, ...]:
    try:
        done = subprocess.run(  # noqa: S603  # the user's own Python
            [path, "-c", _PROBE, *_REQUIRED_PACKAGES],
            env={**os.environ, "PYTHONPATH": module_path},
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    word, *missing = done.stdout.split() or [""]
    return tuple(missing) if word == "missing" else ()
