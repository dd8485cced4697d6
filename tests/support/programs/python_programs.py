"""Runs short Python programs, creates bare virtual environments, and reads lines with a timeout."""

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


def python_program(text, *arguments, cwd, env=None):
    """Run a program to its end; return its output and exit code."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_SECONDS,
        check=False,
    )


def python(*arguments, cwd, by=sys.executable):
    """Run Python with these arguments and a timeout, as in its activated environment."""
    outside = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    return subprocess.run(
        [by, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**outside, "PATH": f"{Path(by).parent}{os.pathsep}{os.environ['PATH']}"},
        timeout=_OF_PAGES_SECONDS,
    )


def last_line_of(*arguments, seconds):
    """Run Python with these arguments; return the last line of its output, parsed as JSON.

    Forks in a process with threads raise no warning.
    """
    __tracebackhide__ = True
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
    """Start a program in its own session, as a context manager; the test ends it."""
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
    """Return the next line; empty at the end, None after the timeout.

    The program may write a line only after the previous one was read, so that the stream buffers
    none.
    """
    with selectors.DefaultSelector() as said:
        said.register(stream, selectors.EVENT_READ)
        return stream.readline() if said.select(seconds) else None


def bare_python(directory, *packages):
    """Create a virtual environment that has only these packages; return its interpreter."""
    venv.create(directory, with_pip=False, symlinks=True)
    [site] = directory.glob("lib/python3*/site-packages")
    for package in packages:
        spec = importlib.util.find_spec(package)
        # a module that is a single file
        home = Path((spec.submodule_search_locations or [spec.origin])[0])
        for found in (home, home.with_name(f"{package}.libs")):
            if found.exists():
                (site / found.name).symlink_to(found)
    return str(directory / "bin" / "python")
