"""The broker's metrics port: its paths, and the cost of a scrape for other clients."""

import asyncio
import errno
import socket

import pytest
from support.brokers.in_process import (
    in_loop,
    make_topic,
    on_broker,
    run,
    small_broker,
    started,
    tell,
)
from support.brokers.metrics_endpoint import got, scrape
from support.clients.remoting_clients import BrokerClients, send_request
from support.disks.faulty_disk import Fault, FaultyDisk

from rocketpoll.broker.controller import BrokerController
from rocketpoll.broker.server.fair_scheduler import TURN_SECONDS
from rocketpoll.broker.server.server import CannotListen
from rocketpoll.broker.store.files.disk import LocalDisk


@on_broker(metricsPort=0)
async def test_working_broker_is_healthy_and_ready(broker):
    port = broker.controller.metrics_port
    assert await got(port, "/healthz") == (200, "ok\n")
    assert await got(port, "/readyz") == (200, "ready\n")
    assert (await got(port, "/"))[0] == 404


@on_broker
async def test_disabled_metrics_port_listens_and_counts_nothing(broker):
    assert broker.controller.metrics_port is None
    assert broker.controller.descriptors() == broker.controller.server.descriptors()


def test_stopping_broker_is_not_healthy_until_its_end(tmp_path):
    disk = FaultyDisk(slow="commitlog")

    async def whole():
        config = small_broker(tmp_path, metricsPort=0, flushDiskType="SYNC_FLUSH")
        async with started(config, disk) as broker:
            broker.make_topic("T")
            port = broker.controller.metrics_port
            disk.keep_waiting()
            broker.controller.housekeeping.run_in_thread(disk.wait, lambda _: None)
            stopping = asyncio.ensure_future(broker.controller.stop())
            await asyncio.sleep(0)
            assert await got(port, "/readyz") == (503, "the broker is stopping\n")
            assert await got(port, "/healthz") == (200, "ok\n")
            assert (await scrape(port))("rocketpoll_ready") == 0
            disk.let_go()
            await stopping
            with pytest.raises(ConnectionRefusedError):
                await got(port, "/healthz")

    run(whole())


def test_broker_with_a_full_disk_is_healthy_but_not_ready(tmp_path):
    async def story(broker):
        broker.store.clean()
        status, why = await got(broker.controller.metrics_port, "/readyz")
        assert status == 503
        assert why.startswith("the disk is ")
        assert why.endswith("over 1%\n")
        assert (await got(broker.controller.metrics_port, "/healthz"))[0] == 200

    class NearlyFull(FaultyDisk):
        def usage(self, path):
            return super().usage(path)._replace(used=99, free=1)

    tell(story, tmp_path, NearlyFull(slow="commitlog"), metricsPort=0, diskSpaceWarningLevelRatio=1)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EMFILE])
def test_broker_that_cannot_write_is_not_ready_until_recovery(tmp_path, number):
    disk = FaultyDisk(LocalDisk())

    async def story(broker):
        broker.make_topic("T")
        port = broker.controller.metrics_port
        async with BrokerClients(broker.port) as clients:
            client = await clients.connect()
            await client.put("before")
            disk.plan = [Fault(persistent=True, kinds=frozenset({"write"}), error=number)]
            client.send(send_request("refused"))
            assert (await client.receive()).code == 14
            broker.store.retry_degraded()
            status, why = await got(port, "/readyz")
            assert status == 503
            assert "the commit log is not written" in why
            disk.plan = ()
            broker.store.retry_degraded()
            assert await got(port, "/readyz") == (200, "ready\n")
            await client.put("behind")
            assert (await client.pull(0)).bodies == ["before", "behind"]

    tell(story, tmp_path, disk, metricsPort=0)


def test_metrics_are_served_when_the_store_directory_is_gone(tmp_path):
    async def story(broker):
        (tmp_path / "own").rename(tmp_path / "aside")
        found = await scrape(broker.controller.metrics_port)
        assert found("rocketpoll_disk_total_bytes") > 0
        (tmp_path / "aside").rename(tmp_path / "own")

    tell(story, tmp_path / "own", metricsPort=0)


@on_broker(metricsPort=0, brokerRole="SLAVE")
async def test_slave_broker_is_ready_without_taking_messages(broker):
    assert await got(broker.controller.metrics_port, "/readyz") == (200, "ready\n")


@in_loop
async def test_metrics_port_in_use_stops_the_start_and_releases_the_directory(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        broken = BrokerController(small_broker(tmp_path, metricsPort=taken))
        with pytest.raises(CannotListen, match=r"for metrics: .* another metricsPort"):
            await broken.start()
    async with started(small_broker(tmp_path, metricsPort=taken)) as broker:
        assert broker.controller.metrics_port == taken


@in_loop
async def test_failed_broker_start_releases_the_metrics_port(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        broken = BrokerController(
            small_broker(tmp_path, metricsPort=0, listenPort=other.getsockname()[1])
        )
        with pytest.raises(CannotListen):
            await broken.start()
    with pytest.raises(ConnectionRefusedError):
        await got(broken.metrics_port, "/healthz")


@on_broker(metricsPort=0)
async def test_broker_with_many_queues_serves_others_during_a_scrape(broker):
    """Each turn of the loop is short, however many steps a scrape has."""
    tables = broker.controller.tables
    tables.groups.find_or_create("G")
    for number in range(8):
        make_topic(broker.controller, f"T{number}", queues=4_096)
        tables.offsets.commit("G", f"T{number}", 0, 0)
    client = await broker.connect()
    scraping = asyncio.ensure_future(scrape(broker.controller.metrics_port))
    turns = 0
    while not scraping.done():
        await client.ask(0)
        turns += 1
    assert turns > 2  # a scrape in one step would let one client in at most
    assert broker.controller.scheduler._remaining_seconds <= TURN_SECONDS
    assert (await scraping)("rocketmq_consumer_lag_messages", topic="T7") == 0
