"""The command line in this process, on a broker of each kind; and a missing pyspark, for commands
that report it."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from support.brokers.broker_kinds import NAME
from support.brokers.clusters import EVERY_CLUSTER, Cluster, running

from rmq_spark.cli.main import main

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


class Ran(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def lines(self):
        return self.out.splitlines()


@pytest.fixture(scope="module", params=EVERY_CLUSTER)
def kind(request):
    """Return the kind of broker: ours, or a release of RocketMQ."""
    return request.param


@pytest.fixture(scope="module")
def broker_directory(kind, tmp_path_factory):  # pytest needs the dependency on the kind
    """Return the directory of the broker, which contains its ``store``."""
    return tmp_path_factory.mktemp("broker")


@pytest.fixture(scope="module")
def addresses(kind, broker_directory):
    """Run one broker for each file of tests; return its addresses."""
    with running(kind, broker_directory) as found:
        yield found


@pytest.fixture
def cluster(addresses):
    name_server, address = addresses
    made = Cluster(name_server, address, NAME)
    yield made
    made.close()


@pytest.fixture
def run(capsys, monkeypatch, request):
    """Return a function that runs a command as a shell would, on the test's cluster if
    it has one."""
    for variable in ("NAMESRV_ADDR", "ROCKETPOLL_ACCESS_KEY", "ROCKETPOLL_SECRET_KEY"):
        monkeypatch.delenv(variable, raising=False)
    if "cluster" in request.fixturenames:
        monkeypatch.setenv("NAMESRV_ADDR", request.getfixturevalue("cluster").name_server)

    def ran(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = main([str(each) for each in arguments])
        return Ran(code, *capsys.readouterr())

    return ran


@pytest.fixture
def pyspark_that_is_missing(monkeypatch):
    """Hide pyspark from commands."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyspark" else find(name)
    )
    [needed] = re.findall(
        r'^spark = \["(.+)"\]$', PYPROJECT.read_text(encoding="utf-8"), re.MULTILINE
    )
    return needed
