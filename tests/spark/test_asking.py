import pytest
from name_servers import JoiningNameServer
from source_parts import queues_of

from rmq_spark.spark.errors import BrokersAway
from rocketpoll import EmbeddedBroker


def test_a_broker_that_is_away_is_waited_for_and_then_given_up(rocketpoll_topic):
    with EmbeddedBroker() as broker:
        broker.create_topic(rocketpoll_topic, 1)
        with queues_of(
            broker, rocketpoll_topic, retryTimeoutMs="0", requestTimeoutMs="200"
        ) as queues:
            which = queues.discover()
            broker.stop()
            assert queues.discover(now=True) == which
            with pytest.raises(BrokersAway, match="broker broker-a has not answered for 0 ms"):
                queues.ends(which)


def test_a_broker_that_is_away_is_waited_for_though_another_one_answers():
    """What it has stored would come late, behind what the other one has."""
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
            assert [queue.broker_name for queue in queues.ends(which, needed=())] == ["a"]
