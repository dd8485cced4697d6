"""`rocketpoll.opentelemetry` exports its names, and costs nothing where it is not imported."""

from support.programs.python_programs import python_program

import rmq_spark.client.opentelemetry
from rocketpoll import opentelemetry


def test_rocketpoll_opentelemetry_exports_every_name():
    assert {name: getattr(opentelemetry, name).__name__ for name in opentelemetry.__all__} == {
        name: name for name in opentelemetry.__all__
    }
    assert opentelemetry.instrument is rmq_spark.client.opentelemetry.instrument


def test_import_of_rocketpoll_does_not_import_opentelemetry(tmp_path):
    done = python_program(
        "import sys, rocketpoll; rocketpoll.Producer, rocketpoll.PushConsumer\n"
        "print({'opentelemetry', 'rocketpoll.opentelemetry'} & set(sys.modules))",
        cwd=tmp_path,
    )
    assert done.stdout == "set()\n", done.stderr
