"""Short programs run by the Python that runs the tests, bare virtual environments, and lines of
output with a time limit.
"""

from __future__ import annotations

import importlib.util
import json
import os
import selectors
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

ROOT = Path(__file__).parents[3]
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


def line_within(stream, seconds):
    """The next line, empty at the end; None if nothing is said in time.

    Lines come one by one, each when the one before has been read: none waits within the stream.
    """
    with selectors.DefaultSelector() as said:
        said.register(stream, selectors.EVENT_READ)
        return stream.readline() if said.select(seconds) else None


def bare_python(directory, *packages):
    """A virtual environment in a directory, with these packages; its interpreter."""
    venv.create(directory, with_pip=False, symlinks=True)
    [site] = directory.glob("lib/python3*/site-packages")
    for package in packages:
        spec = importlib.util.find_spec(package)
        home = Path((spec.submodule_search_locations or [spec.origin])[0])  # a module is a file
        for found in (home, home.with_name(f"{package}.libs")):
            if found.exists():
                (site / found.name).symlink_to(found)
    return str(directory / "bin" / "python")
