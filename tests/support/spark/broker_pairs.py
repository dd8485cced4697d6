"""Two brokers behind a name server: ours, and with ROCKETPOLL_PEERS=1 two masters of a real
RocketMQ with their name server.

A test learns the same of both kinds: a topic, where to find things, and how one of the brokers goes
and comes back. RocketMQ's name server forgets a broker as soon as its connection ends; ours in
front of two brokers has to be told.
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
    """Two brokers with a topic of two queues each, and a query of it.

    Members `a` and `b` have a ``name`` and an ``address``; only the second can be killed, paused
    and taken out of service.
    """

    address: str  # of the name server
    topic: str
    forgets_who_is_down: bool  # as soon as its connection ends

    def make_topic(self, queues=QUEUES):
        """Make the topic on both, or give it more queues."""
        with Admin(self.address) as admin:
            admin.create_topic(self.topic, queues)

            def is_known():
                try:
                    return len(admin.topic_offsets(self.topic)) == 2 * queues
                except ClientError:
                    return False

            wait_until(f"{self.topic} on both", is_known, KNOWN_SECONDS_MAX)

    def send(self, member, count, name="message"):
        """Send so many messages to a member's queues in turn; their bodies, which are unique."""
        bodies = [f"{name} {next(_numbers)}" for _ in range(count)]
        with Producer("feeder", self._name_server_of(member)) as producer:
            for number, body in enumerate(bodies):
                queue = MessageQueue(self.topic, member.name, number % QUEUES)
                producer.send(Message(self.topic, body.encode()), queue)
        return bodies

    def query(self, **options):
        """A query of the topic, which waits for a minute."""
        given = {"subscribe": self.topic, "retryTimeoutMs": 60_000, **options}
        return Engine(self.address, **given)

    def read_before(self, count=4, **options):
        """A running query that has read some messages of both brokers, and these."""
        query = self.query(**options)
        bodies = [body for member in (self.a, self.b) for body in self.send(member, count)]
        query.start()
        query.run()
        return query, bodies

    def read_of(self, query, member):
        """How far a query is in a member's queues, all together."""
        return sum(query.end()["offsets"][self.topic].get(member.name, {}).values())

    def drain(self, member):
        """Have no more messages sent to a member, as before it is taken out of service."""
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
        """Start it again; it is known from then on."""
        self.broker.restart()
        if self.broker not in self._names.brokers:
            self._names.brokers.append(self.broker)

    def pause(self):
        self.broker.pause()

    def resume(self):
        self.broker.resume()

    def retire(self):
        """End it, and have no name server know it any more."""
        self._names.forget(self.broker)
        self.broker.kill()

    def rename(self, name):
        """Start it again under another name, on its own store."""
        port = self.broker.port
        self._names.forget(self.broker)
        self.broker.stop()
        self.name = name
        self.broker = EmbeddedBroker(self._directory, port=port, brokerName=name)
        self.broker.start()
        self._names.learn(self.broker)


class OurPair(Pair):
    """Two of our brokers, new for each test."""

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
        return member.address  # whatever has become of the other


# ---- RocketMQ's


class RocketMQPair(Pair):
    """Two of RocketMQ's brokers, which run on from test to test, and a new topic for each."""

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
    """What makes pairs of a kind: RocketMQ's of a version, ours without one."""
    with ExitStack() as started:
        if version is None:
            yield lambda stack: OurPair(directory / f"{next(_numbers)}", stack)
            return
        two_brokers = TwoBrokers(version, directory)
        started.callback(two_brokers.close)
        two_brokers.wait_until_known()
        yield lambda stack: RocketMQPair(two_brokers, stack)


def warnings_of(caplog, words):
    """What was logged with these words."""
    return [record.getMessage() for record in caplog.records if words in record.getMessage()]
