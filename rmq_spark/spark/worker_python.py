"""The Python in which Spark will plan and read: whether it has what it needs, checked at `load()`.

Spark starts it itself, and takes the one that PYSPARK_PYTHON names, or else python3 of PATH,
whichever runs the driver. If it lacks a package, all that Spark says, a minute later, is that a
worker has not connected.
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

_VARIABLE: Final = "PYSPARK_PYTHON"
_DEFAULT: Final = "python3"
_NEEDED: Final = ("rmq_spark", "numpy", "pyarrow", "orjson")
_SECONDS: Final = 20
_PROBE: Final = """
import importlib.util, sys
print("missing", *[name for name in sys.argv[1:] if importlib.util.find_spec(name) is None])
"""


def check_worker_python() -> None:
    """Refuse a Python that lacks packages: this one, or the one that workers will be.

    Spark may call this in a worker already, which finds the sources on a path and nothing else. A
    worker Python that cannot be looked at from here is accepted.

    Raises:
        SetUpError: The message names that Python, what it lacks, and the line to type.
    """
    named = os.environ.get(_VARIABLE)
    origin = f"{_VARIABLE} names it" if named else f"{_VARIABLE} is not set, and PATH has it first"
    path = shutil.which(named or _DEFAULT)
    missing = tuple(name for name in _NEEDED if find_spec(name) is None)
    if missing:
        raise SetUpError(
            f"Spark runs this query in {sys.executable}{f' ({origin})' if path else ''}, which has "
            f"no {', '.join(missing)}. Before Spark is started: export {_VARIABLE}=, and there the "
            "Python in which rocketpoll was installed with pip"
        )
    if path is None or path == sys.executable:
        return
    missing = _missing_in(path, os.pathsep.join(_path_of_its_own()))
    if missing:
        raise SetUpError(
            f"Spark would run this query in {path} ({origin}), which has no {', '.join(missing)}; "
            f"{sys.executable} has. Before Spark is started: export {_VARIABLE}="
            + shlex.quote(sys.executable)
        )


def _path_of_its_own() -> list[str]:
    """Return the module path that Spark or the user has set, which workers get as well."""
    prefixes = (sys.prefix, sys.base_prefix)
    return [entry for entry in sys.path if entry and not entry.startswith(prefixes)]


@cache
def _missing_in(path: str, module_path: str) -> tuple[str, ...]:
    try:
        done = subprocess.run(  # noqa: S603  # the user's own Python
            [path, "-c", _PROBE, *_NEEDED],
            env={**os.environ, "PYTHONPATH": module_path},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    word, *missing = done.stdout.split() or [""]
    return tuple(missing) if word == "missing" else ()
