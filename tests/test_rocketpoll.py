"""The front door: what tests and notebooks import, and a clear word where their own module is in the way."""

from __future__ import annotations

import pytest
from python_programs import ROOT, python_program

import rocketpoll


def test_every_name_that_it_promises_is_there():
    for name in dir(rocketpoll):
        assert getattr(rocketpoll, name).__name__ == name
    assert set(dir(rocketpoll)) == set(rocketpoll._MODULES)
    with pytest.raises(AttributeError, match="no attribute 'Embedded'"):
        _ = rocketpoll.Embedded


def test_importing_it_brings_nothing_along(tmp_path):
    heavy = ("broker", "rmq_spark", "numpy", "pyarrow", "pyspark")
    done = python_program(f"import sys, rocketpoll; print(set({heavy}) & set(sys.modules))", cwd=tmp_path)
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.parametrize("stray", ["broker.py", "broker/__init__.py"])
def test_a_module_of_the_users_that_is_called_broker_is_named(tmp_path, stray):
    path = tmp_path / stray
    path.parent.mkdir(exist_ok=True)
    path.write_text("", encoding="utf-8")
    done = python_program("from rocketpoll import EmbeddedBroker", cwd=tmp_path)
    assert f"rocketpoll's broker is in {ROOT / 'broker'}, but 'import broker' finds {path}" in done.stderr
