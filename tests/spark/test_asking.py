"""Queries of queue ends wait for hosts that are down, once for each host."""

import json
import threading

import pytest
from support.servers.joining_name_server import JoiningNameServer
from support.spark.source_queries import queue_of, queues_of

from rmq_spark.client.transport.sockets import SOCKETS
from rmq_spark.spark.errors import BrokersAway
from rocketpoll.broker.embedded import EmbeddedBroker

QUEUES = 6


def test_queue_ends_of_an_unreachable_broker_fail_after_the_retry_timeout(rocketpoll_topic):
    with EmbeddedBroker() as broker:
        broker.create_topic(rocketpoll_topic, 1)
        with queues_of(
            broker, rocketpoll_topic, retryTimeoutMs="0", requestTimeoutMs="200"
        ) as queues:
            which = queues.discover()
            broker.stop()
            assert queues.discover(is_forced=True) == which
            with pytest.raises(BrokersAway, match="broker broker-a has not answered for 0 ms"):
                queues.ends(which)


def test_queue_ends_wait_for_an_unreachable_broker_though_another_answers():
    """Otherwise messages stored by it would come late, after those of the other broker."""
    with EmbeddedBroker(brokerName="a") as here, EmbeddedBroker(brokerName="b") as away:
        for broker in (here, away):
            broker.create_topic("T", 1)
        timeouts = {"retryTimeoutMs": "300", "requestTimeoutMs": "200"}
        with JoiningNameServer(here, away) as names, queues_of(names, "T", **timeouts) as queues:
            which = queues.discover()
            assert {queue.broker_name for queue in queues.ends(which)} == {"a", "b"}
            away.stop()
            with pytest.raises(BrokersAway, match="broker b has not answered for 300 ms"):
                queues.ends(which)
            assert [queue.broker_name for queue in queues.ends(which, required=())] == ["a"]
            here.stop()
            with pytest.raises(BrokersAway):  # if no broker answers, all are retried
                queues.ends(which, required=())


class HostThatIsDown:
    """An address at which connecting takes the time that a test sets, and then fails."""

    address = "127.0.0.1:9"

    def __init__(self, monkeypatch):
        self.dials = []
        self.gives_up = threading.Event()
        self._connect = SOCKETS.connect
        monkeypatch.setattr(SOCKETS, "connect", self._dial)

    def _dial(self, host, port, seconds):
        if (host, port) != ("127.0.0.1", 9):
            return self._connect(host, port, seconds)
        self.dials.append(threading.current_thread().name)
        self.gives_up.wait(3)
        raise TimeoutError("timed out")


@pytest.fixture
def down(monkeypatch):
    host = HostThatIsDown(monkeypatch)
    yield host
    host.gives_up.set()


@pytest.fixture
def queues(down):
    """Return queues of a route whose broker's host is down."""
    with EmbeddedBroker() as broker:
        broker.create_topic("T", QUEUES)
        addresses = json.dumps({"broker-a": down.address})
        with queues_of(broker, "T", brokerAddresses=addresses) as queues:
            assert len(queues.discover()) == QUEUES
            yield queues


def test_commit_to_a_down_host_dials_once_for_all_its_queues(queues, down):
    down.gives_up.set()
    for _ in range(2):
        assert queues.commit("G", {queue_of("T", n): 1 for n in range(QUEUES)}) == {}
    assert down.dials == [f"rocketpoll dials {down.address}"] * 2


def test_idle_wait_skips_hosts_that_are_down(queues, down):
    ends = {queue_of("T", n): 0 for n in range(QUEUES)}
    assert not queues.wait(ends, 300)
    assert not queues.wait(ends, 300)
    assert down.dials == [f"rocketpoll dials {down.address}"]
