"""Retries of a sink's requests: which errors are retried, and the text of the final error."""

import pytest
from support.servers.fake_servers import FakeCluster
from support.suite.clocks import Clock

from rmq_spark.client.errors import (
    BrokerRefused,
    ConnectionClosed,
    MessageIllegal,
    RouteNotFound,
    SendFailed,
    SystemBusy,
)
from rmq_spark.client.producer.producer import Producer
from rmq_spark.spark.errors import WriteError
from rmq_spark.spark.options.options import write_options
from rmq_spark.spark.write.sender import PAUSE_SECONDS, SendRetries
from rmq_spark.wire.codes import ResponseCode

GONE = ConnectionClosed("a:1", "it is gone")
BUSY = SystemBusy(2, "busy", "a:1", 10)
NOT_NOW = BrokerRefused(ResponseCode.SERVICE_NOT_AVAILABLE, "the disk is full", "a:1", 10)


@pytest.fixture
def made():
    """Return a factory of retries on a cluster of one broker; waiting moves the clock."""
    with FakeCluster(a=lambda _: 0) as cluster, Producer("P", cluster.address) as producer:
        clock = Clock()

        def sleep(seconds):
            clock.now += seconds

        given = {"namesrvAddr": cluster.address, "topic": "T", "retryTimeoutMs": "10000"}

        def make(**more):
            access = write_options(given).access
            tries = SendRetries(access, producer, "partition 3", clock, sleep, **more)
            tries.clock = clock
            return tries

        yield make


def test_sink_retry_waits_longer_each_time_until_success(made):
    tries = made()
    began = tries.clock.now
    for error in (GONE, NOT_NOW, SendFailed("T", [BUSY, GONE])):
        tries.wait_or_raise(error, "T")
    assert tries.clock.now - began == 7 * PAUSE_SECONDS
    tries.reset()
    tries.wait_or_raise(GONE, "T")
    assert tries.clock.now - began == 8 * PAUSE_SECONDS


def test_last_send_retry_error_names_place_remedy_and_stored_rows(made):
    tries = made()
    tries.stored_rows = 5
    tries.wait_or_raise(GONE, "T", 7)
    tries.clock.now += 11
    with pytest.raises(WriteError) as raised:
        tries.wait_or_raise(GONE, "T", 7)
    told = str(raised.value)
    assert told.startswith("partition 3, row 7 or after it: the connection to a:1 is closed")
    assert (
        "raise option retryTimeoutMs. 5 rows of this partition were stored before, and stay" in told
    )


def test_refused_send_is_not_retried_and_names_the_remedy(made):
    tries = made(remedies=[(MessageIllegal, "do otherwise")])
    with pytest.raises(WriteError, match=r"(?m)^partition 3: .*; do otherwise$"):
        tries.wait_or_raise(MessageIllegal(13, "no", "a:1", 10), "T")


def test_missing_route_is_retried_only_for_a_topic_whose_route_was_known(made):
    tries = made()
    assert {queue.broker_name for queue in tries.queues_of("T")} == {"a"}
    tries.wait_or_raise(RouteNotFound("T"), "T")
    with pytest.raises(WriteError, match="create the topic, for example with mqadmin"):
        tries.wait_or_raise(RouteNotFound("Other"), "Other")
