"""Fixtures with Apache RocketMQ's own classes: called in batches, and as clients of a running
broker.

If they cannot be built, the tests are skipped with the reason; with ROCKETPOLL_REQUIRE_INTEROP=1
they fail.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.brokers.broker_kinds import RunningBroker, every_kind, started_broker, wait_until_known
from support.rocketmq import java_vectors
from support.rocketmq.java_clients import JavaClients, Scenario
from support.rocketmq.java_programs import JavaProgram, java_program
from support.rocketmq.real_broker import RocketMQ

ANSWER_SECONDS_MAX = 120


def pytest_itemcollected(item):
    """Mark the tests of this folder, which start JVMs, built once by Maven."""
    item.add_marker("deep")


class Java:
    """RocketMQ's classes of one version; each call is a process."""

    def __init__(self, version: str, program: JavaProgram) -> None:
        self.version = version
        self._command = program.command("rocketpoll.vectors.Main")

    def write(self, directory: Path) -> None:
        """Write the vectors of this version."""
        self._run("write", str(directory))

    def read(
        self, kind: str, said: Mapping[str, bytes], classes: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return what Java reads from each of these, as a class where the kind needs one, or
        ``refused: why``."""
        of = classes or {}
        lines = [
            f"{name}\t{kind}\t{of.get(name, '')}\t{data.hex()}\n" for name, data in said.items()
        ]
        answers = [json.loads(line) for line in self._run("read", text="".join(lines)).splitlines()]
        return {
            each["id"]: each["value"] if each["ok"] else f"refused: {each['error']}"
            for each in answers
        }

    def _run(self, *arguments: str, text: str = "") -> str:
        __tracebackhide__ = True
        run = subprocess.run(
            [*self._command, *arguments],
            input=text,
            capture_output=True,
            encoding="utf-8",
            timeout=ANSWER_SECONDS_MAX,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        return run.stdout


@pytest.fixture(scope="session", params=java_vectors.VERSIONS)
def java(request) -> Java:
    """Return RocketMQ's classes of each version."""
    return Java(request.param, java_program("vectors", request.param))


@pytest.fixture(scope="session", params=every_kind(java_vectors.VERSIONS))
def java_broker(request, tmp_path_factory) -> Iterator[RunningBroker]:
    """Run each kind of broker for the clients of each version."""
    yield from started_broker(request.param, tmp_path_factory.mktemp("broker"))


@pytest.fixture(scope="session")
def java_clients(java_broker, tmp_path_factory) -> Iterator[JavaClients]:
    """Start a JVM with clients of the broker."""
    with JavaClients(
        java_broker.version, tmp_path_factory.mktemp("clients"), java_broker.name_server
    ) as clients:
        wait_until_known(java_broker, clients)
        yield clients


@pytest.fixture
def more_clients(java_broker, tmp_path) -> Iterator[JavaClients]:
    """Start another JVM with clients, for one test."""
    with JavaClients(java_broker.version, tmp_path, java_broker.name_server) as clients:
        yield clients


@pytest.fixture
def impatient_clients(java_broker, tmp_path) -> Iterator[JavaClients]:
    """Start clients that rebalance every half second, without notifications."""
    often = "-Drocketmq.client.rebalance.waitInterval=500"
    with JavaClients(java_broker.version, tmp_path, java_broker.name_server, often) as clients:
        yield clients


@pytest.fixture
def scenario(request, java_broker, java_clients) -> Iterator[Scenario]:
    """Return topics, groups and clients for one test."""
    name = request.node.originalname.removeprefix("test_").replace("_", "-")
    scenario = Scenario(java_clients, java_broker.address, name[:80])
    yield scenario
    scenario.stop()


@pytest.fixture(scope="module", params=java_vectors.TRIED_VERSIONS)
def rocketmq(request, tmp_path_factory) -> Iterator[RocketMQ]:
    """Run a name server of each version; tests start their own brokers."""
    name_server = RocketMQ(request.param, tmp_path_factory.mktemp("rocketmq"))
    yield name_server
    name_server.kill()
