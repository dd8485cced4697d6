"""Programs of a few lines, run by the Python that runs the tests, as their users would run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parent.parent
_PATIENCE_SECONDS = 60
_OF_PAGES_SECONDS = 300


def python_program(text, *arguments, cwd):
    """Run it to its end; what it printed and with which code it ended."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_SECONDS,
        check=False,
    )


def python(*arguments, cwd, by=sys.executable):
    """Run Python with these, for so long and no longer, and with it where Spark needs one."""
    return subprocess.run(
        [by, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYSPARK_PYTHON": str(by)},
        timeout=_OF_PAGES_SECONDS,
    )


def last_line_of(*arguments, seconds):
    """Run Python with these arguments, a fork in a process of threads allowed, to a good end.

    Return what the last line that it prints says, in JSON.
    """
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def started_python_program(text, *arguments, cwd, quiet=False):
    """Start it in a session of its own; to be used in a with statement, and ended by the test."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)],
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else None,
        text=True,
        start_new_session=True,
    )
