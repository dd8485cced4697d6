"""The documentation site, built in strict mode."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 300
needs_mkdocs = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("material", "mkdocstrings")),
    reason="building the site needs mkdocs: pip install '.[docs]'",
)


def built(directory):
    """Build the site into a directory; return the directory."""
    __tracebackhide__ = True
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", directory],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return directory
