"""`rocketpoll.aio` and `rocketpoll.opentelemetry` export their names, and load on demand."""

import pytest
from support.programs.python_programs import python_program

import rmq_spark.client.aio.consumer
import rmq_spark.client.opentelemetry
from rocketpoll import aio, opentelemetry


@pytest.mark.parametrize("module", [aio, opentelemetry])
def test_optional_module_exports_every_name(module):
    assert {name: getattr(module, name).__name__ for name in module.__all__} == {
        name: name for name in module.__all__
    }


def test_names_of_optional_modules_are_those_of_the_client():
    assert aio.Consumer is rmq_spark.client.aio.consumer.Consumer
    assert opentelemetry.instrument is rmq_spark.client.opentelemetry.instrument


@pytest.mark.parametrize(
    "modules",
    [
        {"asyncio", "rocketpoll.aio", "rmq_spark.client.aio"},
        {"opentelemetry", "rocketpoll.opentelemetry"},
    ],
)
def test_import_of_rocketpoll_does_not_import_optional_modules(tmp_path, modules):
    done = python_program(
        "import sys, rocketpoll\n"
        "rocketpoll.Producer, rocketpoll.LitePullConsumer, rocketpoll.PushConsumer\n"
        f"print({modules} & set(sys.modules))",
        cwd=tmp_path,
    )
    assert done.stdout == "set()\n", done.stderr
