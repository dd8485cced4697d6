"""A broker out of file descriptors keeps serving its clients, and accepts new ones later."""

import asyncio
import resource
import time

import pytest
from support.brokers.processes import BrokerProcess
from support.clients.remoting_clients import BrokerClients, send_request
from support.faults.preloaded_libraries import preload


@pytest.fixture(params=["uvloop", "asyncio"])
def _loop(request, tmp_path, monkeypatch):
    """Run the broker on uvloop if installed, and on asyncio's loop."""
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
    """Return whether the broker accepts a new client, and a message."""
    try:
        client = await clients.connect()
        answer = await asyncio.wait_for(client.call(send_request("x", **more)), 2)
    # the connection was closed or timed out
    except (OSError, AssertionError, asyncio.TimeoutError):
        return False
    assert answer.code == 0, answer.remark
    return True


@pytest.mark.usefixtures("_loop")
def test_clients_are_accepted_again_after_descriptors_were_exhausted(tmp_path):
    async def story(broker):
        async with BrokerClients(broker.port) as clients:
            first = await clients.connect()
            await first.put("before")
            few = max(broker.descriptors()) + 3
            hard = resource.prlimit(broker._process.pid, resource.RLIMIT_NOFILE)[1]
            broker.limit_descriptors(few, hard)
            while await serves(clients):
                pass
            await is_logged(broker, "accepting clients failed")
            await first.put("meanwhile")
            broker.limit_descriptors(hard, hard)
            await is_logged(broker, "accepting clients again")
            assert await serves(clients)
            await first.put("after")

    # With SYNC_FLUSH all names are on the disk when the first message is.
    with BrokerProcess(tmp_path, maxAcceptsPerSecond="10000", flushDiskType="SYNC_FLUSH") as broker:
        asyncio.run(story(broker))
        told = [
            line for line in broker.log() if " ERROR server: " in line or " ERROR asyncio: " in line
        ]
        assert broker.stop() == 0
    assert len(told) == 1, told


@pytest.mark.usefixtures("_loop")
def test_broker_with_few_descriptors_limits_clients_and_reserves_some_for_files(tmp_path):
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
    assert "maxConnections is 150 and maxOpenFiles 50: ulimit -Hn allows 300" in log
    assert "refused new clients: maxConnections" in log
    assert "accepting clients failed" not in log


LIBRARY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags) {
    static int (*real)(int, struct sockaddr *, socklen_t *, int);
    int told = open(getenv("LACKS"), O_WRONLY | O_APPEND);
    if (told >= 0) {
        if (write(told, ".", 1) < 0) abort();
        close(told);
        errno = ENOMEM;
        return -1;
    }
    if (!real) real = dlsym(RTLD_NEXT, "accept4");
    return real(fd, address, length, flags);
}

int accept(int fd, struct sockaddr *address, socklen_t *length) {
    return accept4(fd, address, length, 0);
}
"""
"""A library that makes accept() fail for lack of memory while a file exists, and counts the
attempts in it."""


@pytest.fixture
def lacks(tmp_path, monkeypatch):
    """Start processes with a system that lacks descriptors while the returned file exists."""
    preload(tmp_path, monkeypatch, LIBRARY)
    file = tmp_path / "lacks"
    monkeypatch.setenv("LACKS", str(file))
    return file


async def asked(lacks, count):
    """Wait for this number of further attempts; return their rate per second."""
    began, before = time.monotonic(), lacks.stat().st_size
    while (more := lacks.stat().st_size - before) < count:
        assert time.monotonic() < began + 20
        await asyncio.sleep(0.05)
    return more / max(time.monotonic() - began, 1)


@pytest.mark.usefixtures("_loop")
def test_clients_wait_while_memory_for_connections_is_exhausted(tmp_path, lacks):
    async def story(broker):
        async with BrokerClients(broker.port) as clients:
            first = await clients.connect()
            await first.put("before")
            lacks.touch()
            waiting = asyncio.ensure_future(serves_sometime(clients))
            await is_logged(broker, "accepting clients failed")
            await asked(lacks, 1)
            assert await asked(lacks, 2) < 50, "it is tried again and again, at once"
            await first.put("meanwhile")
            lacks.unlink()
            await is_logged(broker, "accepting clients again")
            await waiting
            assert await serves(clients)

    with BrokerProcess(tmp_path, maxAcceptsPerSecond="10000") as broker:
        asyncio.run(story(broker))
        told = [
            line for line in broker.log() if " ERROR server: " in line or " ERROR asyncio: " in line
        ]
        assert broker.stop() == 0
    assert len(told) == 1, told
    assert "Cannot allocate memory" in told[0]


async def serves_sometime(clients):
    """Connect a client with a long timeout."""
    client = await clients.connect()
    answer = await asyncio.wait_for(client.call(send_request("x")), 30)
    assert answer.code == 0, answer.remark
