"""Spark runtime: finds the Java on which Spark would run, and checks its version."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

JAVA_VERSION_MIN: Final = 17
INSTALL_JAVA: Final = (
    "Spark 4 needs Java 17 or 21. On Debian or Ubuntu run apt-get install -y "
    "openjdk-17-jre-headless (or openjdk-21-jre-headless); elsewhere see https://adoptium.net. If "
    "it is installed, set JAVA_HOME to its directory"
)

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_TIMEOUT_SECONDS: Final = 30


class Java(NamedTuple):
    """A Java that was found; ``version`` is None if its version is not known."""

    path: str
    version: int | None

    @property
    def is_new_enough(self) -> bool:
        """True if Spark 4 runs on this Java."""
        return self.version is not None and self.version >= JAVA_VERSION_MIN


def find_java() -> Java | None:
    """Return the Java of JAVA_HOME, or else of PATH, as Spark looks for it, or None."""
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if path is None or not os.access(path, os.X_OK):
        return None
    try:
        done = subprocess.run(  # noqa: S603  # the user's own Java
            [path, "-version"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return Java(path, None)
    match = _VERSION.search(done.stderr + done.stdout)
    return Java(path, int(match[1]) if match else None)


def java_fault() -> str | None:
    """Return the problem with the Java found, and the remedy; None if there is none."""
    java = find_java()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on PATH"
        return f"{where}. {INSTALL_JAVA}"
    if not java.is_new_enough:
        return f"{java.path} is Java {java.version or 'of an unknown version'}. {INSTALL_JAVA}"
    return None


# ---- The pyspark that commands need: checks for it, and how to install it.

INSTALL_PYSPARK: Final = f"{shlex.quote(sys.executable)} -m pip install 'pyspark>=4.0,<4.4'"


def has_pyspark() -> bool:
    """Return whether this Python would find pyspark, without importing it."""
    return importlib.util.find_spec("pyspark") is not None
