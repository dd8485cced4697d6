"""Brokers and name servers that are down for a while, or come back with lost data."""

import shutil
import threading

import pytest
from support.servers.fake_servers import FakeServer, answering
from support.spark.streaming_engine import Crashed, Engine, assert_read, loss, send

from rmq_spark.client.errors import ConnectionFailed
from rmq_spark.client.transport.remoting_client import RemotingClient
from rmq_spark.spark.errors import DataLoss
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rocketpoll import EmbeddedBroker

AWAY_SECONDS = 1.0


@pytest.fixture
def broker(tmp_path):
    """Run a broker that can be killed, and restarts with all its messages."""
    with EmbeddedBroker(
        tmp_path / "broker", own_process=True, maxTransferBytesExtended=4096
    ) as broker:
        broker.create_topic("T")
        yield broker


def back_later(broker):
    """Restart a killed broker after a while."""
    timer = threading.Timer(AWAY_SECONDS, broker.restart)
    timer.start()
    return timer


def test_spark_task_waits_for_a_broker_killed_midway_and_rereads_nothing(broker):
    """The task does not repeat reads."""
    query = Engine(broker.address, subscribe="T")
    bodies = send(broker, "T", 200, "m" * 200)
    query.start()
    timers = []

    def kill():
        broker.kill()
        timers.append(back_later(broker))

    query.after_first_rows = kill
    query.run()
    timers[0].join()
    assert_read(query, bodies)


@pytest.mark.parametrize(
    "options", [{}, {"consumerGroup": "G"}, {"maxBytesPerTrigger": "10k"}], ids=str
)
def test_idle_query_waits_for_a_killed_broker_to_come_back(broker, options):
    query = Engine(broker.address, subscribe="T", **options)
    bodies = send(broker, "T", 50)
    query.start()
    query.run()
    broker.kill()
    timer = back_later(broker)
    while timer.is_alive():
        assert not query.trigger()
    timer.join()
    bodies += send(broker, "T", 50)
    query.run()
    assert_read(query, bodies)


def test_restarted_query_without_a_broker_fails_and_continues_later(broker):
    query = Engine(broker.address, subscribe="T", retryTimeoutMs=100)
    bodies = send(broker, "T", 50)
    query.start()
    query.crash_at = "task"
    with pytest.raises(Crashed):
        query.run()
    broker.kill()
    query.start()
    with pytest.raises(ConnectionFailed, match="check that a broker listens there"):
        query.run()
    broker.restart()
    query.start()
    query.run()
    assert_read(query, bodies)


# ---- a restarted name server without registrations


class Forgetful:
    """A name server in front of a broker that can pretend to know no topic."""

    def __init__(self, broker):
        self._broker = broker
        self._connections = RemotingClient()
        self.knows = True
        self.asked = 0

    def answer(self, request):
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and not self.knows:
            self.asked += 1
            return request.respond(
                ResponseCode.TOPIC_NOT_EXIST, "No topic route info in name server"
            )
        answer = self._connections.request(self._broker.address, request._replace(opaque=0), 3_000)
        return answer._replace(opaque=request.opaque)


@pytest.fixture
def forgetful(broker):
    server = Forgetful(broker)
    with FakeServer(answering(server.answer)) as listening:
        server.address = listening.address
        yield server


@pytest.mark.parametrize(
    "selection", [{"subscribe": "T"}, {"assign": '{"T": [0, 1, 2, 3]}'}], ids=str
)
def test_query_is_unaffected_by_a_name_server_without_routes_for_a_while(
    broker, forgetful, selection
):
    query = Engine(forgetful.address, **selection)
    bodies = send(broker, "T", 20)
    query.start()
    query.run()
    forgetful.knows = False
    bodies += send(broker, "T", 20)
    query.run()
    assert forgetful.asked
    forgetful.knows = True
    query.run()
    assert_read(query, bodies)


def test_query_resumed_with_an_empty_name_server_does_not_restart(broker, forgetful):
    query = Engine(forgetful.address, subscribe="T")
    bodies = send(broker, "T", 20)
    query.start()
    query.run()
    query.stop()
    forgetful.knows = False
    query.start()
    with pytest.raises(Exception, match="T") as raised:
        query.run()
    assert "no such topic" in str(raised.value)
    forgetful.knows = True
    bodies += send(broker, "T", 20)
    query.start()
    query.run()
    assert_read(query, bodies)


# ---- a broker restored from an older copy of its directory


@pytest.fixture
def restored(tmp_path):
    """Return a query that has read everything, and the broker restored without the last
    messages."""
    with EmbeddedBroker(tmp_path / "broker") as broker:
        broker.create_topic("T")
        bodies = send(broker, "T", 20)
        broker.stop()
    shutil.copytree(tmp_path / "broker", tmp_path / "copy")
    with EmbeddedBroker(tmp_path / "broker") as broker:
        query = Engine(broker.address, subscribe="T")
        bodies += send(broker, "T", 20)
        query.start()
        query.run()
        query.stop()
    with EmbeddedBroker(tmp_path / "copy") as broker:
        query.options["namesrvAddr"] = broker.address
        yield broker, query, bodies


def test_broker_restored_from_an_older_copy_ends_the_query(restored):
    _, query, bodies = restored
    query.start()
    with pytest.raises(DataLoss, match="ends at offset 5, but its position was 10 before"):
        query.run()
    assert_read(query, bodies)


@pytest.mark.wide
def test_restored_broker_that_outgrew_the_offset_is_data_loss(restored):
    broker, query, bodies = restored
    send(broker, "T", 40)
    query.start()
    with pytest.raises(DataLoss, match=r"is not the one that was read"):
        query.run()
    assert_read(query, bodies)


@pytest.mark.wide
@pytest.mark.parametrize("count", [0, 8, 40])
def test_restored_broker_is_read_from_younger_messages_without_fail_on_data_loss(
    restored, count, caplog
):
    broker, query, bodies = restored
    query.options["failOnDataLoss"] = "false"
    bodies += send(broker, "T", count)
    query.start()
    query.run()
    assert_read(query, bodies)
    losses = [record for record in caplog.records if "messages are lost" in record.message]
    assert len(losses) == 4  # one for each queue, without repetition
    bodies += send(broker, "T", 80)
    query.run()
    assert_read(query, bodies)


# ---- a lagging slave answers for its master


@pytest.mark.parametrize("is_to_fail", [True, False])
def test_lagging_slave_makes_a_query_read_nothing_twice(tmp_path, is_to_fail):
    """The slave first has fewer messages than were read, at the same offsets, and then more."""
    master, slave = tmp_path / "master", tmp_path / "slave"
    with EmbeddedBroker(master) as broker:
        broker.create_topic("lagging", 2)
        bodies = send(broker, "lagging", 6)
    shutil.copytree(master, slave)  # the state of the lagging slave
    with EmbeddedBroker(master) as broker:
        bodies += send(broker, "lagging", 6)
        query = Engine(broker.address, subscribe="lagging", failOnDataLoss=str(is_to_fail).lower())
        query.start()
        query.run()
        query.stop()
        bodies += send(broker, "lagging", 2)
    assert_read(query, bodies, without=bodies[-2:])
    with EmbeddedBroker(slave) as broker:
        query.options["namesrvAddr"] = broker.address
        query.start()
        if is_to_fail:
            with loss("of lagging on broker-a"):
                query.run()
        else:
            query.run()
            query.run()
            query.stop()
    assert_read(query, bodies, without=bodies[-2:])
    with EmbeddedBroker(master) as broker:  # the slave has caught up
        query.options["namesrvAddr"] = broker.address
        query.start()
        query.run()
        query.stop()
    assert_read(query, bodies)
