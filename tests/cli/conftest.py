"""A Python without pyspark, for commands that say so."""

import importlib.util
import re
from pathlib import Path

import pytest

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture
def pyspark_that_is_missing(monkeypatch):
    """It is not there; which of it the project wants."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyspark" else find(name)
    )
    [needed] = re.findall(
        r'^spark = \["(.+)"\]$', PYPROJECT.read_text(encoding="utf-8"), re.MULTILINE
    )
    return needed
