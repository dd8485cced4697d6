"""One or two masters of a real RocketMQ and their name server, for tests that kill and restart
them."""

import signal

from support.brokers.broker_kinds import settings, store_config, wait_until
from support.rocketmq.real_broker import RocketMQ, free_broker_port

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.errors import ClientError
from rocketpoll import read_table
from rocketpoll.broker.store.config import FlushDiskType

NAMES = ("broker-a", "broker-b")
KNOWN_SECONDS_MAX = 180


class Master:
    """One of two masters, always on the same port and store."""

    def __init__(self, rocketmq, directory, name):
        self.name = self._first_name = name
        self._rocketmq = rocketmq
        self._config = store_config(directory / f"store-{name}")
        self._port = free_broker_port()
        self.start()

    @property
    def address(self):
        return f"127.0.0.1:{self._port}"

    def start(self):
        """Start the master, also after an end, without waiting."""
        more = {**settings(FlushDiskType.SYNC_FLUSH), "timerWheelEnable": "true"}
        self._process = self._rocketmq.start_broker(self.name, self._port, self._config, more)

    def kill(self):
        """Kill the master."""
        self._process.check_is_running()
        self._process.kill()

    def stop(self):
        """Stop the master cleanly: it unregisters from its name server."""
        self._process.check_is_running()
        self._process.stop()

    retire = stop

    def restart(self):
        """Start the master again; return when the name server knows it."""
        self.start()
        wait_until_known(self._rocketmq.address, [self.name])

    def rename(self, name):
        """Start the master again under another name."""
        self.stop()
        self.name = name
        self.restart()

    def pause(self):
        """Suspend the master until `resume`; its connections stay open."""
        self._process.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self._process.process.send_signal(signal.SIGCONT)

    def mend(self):
        """Start or restart the master so that it runs under its first name."""
        self.resume()
        if self.name != self._first_name:
            self.rename(self._first_name)
        elif self._process.process.poll() is not None:
            self.restart()

    def close(self):
        self._process.kill()


class OneBroker:
    """A name server and one master, with the interface of our broker in campaigns."""

    def __init__(self, version, directory):
        self._version, self._directory = version, directory

    def start(self):
        """Start both; return when the name server knows the broker."""
        self._rocketmq = RocketMQ(self._version, self._directory)
        self.address = self._rocketmq.address
        self._master_address = Master(self._rocketmq, self._directory, NAMES[0])
        wait_until_known(self.address, NAMES[:1])

    def create_topic(self, name, queues):
        with Admin(self.address) as admin:
            admin.create_topic(name, queues)

    def messages(self, topic):
        """Return the bodies of all messages of a topic."""
        return read_table(topic, self.address, columns=["body"])["body"].to_pylist()

    def kill(self):
        self._master_address.kill()

    def restart(self):
        """Start the broker again; return when the name server knows it."""
        self._master_address.restart()

    def stop(self):
        self._master_address.close()
        self._rocketmq.kill()


class OneOfTwo(OneBroker):
    """One of two masters, with the interface of our broker in campaigns.

    The first to start starts both, and the last to stop stops both.
    """

    def __init__(self, two, name):
        self._two, self._name = two, name

    @classmethod
    def both(cls, version, directory):
        """Return both masters."""
        two = _Two(version, directory)
        return [cls(two, name) for name in NAMES]

    def start(self):
        """Start both masters, unless they are running."""
        self.address = self._two.started().name_server
        self._master_address = self._two.started().members[self._name]

    def stop(self):
        """Stop both masters, unless they have ended."""
        self._two.end()


class _Two:
    """Two masters that are started together on demand and stopped once."""

    def __init__(self, version, directory):
        self._given = version, directory
        self._brokers = None

    def started(self):
        if self._brokers is None:
            self._brokers = TwoBrokers(*self._given)
            self._brokers.wait_until_known()
        return self._brokers

    def end(self):
        brokers, self._brokers = self._brokers, None
        if brokers is not None:
            brokers.close()


class TwoBrokers:
    """A name server and two masters."""

    def __init__(self, version, directory):
        self._rocketmq = RocketMQ(version, directory)
        self.name_server = self._rocketmq.address
        self.members = {name: Master(self._rocketmq, directory, name) for name in NAMES}

    def wait_until_known(self):
        """Wait until the name server knows both."""
        wait_until_known(self.name_server, NAMES)

    def mend(self):
        """Start or restart both so that they run as at first."""
        for member in self.members.values():
            member.mend()
        self.wait_until_known()

    def close(self):
        for member in self.members.values():
            member.close()
        self._rocketmq.kill()


def wait_until_known(name_server, names):
    """Wait until a name server knows these masters."""
    with Admin(name_server) as admin:
        wait_until(", ".join(names), lambda: set(names) <= masters(admin), KNOWN_SECONDS_MAX)


def masters(admin):
    """Return the names of the registered masters."""
    try:
        return set(admin.masters())
    except ClientError:
        return set()
