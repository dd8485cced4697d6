"""A broker process that runs out of descriptors goes on for those who are there, and lets others in later."""

from __future__ import annotations

import asyncio
import resource
import time

import pytest
from broker_clients import BrokerClients, send_request
from broker_processes import BrokerProcess


@pytest.fixture(params=["uvloop", "asyncio"])
def _loop(request, tmp_path, monkeypatch):
    """The broker runs on uvloop where it is there, and on asyncio's own loop where it is not."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    else:
        (tmp_path / "without").mkdir()
        (tmp_path / "without" / "uvloop.py").write_text("raise ImportError")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "without"))


async def is_logged(broker, text):
    """Wait until the broker has logged a text."""
    until = time.monotonic() + 20
    while not any(text in line for line in broker.log()):
        assert time.monotonic() < until, broker.log()
        await asyncio.sleep(0.05)


async def serves(clients, **more):
    """Whether the broker lets somebody in, and takes a message."""
    try:
        client = await clients.connect()
        answer = await asyncio.wait_for(client.call(send_request("x", **more)), 2)
    except (OSError, AssertionError, asyncio.TimeoutError):  # it was closed, or nobody answers
        return False
    assert answer.code == 0, answer.remark
    return True


@pytest.mark.usefixtures("_loop")
def test_clients_that_find_no_descriptor_are_let_in_when_there_are_some_again(tmp_path):
    async def story(broker):
        async with BrokerClients(broker.port) as clients:
            first = await clients.connect()
            await first.put("before")
            few = max(broker.descriptors()) + 3
            hard = resource.prlimit(broker._process.pid, resource.RLIMIT_NOFILE)[1]
            broker.limit_descriptors(few, hard)
            while await serves(clients):
                pass
            await is_logged(broker, "no new clients get in")
            await first.put("meanwhile")
            broker.limit_descriptors(hard, hard)
            await is_logged(broker, "new clients get in again")
            assert await serves(clients)
            await first.put("after")

    # With SYNC_FLUSH all names are on the disk when the first message is.
    with BrokerProcess(tmp_path, maxAcceptsPerSecond="10000", flushDiskType="SYNC_FLUSH") as broker:
        asyncio.run(story(broker))
        told = [line for line in broker.log() if " ERROR broker.server " in line or " ERROR asyncio " in line]
        assert broker.stop() == 0
    assert len(told) == 1, told


@pytest.mark.usefixtures("_loop")
def test_a_broker_with_few_descriptors_takes_fewer_clients_and_keeps_some_for_its_files(tmp_path):
    async def story(broker):
        async with BrokerClients(broker.port) as clients:
            first = await clients.connect()
            await first.put("before")
            flood = [await serves(clients, topic=f"T{number % 5}") for number in range(200)]
            assert 140 <= sum(flood) <= 149
            for number in range(60):  # each has a queue file of its own
                await first.put("meanwhile", topic=f"New{number}")

    with BrokerProcess(tmp_path, descriptors_max=300, maxAcceptsPerSecond="10000") as broker:
        asyncio.run(story(broker))
        assert broker.stop() == 0
        log = "\n".join(broker.log())
    assert "maxConnections is 150 and maxOpenFiles 50, as the system allows 300" in log
    assert "there are 150 connections already (maxConnections)" in log
    assert "no new clients get in" not in log
