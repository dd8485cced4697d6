"""Two brokers and a name server that knows both: ours, or a real RocketMQ.

Clients may reach each broker through a `Host`, which a test can make vanish: then it silently drops
everything. Both kinds have the same interface.
"""

from contextlib import ExitStack

import pytest
from support.brokers.broker_kinds import RocketPollBroker, wait_until
from support.brokers.clusters import Cluster
from support.rocketmq import java_vectors
from support.rocketmq.masters import NAMES, TwoBrokers, masters
from support.servers.joining_name_server import JoiningNameServer
from support.servers.middleboxes import Host
from support.suite.selection import PEERS

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.errors import ClientError
from rmq_spark.wire.bodies.configs import TopicConfig
from rocketpoll.broker.store.config import FlushDiskType

QUEUES = 4
STARTS_SECONDS_MAX = 90

EVERY_PAIR = [
    pytest.param("rocketpoll", id="rocketpoll"),
    *(
        pytest.param(version, id=f"rocketmq-{version}", marks=pytest.mark.interop)
        for version in java_vectors.VERSIONS
        if PEERS
    ),
]


class RocketMQPair:
    """A name server and two masters."""

    def __init__(self, version, directory):
        self._brokers = TwoBrokers(version, directory)
        self.name_server = self._brokers.name_server
        self.close = self._brokers.close

    def address(self, name):
        return self._brokers.members[name].address

    def start(self, name):
        """Start a broker again, without waiting."""
        self._brokers.members[name].start()

    def end(self, name, how):
        """Kill a broker, or stop it cleanly."""
        getattr(self._brokers.members[name], how)()

    def pause(self, name):
        """Suspend a broker until `resume`; its connections stay open."""
        self._brokers.members[name].pause()

    def resume(self, name):
        """Resume a suspended broker."""
        self._brokers.members[name].resume()


class RocketPollPair:
    """Two broker processes of ours behind a `JoiningNameServer`."""

    def __init__(self, _, directory):
        self._brokers = {}
        self._stack = ExitStack()
        for name in NAMES:
            (directory / name).mkdir()
            broker = RocketPollBroker("", directory / name, FlushDiskType.SYNC_FLUSH, name)
            self._stack.callback(broker.close)
            self._brokers[name] = broker
        self._names = JoiningNameServer(*self._brokers.values())
        self.name_server = self._stack.enter_context(self._names).address

    def address(self, name):
        return self._brokers[name].address

    def start(self, name):
        self._brokers[name].start()

    def end(self, name, how):
        """Kill a broker, or stop it cleanly."""
        getattr(self._brokers[name], how)()

    def pause(self, name):
        """Suspend a broker until `resume`; its connections stay open."""
        self._names.silent.append(self._brokers[name])
        self._brokers[name].pause()

    def resume(self, name):
        """Resume a suspended broker."""
        self._brokers[name].resume()
        self._names.silent.remove(self._brokers[name])

    def close(self):
        self._stack.close()


class PairOfHosts:
    """A pair with a `Host` in front of each broker."""

    def __init__(self, kind, directory):
        make = RocketPollPair if kind == "rocketpoll" else RocketMQPair
        self._stack = ExitStack()
        self.pair = make(kind, directory)
        self._stack.callback(self.pair.close)
        self.name_server = self.pair.name_server
        self.hosts = {}
        for name in NAMES:
            self.hosts[name] = Host(self.pair.address(name))
            self._stack.callback(self.hosts[name].close)

    def addresses(self):
        """Return the addresses of the hosts by the address in the route."""
        return {name: host.address for name, host in self.hosts.items()}

    def close(self):
        self._stack.close()


def running_pair(kind, directory):
    """Yield a ready pair."""
    both = PairOfHosts(kind, directory)
    try:
        with Admin(both.name_server) as admin:
            wait_until("both masters", lambda: masters(admin) == set(NAMES), STARTS_SECONDS_MAX)
        yield both
    finally:
        both.close()


class PairCluster(Cluster):
    """Creates clients that reach the brokers through their hosts."""

    def __init__(self, both, *, by_hosts=False):
        self._both = both
        self._addresses = both.addresses() if by_hosts else {}
        super().__init__(both.name_server, both.pair.address("broker-a"), "broker-a")

    def instance(self, **more):
        return super().instance(broker_addresses=self._addresses, **more)

    def topic(self):
        """Create a topic with `QUEUES` queues on each broker."""
        topic = self.group().replace("Group", "Both")
        config = TopicConfig(
            topic_name=topic, read_queue_nums=QUEUES, write_queue_nums=QUEUES, perm=6
        )
        wait_until("a topic on both", lambda: self._is_made(config), STARTS_SECONDS_MAX)
        return topic

    def _is_made(self, config):
        try:
            for name in NAMES:
                self.api.admin.create_topic(self._both.pair.address(name), config)
            queues = self.sender.routes.refresh(config.topic_name).publish_queues
        except ClientError:
            return False
        return len(queues) == 2 * QUEUES

    def ends(self, topic):
        with Admin(self.name_server) as admin:
            return {queue: each.max_offset for queue, each in admin.topic_offsets(topic).items()}

    def committed(self, group, topic):
        """Return a group's committed offsets of each queue, from the brokers."""
        with Admin(self.name_server) as admin:
            return {each.queue: each.consumer_offset for each in admin.lag(group, topic)}
