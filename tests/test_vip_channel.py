"""A broker also listens on the VIP channel, two ports below its own."""

import asyncio
import socket

import pytest
from support.brokers.in_process import run, small_broker, started, tell
from support.brokers.processes import BrokerProcess
from support.clients.remoting_clients import BrokerClients, pull_request, send_request
from support.rocketmq.real_broker import free_broker_port
from support.suite.log_records import lines_of

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.message.hosts import parse_host
from rmq_spark.wire.message.message_id import decode_offset_message_id
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.server.server import RemotingServer


def is_listened_on(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def ask(port, *requests):
    """Return the responses that a client of a port gets."""

    async def answers():
        async with BrokerClients(port) as clients:
            client = await clients.connect()
            return [await client.call(request) for request in requests]

    return asyncio.run(answers())


def test_message_sent_to_the_vip_channel_is_at_the_main_address(tmp_path):
    port = free_broker_port()
    route_of_t = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "T"})
    with BrokerProcess(tmp_path, listenPort=str(port)) as broker:
        sent, found, route = ask(port - 2, send_request("x"), pull_request(), route_of_t)
        assert (sent.code, found.code) == (0, 0)
        address = parse_host(f"127.0.0.1:{port}")
        assert decode_offset_message_id(sent.ext_fields["msgId"])[0] == address
        assert f'"127.0.0.1:{port}"'.encode() in bytes(route.body)
        assert ask(port, pull_request())[0].body == found.body
        assert broker.stop() == 0
    assert not is_listened_on(port - 2)


def test_vip_channel_clients_are_counted(tmp_path):
    async def story(broker, channel):
        first = await channel.connect()
        await first.put("x")
        assert broker.controller.server.connections == 1
        assert len(broker.controller.server.descriptors()) == 5
        other = await broker.connect()
        await other.closed()
        await first.put("y")

    async def whole():
        config = small_broker(tmp_path, listenPort=free_broker_port(), maxConnections=1)
        async with started(config) as broker, BrokerClients(broker.port - 2) as channel:
            await story(broker, channel)

    run(whole())


def test_vip_port_in_use_is_logged_and_the_broker_runs_without(tmp_path):
    port = free_broker_port()
    with (
        socket.create_server(("127.0.0.1", port - 2)),
        BrokerProcess(tmp_path, listenPort=str(port)) as broker,
    ):
        assert ask(port, send_request("x"))[0].code == 0
        (warning,) = [line for line in broker.log() if "WARNING" in line]
        for said in (
            f"127.0.0.1:{port - 2}",
            "ddress already in use",
            "4.4",
            "vipChannelEnable=false",
        ):
            assert said in warning
        assert broker.stop() == 0


def test_vip_channel_enable_false_closes_the_vip_port(tmp_path):
    port = free_broker_port()
    with BrokerProcess(tmp_path, listenPort=str(port), vipChannelEnable="false") as broker:
        assert is_listened_on(port)
        assert not is_listened_on(port - 2)
        assert not [line for line in broker.log() if "WARNING" in line]


def test_broker_on_any_free_port_has_no_vip_port(tmp_path, caplog):
    async def story(broker):
        assert len(broker.controller.server.descriptors()) == 2

    tell(story, tmp_path)
    assert lines_of(caplog) == []


@pytest.mark.parametrize("port", [1, 2])
def test_lowest_ports_have_no_vip_port(tmp_path, port, monkeypatch):
    """Only an administrator may use such ports: instead of listening, the test records them."""
    asked = []

    async def listen(_, __, port):
        asked.append(port)
        return port

    monkeypatch.setattr(RemotingServer, "listen", listen)

    async def whole():
        async with started(small_broker(tmp_path, listenPort=port)):
            pass

    run(whole())
    assert asked == [port]
