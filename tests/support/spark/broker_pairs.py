"""Two brokers behind a name server: ours, or with ROCKETPOLL_PEERS=1 two masters of a real
RocketMQ.

Both kinds have the same interface: a topic, addresses, and methods to end and restart one broker.
RocketMQ's name server removes a broker when its connection ends; ours needs a call for that.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack, contextmanager

import pytest
from support.brokers.broker_kinds import wait_until
from support.rocketmq import java_vectors
from support.rocketmq.masters import KNOWN_SECONDS_MAX, NAMES, TwoBrokers
from support.servers.joining_name_server import JoiningNameServer
from support.spark.streaming_engine import Engine
from support.suite.selection import PEERS

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.errors import ClientError
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import EmbeddedBroker

A, B = NAMES
QUEUES = 2
EVERY_PAIR = [
    pytest.param(None, id="rocketpoll"),
    *(
        pytest.param(version, id=f"rocketmq-{version}", marks=pytest.mark.interop)
        for version in java_vectors.VERSIONS
        if PEERS
    ),
]
_numbers = itertools.count(1)


class Pair:
    """Two brokers with a topic of two queues on each, and a query of it.

    Members `a` and `b` have a ``name`` and an ``address``; only the second can be killed, paused
    and taken out of service.
    """

    address: str  # of the name server
    topic: str
    forgets_who_is_down: bool  # when its connection ends

    def make_topic(self, queues=QUEUES):
        """Create the topic on both brokers, or increase its number of queues."""
        with Admin(self.address) as admin:
            admin.create_topic(self.topic, queues)

            def is_known():
                try:
                    return len(admin.topic_offsets(self.topic)) == 2 * queues
                except ClientError:
                    return False

            wait_until(f"{self.topic} on both", is_known, KNOWN_SECONDS_MAX)

    def send(self, member, count, name="message"):
        """Send messages round-robin to a member's queues; return their unique bodies."""
        bodies = [f"{name} {next(_numbers)}" for _ in range(count)]
        with Producer("feeder", self._name_server_of(member)) as producer:
            for number, body in enumerate(bodies):
                queue = MessageQueue(self.topic, member.name, number % QUEUES)
                producer.send(Message(self.topic, body.encode()), queue)
        return bodies

    def query(self, **options):
        """Return a query of the topic that retries for a minute."""
        given = {"subscribe": self.topic, "retryTimeoutMs": 60_000, **options}
        return Engine(self.address, **given)

    def read_before(self, count=4, **options):
        """Return a running query that has read messages of both brokers, and these messages."""
        query = self.query(**options)
        bodies = [body for member in (self.a, self.b) for body in self.send(member, count)]
        query.start()
        query.run()
        return query, bodies

    def read_of(self, query, member):
        """Return the sum of a query's offsets in a member's queues."""
        return sum(query.end()["offsets"][self.topic].get(member.name, {}).values())

    def drain(self, member):
        """Stop sends to a member, as operators do before they take it out of service."""
        __tracebackhide__ = True
        with Admin(self._name_server_of(member)) as admin:
            assert admin.instance.name_servers.admin.wipe_write_permission(member.name)


# ---- ours


class _Ours:
    """One of our brokers, behind a name server of the test."""

    def __init__(self, directory, name, names):
        self.name = name
        self._directory = directory / name
        self._names = names
        self.broker = EmbeddedBroker(self._directory, own_process=name == B, brokerName=name)
        self.broker.start()

    @property
    def address(self):
        return self.broker.address

    def close(self):
        self.broker.stop()

    def kill(self):
        self.broker.kill()

    def restart(self):
        """Start the broker again, known to the name server."""
        self.broker.restart()
        if self.broker not in self._names.brokers:
            self._names.brokers.append(self.broker)

    def pause(self):
        self.broker.pause()

    def resume(self):
        self.broker.resume()

    def retire(self):
        """Stop the broker, and remove it from the name server."""
        self._names.forget(self.broker)
        self.broker.kill()

    def rename(self, name):
        """Start the broker again under another name, on the same store."""
        port = self.broker.port
        self._names.forget(self.broker)
        self.broker.stop()
        self.name = name
        self.broker = EmbeddedBroker(self._directory, port=port, brokerName=name)
        self.broker.start()
        self._names.learn(self.broker)


class OurPair(Pair):
    """Two of our brokers, created for each test."""

    topic = "T"
    forgets_who_is_down = False

    def __init__(self, directory, stack):
        names = JoiningNameServer()
        self.a, self.b = (_Ours(directory, name, names) for name in NAMES)
        for member in (self.a, self.b):
            stack.callback(member.close)
            names.learn(member.broker)
        self.address = stack.enter_context(names).address
        self.make_topic()

    def _name_server_of(self, member):
        return member.address  # always running, unlike the second


# ---- RocketMQ's


class RocketMQPair(Pair):
    """Two of RocketMQ's brokers, shared by all tests, with a new topic for each."""

    forgets_who_is_down = True

    def __init__(self, two_brokers, stack):
        self.address = two_brokers.name_server
        self.a, self.b = (two_brokers.members[name] for name in NAMES)
        self.topic = f"Both{next(_numbers)}"
        stack.callback(two_brokers.mend)
        self.make_topic()

    def _name_server_of(self, _):
        return self.address


@contextmanager
def pairs(version, directory):
    """Return a factory of pairs: RocketMQ's of a version, or ours."""
    with ExitStack() as started:
        if version is None:
            yield lambda stack: OurPair(directory / f"{next(_numbers)}", stack)
            return
        two_brokers = TwoBrokers(version, directory)
        started.callback(two_brokers.close)
        two_brokers.wait_until_known()
        yield lambda stack: RocketMQPair(two_brokers, stack)


def warnings_of(caplog, words):
    """Return the logged warnings that contain these words."""
    return [record.getMessage() for record in caplog.records if words in record.getMessage()]
