"""The controller starts and stops all parts in order, and leaves nothing behind on failure."""

import asyncio
import logging
from dataclasses import replace
from enum import Enum
from operator import attrgetter
from pathlib import Path

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
from support.clients.remoting_clients import pull_request, pulled, send_request
from support.disks.faulty_disk import FaultyDisk, ManualClock
from support.suite.log_records import lines_of

from rmq_spark.wire.bodies import decode_body
from rmq_spark.wire.bodies.configs import DataVersion
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.message.hosts import parse_host
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.common.setting import Secret
from rocketpoll.broker.controller import BrokerController
from rocketpoll.broker.server.server import CannotListen
from rocketpoll.broker.settings.settings import KEYS, RELOADABLE
from rocketpoll.broker.store.errors import DamagedTable, StoreInUse

pytestmark = pytest.mark.usefixtures("on_each_loop")


@on_broker
async def test_start_on_a_store_directory_in_use_is_refused(broker):
    await (await broker.connect()).put("a")
    with pytest.raises(StoreInUse):
        await BrokerController(broker.limits).start()
    assert (await (await broker.connect()).pull(0)).bodies == ["a"]


@in_loop
async def test_failed_controller_start_releases_the_store_directory(tmp_path):
    async with started(small_broker(tmp_path / "one")) as broker:
        other = small_broker(tmp_path / "two", listenPort=broker.port)
        with pytest.raises(CannotListen):
            await BrokerController(other).start()
    table = tmp_path / "two" / "config" / "topics.json"
    good = table.read_bytes()
    for path in (table, table.with_name("topics.json.bak")):
        path.write_bytes(b"{{{")
    with pytest.raises(DamagedTable):
        await BrokerController(small_broker(tmp_path / "two")).start()
    table.write_bytes(good)
    async with started(small_broker(tmp_path / "two")):
        pass


def test_advertised_address_is_the_dialed_one_or_broker_ip1(tmp_path):
    class Dialled:
        local_host = parse_host("192.168.7.7:1234")  # for example its VIP channel

    async def story(broker):
        address = broker.limits.broker_ip1 or "192.168.7.7"
        assert str(broker.controller.advertised_host(Dialled())) == f"{address}:{broker.port}"

    tell(story, tmp_path / "one")
    tell(story, tmp_path / "two", brokerIP1="10.0.0.3")


def test_stop_under_load_answers_every_client(tmp_path, caplog):
    async def whole():
        async with started(small_broker(tmp_path, flushDiskType="SYNC_FLUSH")) as broker:
            broker.make_topic("T")
            consumers = [await broker.connect() for _ in range(4)]
            producers = [await broker.connect() for _ in range(4)]
            for number, consumer in enumerate(consumers):
                consumer.send(pull_request(0, queue_id=number, suspend_ms=60_000))
            await broker.held(4)
            for number, producer in enumerate(producers):
                producer.send(
                    b"".join(send_request(n, queue_id=number).encode() for n in range(50))
                )
            await producers[0].receive()
            stopping = asyncio.ensure_future(broker.controller.stop())
            for consumer in consumers:
                assert pulled(await consumer.receive()).code in {0, 19}
            acknowledged = [len(await _answers(producer)) for producer in producers]
            await stopping
        async with started(small_broker(tmp_path)) as broker:
            for number, count in enumerate(acknowledged):
                high = broker.store.queue_offsets("T", number).next
                assert high >= count + (number == 0)

    caplog.set_level(logging.WARNING)
    run(whole())
    assert lines_of(caplog) == []


@pytest.mark.parametrize("flush_disk_type", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_requests_during_stop_are_refused_after_earlier_ones_are_answered(
    tmp_path, flush_disk_type
):
    disk = FaultyDisk(slow="commitlog")

    async def whole():
        async with started(small_broker(tmp_path, flushDiskType=flush_disk_type), disk) as broker:
            broker.make_topic("T")
            early, late = await broker.connect(), await broker.connect()
            await late.ask(0)
            disk.keep_waiting()
            early.send(send_request("early"))
            await broker.until(lambda: broker.store.state().written_offset)
            if flush_disk_type == "ASYNC_FLUSH":  # a flush is another reason for a stop to wait
                broker.controller.housekeeping.run_in_thread(disk.wait, lambda _: None)
            stopping = asyncio.ensure_future(broker.controller.stop())
            await asyncio.sleep(0)
            refusal = await late.call(send_request("late"))
            assert (refusal.code, refusal.remark) == (14, "the broker is stopping")
            disk.let_go()
            assert (await early.receive()).code == 0
            await stopping
        async with started(small_broker(tmp_path)) as broker:
            assert broker.store.queue_offsets("T", 0) == (0, 1)

    run(whole())


def test_request_waiting_for_a_file_is_answered_before_stop_closes_it(tmp_path):
    disk = FaultyDisk(slow="commitlog")

    async def whole():
        async with started(small_broker(tmp_path), disk) as broker:
            broker.make_topic("T")
            client = await broker.connect()
            await client.ask(0)
            disk.keep_waiting()
            broker.controller.housekeeping.run_in_thread(disk.wait, lambda _: None)
            client.send(RemotingCommand(215, opaque=7, ext_fields={"topic": "T"}))
            await client.ask(0)
            stopping = asyncio.ensure_future(broker.controller.stop())
            await asyncio.sleep(0)
            disk.let_go()
            answer = await client.receive()
            assert (answer.opaque, answer.code) == (7, 0)
            await stopping

    run(whole())


async def _answers(client):
    """Return the successes among all remaining responses; a slow disk may make the broker busy."""
    said = []
    while True:
        try:
            answer = await client.receive()
        except (AssertionError, ConnectionError):
            return said
        assert answer.code in {0, 2, 14}
        said += [answer] * (answer.code == 0)


def test_stopped_broker_runs_no_timer(tmp_path, caplog):
    async def whole():
        async with started(small_broker(tmp_path, flushDiskType="SYNC_FLUSH")) as broker:
            client = await broker.connect()
            await client.put("a", properties={"DELAY": "1"})
            await client.put("b")
            client.send(pull_request(1, suspend_ms=60_000))
            await broker.held(1)
        asyncio.get_running_loop().move(3_600)
        for _ in range(20):
            await asyncio.sleep(0)

    caplog.set_level(logging.INFO)
    run(whole())
    assert lines_of(caplog) == []


@pytest.mark.parametrize("name", ["topics.json", "delayOffset.json"])
def test_table_loaded_from_backup_is_logged(tmp_path, name, caplog):
    async def story(broker):
        broker.make_topic("T")
        broker.controller.schedule.record_arrival(30, 0)
        broker.controller.schedule._advance(31, 1)

    tell(story, tmp_path)
    table = tmp_path / "config" / name
    table.with_name(f"{name}.bak").write_bytes(table.read_bytes())
    table.write_bytes(b"{{{")
    assert lines_of(caplog) == []
    tell(story, tmp_path)
    assert [record.levelname for record in caplog.records if name in record.getMessage()] == [
        "WARNING"
    ]
    assert f"is now {name}.corrupt" in caplog.text


def test_clock_jump_closes_no_client_and_silent_one_is_closed(tmp_path):
    clock = ManualClock()

    async def story(broker):
        consumers = broker.controller.processors.consumers
        client = await broker.connect()
        await client.heartbeat("G", "T")
        for jump_ms in (10 * 365 * 86_400_000, -86_400_000):
            clock.now_ms += jump_ms
            broker.move(15)
            await client.ask(0)
            assert consumers.group("G") is not None
        broker.move(40)
        await broker.until(lambda: consumers.group("G") is None)

    tell(story, tmp_path, now_ms=clock, clientExpiredTimeoutMills=60_000)


@in_loop
async def test_two_brokers_in_one_process_are_independent(tmp_path):
    async with (
        started(small_broker(tmp_path / "a")) as one,
        started(small_broker(tmp_path / "b")) as two,
    ):
        make_topic(two.controller)
        await (await one.connect()).put("only here")
        assert (await (await two.connect()).pull(0)).bodies == []


@on_broker
async def test_reloaded_limits_apply_at_once(broker, tmp_path):
    client = await broker.connect()
    await client.put("a", topic="T1")
    topics = broker.controller.tables.topics.limited_topics
    tight = small_broker(tmp_path, maxTopics=topics, maxConnections=1, listenPort=1)
    reload = broker.controller.reload(tight)
    assert set(reload.reloaded) == {f"maxTopics={topics}", "maxConnections=1"}
    assert reload.need_restart == ("listenPort=1",)
    refused = await client.call(send_request("a", topic="T2"))
    assert f"(maxTopics={topics})" in refused.remark
    turned_away = await broker.connect()
    await broker.until(lambda: broker.controller.server.refused["maxConnections"])
    turned_away.close()


@on_broker
async def test_reloaded_table_limits_apply_at_once(broker, tmp_path):
    client = await broker.connect()
    await client.put("a", topic="T1")
    tables = broker.controller.tables
    queues = sum(each.write_queue_nums for each in tables.topics.topics.values())
    tight = {"maxQueues": queues, "maxGroups": 7, "maxConsumerOffsets": 9}
    broker.controller.reload(small_broker(tmp_path, **tight))
    refused = await client.call(send_request("a", topic="T2"))
    assert f"(maxQueues={queues})" in refused.remark
    assert (tables.groups.max_groups, tables.offsets.max_offsets) == (7, 9)


# Paths of the values in use, by reloadable setting.
VALUES_IN_USE = {
    "maxConnections": "server.limits.max_connections",
    "maxConnectionsPerAddress": "server.limits.max_connections_per_address",
    "maxAcceptsPerSecond": "server.limits.max_accepts_per_second",
    "firstFrameTimeoutMills": "server.limits.first_frame_timeout_ms",
    "partialFrameTimeoutMills": "server.limits.partial_frame_timeout_ms",
    "serverChannelMaxIdleTimeMills": "server.limits.idle_timeout_ms",
    "slowReaderTimeoutMills": "server.limits.slow_reader_timeout_ms",
    "maxInFlightBytes": "server.limits.in_flight_bytes_max",
    "tls.server.mode": "tls._config.mode",
    "tls.server.certPath": "tls._config.cert_path",
    "tls.server.keyPath": "tls._config.key_path",
    "tls.server.keyPassword": "tls._config.key_password",
    "tls.server.authClient": "tls._config.auth_client",
    "tls.server.need.client.auth": "tls._config.need_client_auth",
    "tls.server.trustCertPath": "tls._config.trust_cert_path",
    "fileReservedTime": "store.cleaner.config.file_reserved_time_hours",
    "deleteWhen": "store.cleaner.config.delete_when_hours",
    "diskMaxUsedSpaceRatio": "store.cleaner.config.disk_max_used_space_ratio",
    "diskSpaceCleanForciblyRatio": "store.cleaner.config.disk_space_clean_forcibly_ratio",
    "cleanFileForciblyEnable": "store.cleaner.config.clean_file_forcibly_enable",
    "diskSpaceWarningLevelRatio": "store.cleaner.config.disk_space_warning_level_ratio",
    "maxTopics": "tables.topics.max_topics",
    "maxQueues": "tables.topics.max_queues",
    "maxGroups": "tables.groups.max_groups",
    "maxConsumerOffsets": "tables.offsets.max_offsets",
}


def _other_value(value):
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, Enum):
        return next(other for other in type(value) if other is not value)
    others = {int: 7, float: 0.5, tuple: (1, 2), Secret: Secret("other"), type(None): Path("other")}
    return others[type(value)]


def _with_other_values(config):
    """Return a configuration in which every reloadable setting has another value."""
    for key in RELOADABLE:
        section, name = KEYS[key].section, KEYS[key].name
        of = getattr(config, section) if section else config
        changed = replace(of, **{name: _other_value(getattr(of, name))})
        config = replace(config, **{section: changed}) if section else changed
    return config


@on_broker
async def test_reload_reaches_the_part_that_uses_a_setting(broker):
    controller = broker.controller
    new = _with_other_values(broker.limits)
    wanted = {
        key: attrgetter(f"{KEYS[key].section}.{KEYS[key].name}".lstrip("."))(new)
        for key in RELOADABLE
    }
    before = {key: attrgetter(path)(controller) for key, path in VALUES_IN_USE.items()}
    reload = controller.reload(new)
    assert {text.split("=")[0] for text in reload.reloaded} == RELOADABLE
    after = {key: attrgetter(path)(controller) for key, path in VALUES_IN_USE.items()}
    assert after == wanted
    assert [key for key in RELOADABLE if before[key] == after[key]] == []
    assert controller.transactions._rules.reserved_hours() == new.store.file_reserved_time_hours


@on_broker
async def test_reload_gives_the_broker_config_a_new_version(broker):
    """Operators' tools compare versions, and then read the configuration again."""
    client = await broker.connect()

    async def shown():
        answer = await client.call(RemotingCommand(code=RequestCode.GET_BROKER_CONFIG))
        version = decode_body(DataVersion, answer.ext_fields["version"].encode())
        lines = bytes(answer.body).decode().splitlines()
        return version.counter, dict(line.split("=", 1) for line in lines)["maxTopics"]

    before, _ = await shown()
    broker.controller.reload(broker.limits)
    assert (await shown())[0] == before
    broker.controller.reload(replace(broker.limits, max_topics=77))
    assert await shown() == (before + 1, "77")
