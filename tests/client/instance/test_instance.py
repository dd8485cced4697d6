"""A client instance: its id, its members, its start and its shutdown."""

import re
import threading
from contextlib import suppress

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.fake_members import Consumer
from support.servers.fake_servers import FakeServer, silent

from rmq_spark.client.concurrency.scheduler import ThreadScheduler
from rmq_spark.client.errors import (
    ClientShutDown,
    ConnectionClosed,
    ConsumerNotOnline,
    MessageRejected,
    NoNameServer,
)
from rmq_spark.client.instance.instance import ClientInstance, local_address
from rmq_spark.client.producer.producer import Producer
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.headers.operators import ResetOffsetRequestHeader
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.command import RemotingCommand

NEVER_MS = 3_600_000


@pytest.fixture
def make(running_broker, api):
    api.admin.create_topic(running_broker.address, TopicConfig(topic_name="T"))
    made = []

    def make(**settings):
        intervals = {"route_interval_ms": NEVER_MS, "heartbeat_interval_ms": NEVER_MS}
        made.append(ClientInstance(running_broker.address, **{**intervals, **settings}))
        made[-1].start()
        made[-1].routes.route("T")
        return made[-1]

    yield make
    for instance in made:
        instance.shutdown()


def test_client_id_contains_host_and_process(make):
    instance = make()
    assert re.fullmatch(r"127\.0\.0\.1@\d+#\d+", instance.client_id)
    assert make().client_id != instance.client_id
    assert make(client_id="mine").client_id == "mine"


def test_lasting_client_id_is_stable_across_restarts(make):
    assert make().persistent_id == make().persistent_id == "127.0.0.1@DEFAULT"
    assert make(client_id="mine").persistent_id == "mine"


def test_registered_consumer_is_known_to_the_broker_and_notified(make, api, running_broker):
    instance = make()
    consumer = Consumer()
    instance.register_consumer("G", consumer)
    instance.register_producer("P")
    assert consumer.rebalances.acquire(timeout=10)
    assert api.consumer_ids(running_broker.address, "G") == (instance.client_id,)
    instance.heartbeat()
    (producer,) = api.admin.producers(running_broker.address).data["P"]
    assert (producer.client_id, producer.language) == (instance.client_id, "PYTHON")


def test_client_instance_refuses_duplicate_members_and_bad_group_names(make):
    instance = make()
    instance.register_consumer("G", Consumer())
    instance.register_producer("G")
    with pytest.raises(MessageRejected, match="that no other consumer of this client has"):
        instance.register_consumer("G", Consumer())
    with pytest.raises(MessageRejected, match="that no other producer of this client has"):
        instance.register_producer("G")
    with pytest.raises(MessageRejected, match="group"):
        instance.register_producer("no group")
    instance.unregister_producer("G")
    instance.register_producer("G")


def test_unregistered_consumer_leaves_group_at_once_and_others_rebalance(make, api, running_broker):
    first, second = Consumer(), Consumer()
    leaver, stayer = make(), make()
    leaver.register_consumer("G", first)
    leaver.heartbeat()
    stayer.register_consumer("G", second)
    stayer.heartbeat()
    assert len(api.consumer_ids(running_broker.address, "G")) == 2
    while second.rebalances.acquire(timeout=0.2):
        pass
    leaver.unregister_consumer("G")
    assert second.rebalances.acquire(timeout=10)
    assert api.consumer_ids(running_broker.address, "G") == (stayer.client_id,)


def test_instance_shutdown_leaves_all_groups(make, api, running_broker):
    instance = make()
    instance.register_consumer("G", Consumer())
    instance.heartbeat()
    assert api.consumer_ids(running_broker.address, "G")
    instance.shutdown()
    instance.shutdown()
    assert api.consumer_ids(running_broker.address, "G") == ()
    with pytest.raises(ClientShutDown):
        instance.start()
    with pytest.raises(ClientShutDown):
        instance.routes.refresh("T")


def test_client_instance_runs_until_its_last_user_stops(make):
    instance = make()
    with instance:
        pass
    instance.routes.refresh("T")
    instance.stop()
    with pytest.raises(ClientShutDown):
        instance.routes.refresh("T")


def test_shutdown_during_start_leaks_no_thread(running_broker, monkeypatch):
    """For example a consumer whose start was interrupted and continues in a thread."""
    instance, begun = ClientInstance(running_broker.address), []

    class Meanwhile(ThreadScheduler):
        def start_all(self):
            begun.append(self)
            super().start_all()
            ender = threading.Thread(target=instance.shutdown)
            ender.start()
            ender.join(0.3)  # a shutdown that does not wait for the start has ended by now
            assert instance.is_shut_down

    monkeypatch.setattr("rmq_spark.client.instance.instance.ThreadScheduler", Meanwhile)
    with suppress(ClientShutDown):
        instance.start()
    instance.shutdown()
    for each in begun:
        wait_until("its threads end", lambda each=each: not each.thread_count)


def test_broken_connection_is_followed_by_a_heartbeat_on_a_new_one(make, api, running_broker):
    instance = make()
    consumer = Consumer()
    instance.register_consumer("G", consumer)
    assert consumer.rebalances.acquire(timeout=10)
    instance.connections.close(running_broker.address)
    assert consumer.rebalances.acquire(timeout=10)  # because the broker sees a new client
    assert api.consumer_ids(running_broker.address, "G") == (instance.client_id,)


def test_requests_from_brokers_reach_the_consumer(make, api, running_broker):
    instance = make()
    consumer = Consumer()
    instance.register_consumer("G", consumer)
    instance.heartbeat()
    address = running_broker.address
    queue = MessageQueue("T", "broker-a", 0)
    api.update_consumer_offset(address, "G", queue, 0)
    api.admin.reset_offset(address, ResetOffsetRequestHeader("T", "G", -1, is_force=True))
    assert consumer.resets.acquire(timeout=10)
    info = api.admin.consumer_running_info(address, "G", instance.client_id)
    assert info.properties == {"PROP_CONSUMEORDERLY": "false"}
    instance.unregister_consumer("G")
    with pytest.raises(ConsumerNotOnline):
        api.admin.reset_offset(address, ResetOffsetRequestHeader("T", "G", -1, is_force=True))


def test_namesrv_addr_environment_variable_is_the_default(monkeypatch, running_broker):
    monkeypatch.setenv("NAMESRV_ADDR", running_broker.address)
    with ClientInstance() as instance:
        assert "TBW102" in instance.name_servers.admin.topics()
    monkeypatch.delenv("NAMESRV_ADDR")
    with pytest.raises(NoNameServer, match="NAMESRV_ADDR"), Producer("P"):
        pass


def test_failed_heartbeat_is_logged_once_and_other_brokers_get_theirs(make, running_broker, caplog):
    instance = make()
    instance.register_producer("P")
    instance.routes.addresses = lambda **_: ("127.0.0.1:1", running_broker.address)
    for _ in range(3):
        instance.heartbeat()
    assert running_broker.address in instance.broker_versions
    assert caplog.text.count("cannot connect to 127.0.0.1:1") == 1


def test_client_instance_shutdown_is_quick_with_requests_in_flight(running_broker, api):
    api.admin.create_topic(running_broker.address, TopicConfig(topic_name="T"))
    told = threading.Event()

    def stalls(peer):
        request = peer.receive()
        peer.send(request.respond(3, "no extensions"))
        silent(peer)

    with FakeServer(stalls) as server, ClientInstance(running_broker.address) as instance:
        instance.register_consumer("G", Consumer())
        instance.connections.agreement(server.address)
        held = instance.connections.request_async(server.address, RemotingCommand(11), 60_000)

        def wait():
            try:
                held.result(60)
            except ConnectionClosed:
                told.set()

        thread = threading.Thread(target=wait)
        thread.start()
        ending = threading.Thread(target=instance.shutdown)
        ending.start()
        ending.join(10)
        assert not ending.is_alive()
        assert told.wait(10)
        thread.join(10)


def test_local_address_is_that_of_the_route_to_the_name_server():
    assert local_address(["127.0.0.1:9876"]) == "127.0.0.1"
    assert local_address(["no address", "[::1]:9876"]) in ("::1", "127.0.0.1")
    assert local_address(["broker..example:9876", "127.0.0.1:9876"]) == "127.0.0.1"
    assert local_address([]) == "127.0.0.1"
