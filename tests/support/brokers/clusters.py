"""Brokers for tests of our consumers: ours in a thread, or with ROCKETPOLL_PEERS=1 a real RocketMQ.

All have the same interface. Each test uses its own topics and groups.
"""

import itertools
import time
from contextlib import ExitStack, contextmanager

import pytest
from support.brokers.broker_kinds import (
    DELAYS_S,
    NAME,
    START_SECONDS_MAX,
    RocketMQBroker,
    wait_until,
)
from support.brokers.in_process import BrokerThread, small_broker
from support.rocketmq import java_vectors
from support.rocketmq.proxy import Proxy
from support.suite.selection import PEERS

from rmq_spark.client.errors import ClientError, RouteNotFound
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.wire.bodies.clients import ConsumeFromWhere
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_spark.wire.headers.members import SendMessageRequestHeader
from rmq_spark.wire.message.properties import encode_properties
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import retry_topic
from rocketpoll.broker.store.config import FlushDiskType

PROXY = "proxy-"
"""Prefix of kinds in which RocketMQ's proxy is in front of the broker and is the clients' name
server."""

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
EVERY_CLUSTER = [
    pytest.param("rocketpoll", id="rocketpoll"),
    *(
        pytest.param(version, id=f"rocketmq-{version}", marks=pytest.mark.interop)
        for version in java_vectors.VERSIONS
        if PEERS
    ),
]
_numbers = itertools.count(1)


class Cluster:
    """A name server, a broker, and producers."""

    def __init__(self, name_server, address, broker_name, attributes=None):
        self.name_server = name_server
        self.address = address
        self.broker_name = broker_name
        self._attributes = attributes
        self._stack = ExitStack()
        self.sender = self.instance()

    @property
    def api(self):
        return self.sender.api

    def instance(self, **more):
        """Return a client that the fixture shuts down if the test has not."""
        instance = ClientInstance(self.name_server, route_interval_ms=500, **more)
        self._stack.callback(instance.shutdown)
        return instance

    def until_end(self, consumer):
        """Shut a consumer down at the end of the test; return it."""
        self._stack.callback(consumer.shutdown)
        return consumer

    def close(self):
        self._stack.close()

    def topic(self, queues=4, name=None, attributes=None):
        """Create a topic that the name server knows, with a new name by default."""
        topic = name or f"Topic{next(_numbers)}-{time.time_ns() % 10**9}"
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=6,
            attributes=attributes or self._attributes,
        )
        self.api.admin.create_topic(self.address, config)

        def is_known():
            try:
                return len(self.sender.routes.refresh(topic).subscribe_queues) == queues
            except RouteNotFound:
                return False

        wait_until(f"a route to {topic}", is_known)
        return topic

    def group(self):
        """Return a new group without members."""
        return f"Group{next(_numbers)}-{time.time_ns() % 10**9}"

    def queue(self, topic, queue_id=0):
        return MessageQueue(topic, self.broker_name, queue_id)

    def send(self, topic, *bodies, queues=4, queue_id=None, **properties):
        """Send messages round-robin to all queues, or to one."""
        for number, body in enumerate(bodies):
            text = encode_properties({"UNIQ_KEY": f"id-{body}", **properties})
            queue = number % queues if queue_id is None else queue_id
            header = SendMessageRequestHeader(
                "P", topic, "TBW102", 4, queue, 0, int(time.time() * 1000), 0, text
            )
            self.api.send(self.address, header, str(body).encode(), f"id-{body}")

    def stored_offset(self, group, topic, queue_id=0):
        """Return a group's committed offset, from the broker."""
        return self.api.query_consumer_offset(self.address, group, self.queue(topic, queue_id))

    def store_offset(self, group, topic, offset, queue_id=0):
        """Create a group with this committed offset."""
        self.api.admin.create_group(self.address, SubscriptionGroupConfig(group_name=group))
        self.api.update_consumer_offset(self.address, group, self.queue(topic, queue_id), offset)

    def members(self, group):
        """Return the members of a group from the broker."""
        return self.api.consumer_ids(self.address, group)

    def dead_letters(self, group):
        """Return the number of messages in the group's dead-letter queue."""
        try:
            return self.api.max_offset(self.address, self.queue(f"%DLQ%{group}"))
        except ClientError:
            return 0

    def retried(self, group):
        """Return the number of messages in the group's retry topic."""
        return self.api.max_offset(self.address, self.queue(retry_topic(group)))


@contextmanager
def running(kind, directory, **more):
    """Yield a running broker of a kind and its address."""
    if kind == "rocketpoll":
        delays = " ".join(f"{seconds}s" for seconds in DELAYS_S)
        config = small_broker(
            directory / "store",
            messageDelayLevel=delays,
            enablePropertyFilter=True,
            brokerName=NAME,
            **{
                "transactionTimeOut": 500,
                "transactionCheckInterval": 200,
                "transactionCheckMax": 1_000,
                **more,
            },
        )
        with BrokerThread(config) as broker:
            address = f"127.0.0.1:{broker.port}"
            yield address, address
        return
    if kind.startswith(PROXY):
        version = kind.removeprefix(PROXY)
        more = {"enableMixedMessageType": "true", **more}
        with running(version, directory, **more) as (name_server, address):
            proxy = Proxy(version, directory / "proxy", name_server)
            try:
                yield proxy.address, address
            finally:
                proxy.close()
        return
    broker = RocketMQBroker(kind, directory, FlushDiskType.ASYNC_FLUSH, more)
    try:
        instance = ClientInstance(broker.name_server)

        def is_ready():
            try:
                instance.api.admin.create_topic(
                    broker.address,
                    TopicConfig(topic_name="Ready", read_queue_nums=1, write_queue_nums=1),
                )
                return instance.routes.refresh("Ready").subscribe_queues
            except ClientError:
                return False

        wait_until("a broker that is ready", is_ready, START_SECONDS_MAX)
        instance.shutdown()
        yield broker.name_server, broker.address
    finally:
        broker.close()
