import pytest
from source_parts import queues_of

from rmq_spark.spark.errors import BrokersAway


def test_a_broker_that_is_away_is_waited_for_and_then_given_up(rocketpoll_topic):
    from rocketpoll.broker.embedded import EmbeddedBroker  # noqa: PLC0415  # a broker of its own, to be stopped

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
