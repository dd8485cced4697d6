"""Registration at name servers: when it happens, what it sends, and the results of failures."""

from __future__ import annotations

import asyncio
import itertools
import struct
import zlib
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.servers.fake_servers import FakeServer

from rmq_spark.wire.bodies import decode_body, encode_body, fastjson
from rmq_spark.wire.bodies.clients import BrokerData
from rmq_spark.wire.bodies.configs import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from rmq_spark.wire.bodies.operators import ClusterInfo
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.headers import exchange_of
from rocketpoll import Admin, EmbeddedBroker
from rocketpoll.broker.runtime.name_server_connection import NameServerConnection, NameServerError
from rocketpoll.broker.runtime.name_server_registration import (
    CHANGE_SECONDS,
    RETRY_SECONDS,
    NameServerRegistration,
    RegisteredBroker,
)

PERIOD = 30.0
SELF = RegisteredBroker(
    "peers", "broker-x", "10.0.0.7:9876", "10.0.0.7:9877", 6, is_compressed=False
)


class NameServer:
    """Answers as a name server, and records its requests."""

    def __init__(self, masters=(), code=ResponseCode.SUCCESS):
        self.masters = dict(masters)
        self.code = code
        self.requests = []

    def __call__(self, peer):
        while (request := peer.receive()) is not None:
            self.requests.append(request)
            body = b""
            if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
                brokers = {
                    name: BrokerData(cluster="peers", broker_name=name, broker_addrs={0: address})
                    for name, address in self.masters.items()
                }
                body = encode_body(ClusterInfo(broker_addr_table=brokers))
            peer.send(request._replace(code=905, flag=2))  # a one-way request to the broker
            peer.send(request.respond(self.code, "as the test says", body=body))

    @property
    def codes(self):
        return [request.code for request in self.requests]


class Timer(NamedTuple):
    at: float
    callback: Any
    timers: list

    def cancel(self):
        if self in self.timers:
            self.timers.remove(self)


class Clock:
    """A loop whose time tests move; jobs run immediately, or when released."""

    def __init__(self):
        self.now = 100.0
        self.timers = []
        self.jobs = []
        self.holds_jobs = False

    def time(self):
        return self.now

    def call_later(self, delay, callback):
        self.timers.append(Timer(self.now + delay, callback, self.timers))
        return self.timers[-1]

    def run(self, job, callback):
        self.jobs.append((job, callback))
        if not self.holds_jobs:
            self.release()

    def release(self):
        jobs, self.jobs = self.jobs, []
        for job, callback in jobs:
            callback(error_of(job))

    def advance(self, seconds):
        until = self.now + seconds
        while due := [each for each in self.timers if each.at <= until]:
            timer = min(due, key=lambda each: each.at)
            self.now = timer.at
            timer.cancel()
            timer.callback()
        self.now = until


def error_of(job):
    try:
        job()
    except Exception as error:  # as a thread pool does
        return error
    return None


def topics_of(*names, counter=1):
    table = {name: TopicConfig(topic_name=name, perm=7) for name in names}
    version = DataVersion(timestamp=5, counter=counter)
    return TopicConfigSerializeWrapper(topic_config_table=table, data_version=version)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def made(clock):
    """Return a registration at servers; ``saved`` has successive lists of its topics."""
    connections = []

    def make(*servers, saved=None, broker=SELF):
        found = [NameServerConnection(each.address, 5) for each in servers]
        connections.extend(found)
        saved = [topics_of("orders")] if saved is None else saved
        return NameServerRegistration(broker, found, lambda: saved[-1], PERIOD, clock, clock.run)

    yield make
    for each in connections:
        each.close()


def registrations(server):
    """Return headers and bodies of all REGISTER_BROKER requests."""
    codec = exchange_of(RequestCode.REGISTER_BROKER).request
    return [
        (codec.decode(each.ext_fields), bytes(each.body))
        for each in server.requests
        if each.code == RequestCode.REGISTER_BROKER
    ]


def test_registration_has_address_topics_version_and_checksum(made):
    name_server = NameServer()
    with FakeServer(name_server) as server:
        limited = replace(SELF, address="a:1", ha_address="a:2", permission=4)
        made(server, broker=limited).start()
    [(header, body)] = registrations(name_server)
    assert header[:5] == ("broker-x", "a:1", "peers", "a:2", 0)
    assert header.body_crc32 == zlib.crc32(body) & 0x7FFFFFFF
    wrapper = decode_body(RegisterBrokerBody, body).topic_config_serialize_wrapper
    assert wrapper.data_version == DataVersion(timestamp=5, counter=1)
    # the topic's inherit flag, and no write permission
    assert wrapper.topic_config_table["orders"].perm == 5
    assert b'"filterServerList":[]' in body


def test_broker_registers_each_period_on_one_connection(made, clock):
    name_server = NameServer()
    with FakeServer(name_server) as server:
        registration = made(server)
        registration.start()
        clock.advance(2 * PERIOD + 1)
        assert len(server.peers) == 1
    asked = [RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.REGISTER_BROKER]
    assert name_server.codes == 3 * asked
    assert list(registration.states()) == [(server.address, True)]


def test_saved_topics_are_registered_at_once_but_not_too_often(made, clock):
    name_server = NameServer()
    saved = [topics_of("orders")]
    with FakeServer(name_server) as server:
        registration = made(server, saved=saved)
        registration.start()
        clock.advance(1)
        for number in range(5):
            saved.append(topics_of("orders", f"new-{number}", counter=number))
            registration.topics_saved()
            clock.advance(CHANGE_SECONDS / 10)
        assert len(registrations(name_server)) == 2
        clock.advance(CHANGE_SECONDS)
        assert len(registrations(name_server)) == 3
        assert b"new-4" in registrations(name_server)[-1][1]
        clock.advance(PERIOD - 1)
    assert len(registrations(name_server)) == 3


def test_topics_saved_during_a_registration_are_registered_after_it(made, clock):
    name_server = NameServer()
    saved = [topics_of("orders")]
    with FakeServer(name_server) as server:
        registration = made(server, saved=saved)
        clock.holds_jobs = True
        registration.start()
        registration.topics_saved()
        assert len(clock.jobs) == 1
        clock.release()
        clock.holds_jobs = False
        clock.advance(CHANGE_SECONDS)
    assert len(registrations(name_server)) == 2


def test_name_server_that_is_away_is_retried_alone(made, clock, caplog):
    lost = FakeServer(NameServer())
    with lost:
        pass
    name_server = NameServer()
    caplog.set_level("INFO")
    with FakeServer(name_server) as server:
        registration = made(lost, server)
        registration.start()
        clock.advance(3 * RETRY_SECONDS + 1)
        assert [state for _, state in registration.states()] == [False, True]
    assert len(registrations(name_server)) == 1
    said = [each.getMessage() for each in caplog.records if lost.address in each.getMessage()]
    assert len(said) == 1
    assert f"this broker is not registered at name server {lost.address}, retrying" in said[0]


def test_restarted_name_server_gets_a_new_connection_at_the_next_registration(made, clock, caplog):
    name_server = NameServer()
    with FakeServer(name_server) as server:
        registration = made(server)
        registration.start()
        server.peers[0].close()
        clock.advance(PERIOD)
        assert len(server.peers) == 2
    assert len(registrations(name_server)) == 2
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


@pytest.mark.parametrize(
    ("name_server", "says"),
    [
        (NameServer({"broker-x": "10.9.9.9:1"}), "10.9.9.9:1 has the name broker-x. Set another"),
        (NameServer(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED), "it registers no brokers"),
        (NameServer(code=ResponseCode.SYSTEM_ERROR), "refuses with code 1: as the test says"),
    ],
)
def test_refused_registration_is_logged_once_and_its_end(made, clock, caplog, name_server, says):
    with FakeServer(name_server) as server:
        registration = made(server)
        registration.start()
        clock.advance(2 * RETRY_SECONDS)
        assert [state for _, state in registration.states()] == [False]
        name_server.masters, name_server.code = {"broker-x": SELF.address}, ResponseCode.SUCCESS
        clock.advance(RETRY_SECONDS)
        assert [state for _, state in registration.states()] == [True]
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(warnings) == 2
    assert says in warnings[0]
    assert warnings[1].startswith("resolved: this broker is not registered")


def test_name_that_another_master_took_is_neither_registered_nor_unregistered(made, clock):
    name_server = NameServer()
    with FakeServer(name_server) as server:
        registration = made(server)
        registration.start()
        assert [state for _, state in registration.states()] == [True]
        name_server.masters = {"broker-x": "10.9.9.9:1"}
        clock.advance(PERIOD)
        assert [state for _, state in registration.states()] == [False]
        asyncio.run(registration.stop())
    assert len(registrations(name_server)) == 1
    assert RequestCode.UNREGISTER_BROKER not in name_server.codes


def test_silent_name_server_is_abandoned_within_its_timeout():
    seconds = itertools.count()
    with FakeServer(lambda peer: [peer.receive(), peer.receive()]) as server:
        connection = NameServerConnection(server.address, 0.2, lambda: float(next(seconds)))
        connection.open()
        with pytest.raises(NameServerError, match=r"no response within 0\.2 s"):
            connection.request(SELF.unregistration())
        assert not connection.is_open


texts = st.text("abcXYZ_-%|09", min_size=1, max_size=20)
configs = st.builds(
    TopicConfig,
    topic_name=texts,
    read_queue_nums=st.integers(1, 4_096),
    write_queue_nums=st.integers(1, 4_096),
    perm=st.integers(0, 7),
    attributes=st.none() | st.dictionaries(texts, texts, max_size=3),
)


@given(st.lists(configs, max_size=5), st.integers(0, 1 << 62))
def test_compressed_list_of_topics_has_all_of_them(topics, counter):
    table = {each.topic_name: each for each in topics}
    version = DataVersion(counter=counter)
    body = RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigSerializeWrapper(
            topic_config_table=table, data_version=version
        )
    )
    data = zlib.decompress(body.encode(is_compressed=True))

    def take(size):
        nonlocal data
        taken, data = data[:size], data[size:]
        return taken

    def number():
        return struct.unpack(">i", take(4))[0]

    assert decode_body(DataVersion, take(number())) == version
    for config in table.values() if number() == len(table) else ():
        name, read, write, perm, kind, *rest = take(number()).decode().split(" ", 5)
        assert (name, int(read), int(write), int(perm), kind) == (
            config.topic_name,
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            "SINGLE_TAG",
        )
        assert (fastjson.loads(rest[0].encode()) if rest else {}) == (config.attributes or {})
    assert take(number()) == b"[]"
    assert data == b""


def test_stopped_broker_unregisters_and_a_new_topic_is_registered_when_it_is_saved():
    name_server = NameServer()
    with FakeServer(name_server) as server:
        with EmbeddedBroker(namesrvAddr=server.address, brokerName="broker-x") as broker:
            with Admin(broker.address) as admin:
                admin.create_topic("orders", 2)
                while not any(b'"orders"' in body for _, body in registrations(name_server)):
                    admin.topics()  # the registration runs before the next request
            header, _ = registrations(name_server)[-1]
            assert (header.broker_addr, header.broker_name) == (broker.address, "broker-x")
        assert name_server.codes.count(RequestCode.UNREGISTER_BROKER) == 1
        last = name_server.requests[-1]
        assert last.code == RequestCode.UNREGISTER_BROKER
        assert last.ext_fields["brokerAddr"] == header.broker_addr
