"""The front door: every name is there and costs nothing before it is used;
all errors have one place."""

from __future__ import annotations

import inspect

import pytest
from python_programs import ROOT, python_program

import rmq_spark.client.errors
import rmq_spark.errors
import rocketpoll
import rocketpoll.errors


def test_every_name_that_it_promises_is_there():
    for name in dir(rocketpoll):
        assert getattr(getattr(rocketpoll, name), "__name__", name) == name
    assert set(dir(rocketpoll)) == set(rocketpoll._MODULES) == set(rocketpoll.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Embedded'"):
        _ = rocketpoll.Embedded


def test_its_errors_are_all_that_can_be_raised():
    defined = {
        name: error
        for module in (rmq_spark.errors, rmq_spark.client.errors)
        for name, error in vars(module).items()
        if inspect.isclass(error) and issubclass(error, rmq_spark.errors.RocketPollError)
    }
    assert {name: getattr(rocketpoll.errors, name) for name in rocketpoll.errors.__all__} == defined


def test_importing_it_brings_nothing_along(tmp_path):
    heavy = ("rocketpoll.broker", "rmq_spark", "numpy", "pyarrow", "pyspark")
    done = python_program(
        f"import sys, rocketpoll; print(set({heavy}) & set(sys.modules))", cwd=tmp_path
    )
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.parametrize("stray", ["broker.py", "broker/__init__.py"])
def test_a_module_of_the_users_that_is_called_broker_is_not_in_the_way(tmp_path, stray):
    path = tmp_path / stray
    path.parent.mkdir(exist_ok=True)
    path.write_text("NAME = 'of the user'\n", encoding="utf-8")
    done = python_program(
        """
        import broker
        from rocketpoll import EmbeddedBroker
        with EmbeddedBroker(own_process=True) as ours:
            ours.send("orders", "one")
            print(broker.NAME, *[message.body for message in ours.messages("orders")])
        """,
        cwd=tmp_path,
    )
    assert done.stdout == "of the user b'one'\n", done.stderr


def test_the_broker_has_one_name_only(tmp_path):
    """Where the repository itself is on the path of modules,
    its folder can be found by the wrong name."""
    done = python_program("import broker", cwd=ROOT)
    assert (
        "ImportError: this is rocketpoll's broker, which is imported as rocketpoll.broker"
        in done.stderr
    )
