"""A world of clients: a story told with two brokers, a name server, and programs that use the real client.

World(story).tell() ──> a trace that is the same, byte for byte, whenever the same story is told
                   └──> Broken: a promise that was not kept, with the trace up to there

When all steps are done and all troubles over, listeners are in a good mood, and everybody gets what is still
to come; then the curtain falls: all shut down, and the ledger looks at the whole.
"""

from __future__ import annotations

import importlib
import pkgutil
import tempfile
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from broker_stories import make_topic
from world.clients.acts import TOPICS
from world.clients.audit import Auditor
from world.clients.brokers import Broker
from world.clients.hosts import Host
from world.clients.ledger import Ledger
from world.clients.name_server import HOST as NAME_SERVER_HOST
from world.clients.name_server import NameServer
from world.clients.watch import Watch
from world.identity import Identity
from world.logs import Logs
from world.network import Weather
from world.sockets import Sockets
from world.stage import Stage
from world.threads import Threads

import rmq_spark.client

_PREEMPTED = r"rmq_spark/client/"
_WITHOUT = ("tls_", "arrow_")
_QUEUES = 2
_HOSTS = {"broker-a": "127.0.1.1", "broker-b": "127.0.1.2"}
_TWICE = 0.1
_UNSETTLED_SECONDS = 30.0
"""So long behind a trouble queues may still go from one member to another: rebalances are 20 s apart."""
_BEGIN_SECONDS = 30.0
_STORY_SECONDS = 2_000.0
_AUDIT_SECONDS = 60.0
_LOOK_SECONDS = 5.0
_PATIENCE_SECONDS = 300.0
_CURTAIN_SECONDS = 120.0
_ENDS_SECONDS = 3.0
_REST_SECONDS = 140.0


class ClientWorld(Stage):
    """Everything that there is while a story of clients is told."""

    def __init__(self, story):
        super().__init__(story)
        self.ledger = Ledger(self)
        self.watch = Watch(self)
        self.is_calm = False
        self.threads = Threads(self.kernel, story.preemption, story.line_preemption, _PREEMPTED)
        _load_all()

    def tell(self):
        """Tell the story to its end, and look whether all is as it must be."""
        with ExitStack() as stack:
            self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            stack.enter_context(self.threads)  # first: what the others are made of has to be of the world
            for each in (
                Sockets(self.kernel, self.network),
                Identity(self.kernel, self.dice_for("chance")),
                ClientLogs(self.kernel, self.note, self.complain, self.watch.is_excused),
            ):
                stack.enter_context(each)
            self.curtain = threading.Event()
            try:
                self._tell()
            finally:
                self.kernel.close()

    # ---- what its parts ask

    def is_alone(self, host):
        """Whether no other host has a consumer of the same group."""
        groups = [each.group for each in self.hosts]
        return groups.count(host.group) == 1

    def queues_of(self, topic):
        """All queues of a topic of the story."""
        return [(topic, broker.name, queue_id) for broker in self.brokers for queue_id in range(_QUEUES)]

    def end_of(self, queue):
        """The offset that the next message of a queue gets."""
        topic, name, queue_id = queue
        broker = next(each for each in self.brokers if each.name == name)
        return broker.life.controller.store.queue_offsets(topic, queue_id)[1]

    # ---- the story

    def _tell(self):
        self._auditor = Auditor(self)
        self.brokers = [Broker(self, name, host) for name, host in _HOSTS.items()]
        ends = [self.tasks.begin(broker.live(), broker.name) for broker in self.brokers]
        self._wait_for_brokers()
        for broker in self.brokers:
            for topic in TOPICS:
                make_topic(broker.life.controller, topic, _QUEUES)
        self._name_server = NameServer(self, self.brokers, _TWICE)
        self.hosts = [Host(self, plan, number) for number, plan in enumerate(self.story.clients)]
        lives = [self.tasks.begin(host.live(), host.name) for host in self.hosts]
        for trouble in self.story.troubles:
            self.kernel.after(trouble.begin, partial(self._befall, trouble))
        for host in self.hosts:
            self._await(host.steps_are_done, _STORY_SECONDS, f"the steps of {host.name}")
        over = max((each.begin + each.seconds for each in self.story.troubles), default=0.0)
        self.kernel.run(max(over + 1.0 - self.kernel.now, 0))
        self._wait_for_brokers()
        self.is_calm = True
        self.note("all is calm")
        self._wait_for_messages()
        self.curtain.set()
        for host, life in zip(self.hosts, lives, strict=True):
            self._await(life, _CURTAIN_SECONDS, f"the end of {host.name}")
        self._audit()
        self.ledger.check()
        self.kernel.run(_ENDS_SECONDS)
        for broker in self.brokers:
            if broker.life.controller.server.connections:  # of clients that fell silent
                self.kernel.run(_REST_SECONDS)
            self.watch.check_nothing_is_left(broker)
            broker.is_wanted = False
            self.tasks.begin(broker.stop(), "stop")
        for end in ends:
            self._await(end, _STORY_SECONDS, "the end of a broker")

    def _await(self, promise, seconds, what):
        if not self.kernel.run(seconds, promise):
            self.complain(f"{what} has not come: {self.tasks.running}\n{self.kernel.stacks()}")
            self.kernel.run(0)

    def _wait_for_brokers(self):
        until = self.kernel.now + _BEGIN_SECONDS
        while not all(broker.is_serving for broker in self.brokers):
            self.kernel.run(0.1)
            if self.kernel.now > until:
                self.complain("the brokers do not begin")

    def _wait_for_messages(self):
        """Until every reader has had all that it must have."""
        until = self.kernel.now + _PATIENCE_SECONDS
        while True:
            self._audit()
            left = self.ledger.outstanding()
            if not left:
                return
            if self.kernel.now > until:
                self.complain(
                    f"{len(left)} messages never came to whom they were for:\n" + "\n".join(left[:10])
                )
            self.kernel.run(_LOOK_SECONDS)

    def _audit(self):
        groups = dict.fromkeys(reader.group for reader in self.ledger.readers.values())
        own = [f"%{kind}%{group}" for group in groups for kind in ("RETRY", "DLQ")]
        auditor = self._auditor.audit(self.brokers, (*TOPICS, *own))
        self._await(self.tasks.begin(auditor, "audit"), _AUDIT_SECONDS, "the audit")

    # ---- what befalls it

    def _befall(self, trouble):
        """What goes wrong at one moment, and for how long."""
        self.note(f"{trouble.kind} {trouble.arguments} for {trouble.seconds} s")
        self.ledger.disturbed(trouble.seconds + _UNSETTLED_SECONDS)
        getattr(self, f"_{trouble.kind.replace(' ', '_')}")(trouble.seconds, **trouble.arguments)

    def _kill_a_broker(self, seconds, broker):
        if self.brokers[broker].is_serving:
            self.brokers[broker].down_seconds = seconds
            self.brokers[broker].kill()

    def _stop_a_broker(self, seconds, broker):
        if self.brokers[broker].is_serving:
            self.brokers[broker].down_seconds = seconds
            self.tasks.begin(self.brokers[broker].stop(), "stop")

    def _kill_a_client(self, seconds, client):
        for host in self.hosts:
            if host.name == client and host.process is not None:
                host.down_seconds = seconds
                host.process.kill()

    def _cut(self, seconds, broker):  # it takes no time
        self.network.cut_all(self._host(broker) if broker is not None else None)

    def _silence(self, seconds, broker):
        host = self._host(broker)
        self.network.silence(host)
        self.kernel.after(seconds, partial(self.network.give_back, host))

    def _hold_up(self, seconds, broker):
        self.network.hold_up(self._host(broker), seconds)

    def _slow(self, seconds, latency_seconds):
        usual = Weather(latency_seconds=self.story.latency_seconds)
        self.network.weather = Weather(latency_seconds, latency_seconds)
        self.kernel.after(seconds, partial(setattr, self.network, "weather", usual))

    def _clock(self, seconds, ahead_seconds):  # it takes no time
        self.threads.wall_ahead += ahead_seconds

    def _host(self, broker):
        return NAME_SERVER_HOST if broker is None else self.brokers[broker].host


class ClientLogs(Logs):
    """A client complains of listeners that fail; of nothing else has it to say that it is an error."""

    loggers = (*Logs.loggers, "rmq_spark")

    def is_expected(self, record, error):
        return record.name == "rmq_spark.client.consumer.listeners" or super().is_expected(record, error)


def _load_all():
    """Whatever the client loads when it first needs it: nothing in a world may wait for another's import."""
    for module in pkgutil.walk_packages(rmq_spark.client.__path__, "rmq_spark.client."):
        if not module.name.rpartition(".")[2].startswith(_WITHOUT):
            importlib.import_module(module.name)
