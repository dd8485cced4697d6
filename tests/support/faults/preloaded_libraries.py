"""Preloaded C libraries for processes started from now on."""

from __future__ import annotations

import shutil
import subprocess

import pytest


def preload(directory, monkeypatch, source):
    """Compile a library into a directory and preload it; skip the test if there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to make a system call fail with")
    written, library = directory / "preloaded.c", directory / "preloaded.so"
    written.write_text(source)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, written, "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
