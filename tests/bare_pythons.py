"""Pythons that have some of the packages that run the tests, and no others: a cluster's,
a newcomer's."""

from __future__ import annotations

import importlib.util
import venv
from pathlib import Path


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
