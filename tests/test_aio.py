"""`rocketpoll.aio` exports its names, and costs nothing where it is not imported."""

from support.programs.python_programs import python_program

import rmq_spark.client.aio.consumer
from rocketpoll import aio


def test_rocketpoll_aio_exports_every_name():
    assert {name: getattr(aio, name).__name__ for name in aio.__all__} == {
        name: name for name in aio.__all__
    }
    assert aio.Consumer is rmq_spark.client.aio.consumer.Consumer


def test_import_of_rocketpoll_does_not_import_asyncio(tmp_path):
    done = python_program(
        "import sys, rocketpoll; rocketpoll.Producer, rocketpoll.LitePullConsumer\n"
        "print({'asyncio', 'rocketpoll.aio', 'rmq_spark.client.aio'} & set(sys.modules))",
        cwd=tmp_path,
    )
    assert done.stdout == "set()\n", done.stderr
