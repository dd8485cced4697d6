from __future__ import annotations

import subprocess
import sys
import typing
from pathlib import Path

import pytest

import rmq_spark.client.consumer as room

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", room.__all__)
def test_each_public_name_is_there(name):
    found = getattr(room, name)
    assert found.__name__ == name or isinstance(found, typing.Callable)


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="has no attribute Nothing"):
        room.Nothing  # noqa: B018  # asking for it is the point


def test_names_are_imported_when_they_are_used():
    script = "import sys, rmq_spark.client.consumer; print('rmq_spark.client.connection' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.strip() == "False"
