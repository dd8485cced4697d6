"""A world of clients: a story with two brokers, a name server, and programs with the real client.

World(story).tell() ──> a trace that is the same, byte for byte, for the same story
                   └──> Broken: a broken promise, with the trace up to there

When all steps are done and all troubles over, listeners are in a good mood, and all outstanding
messages are delivered; then all shut down, and the ledger checks the whole.
"""

import importlib
import pkgutil
import re
import threading
from math import inf

from support.brokers.in_process import make_topic
from world.clients.acts import TOPICS
from world.clients.hosts import Host
from world.clients.ledger import Ledger
from world.clients.operators import MAKE_AGAIN
from world.clients.watch import Watch
from world.cluster.audit import Auditor
from world.cluster.stage import ClusterStage
from world.logs import Logs
from world.story import Client, Step

import rmq_spark.client
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig
from rmq_spark.wire.names import HALF_TOPIC, revive_topic

_WITHOUT = ("tls_", "arrow_")
_QUEUES = 2
_REVIVE_TOPIC = revive_topic("DefaultCluster")
_HOSTS = {"broker-a": "127.0.1.1", "broker-b": "127.0.1.2"}
_UNSETTLED_SECONDS = 30.0
"""Seconds after a trouble within which queues may still move between members: rebalances are 20 s
apart."""
_UNREADABLE = re.compile(
    r"the message at offset (\d+) of queue (\d+) of (\S+) on ([\w-]+) cannot be read, "
    r"and it (?:is sent to|is skipped)"
)
_DELETED = "was deleted while it waited"
_UNHEARD = frozenset({"kill a broker", "stop a broker", "cut", "silence"})
"""Troubles in which requests to a broker, or its notifications, may be lost."""
_NOTICED_SECONDS = 10.0
"""Clients close connections that are silent for this many seconds and open new ones; meanwhile the
broker does not know the member, and does not notify it."""
_ROUTES_SECONDS = 60.0
"""Seconds until all clients know of a restored topic, and have rebalanced."""
_BELIEVED_SECONDS = 60.0
"""Seconds after the last lie for which members may still use its content."""
_GHOSTS_SECONDS = 130.0
"""Seconds for which a broker keeps a member whose connection has silently died; queues move
afterwards."""
_SEND = {"how": "sync", "count": 5, "gap": 0.01, "size": 0, "timeout_ms": 3_000}
_STORY_SECONDS = 2_000.0
_AUDIT_SECONDS = 60.0
_LOOK_SECONDS = 5.0
_PATIENCE_SECONDS = 300.0
_CURTAIN_SECONDS = 120.0


class ClientWorld(ClusterStage):
    """The world of a story of clients."""

    preempted = r"rmq_spark/client/"
    harmless = frozenset({"twice"})

    def __init__(self, story):
        super().__init__(story)
        self.ledger = Ledger(self)
        self.watch = Watch(self)
        self.is_calm = False
        self._queues = dict.fromkeys(TOPICS, _QUEUES)
        for client in story.clients:
            for step in client.steps:
                if step.kind == MAKE_AGAIN:
                    self.ledger.recreated_topics[step.arguments["topic"]] = inf
        _load_all()

    def _furniture(self):
        return (ClientLogs(self),)

    # ---- queries of its parts

    def is_alone(self, group):
        """Return whether at most one host has a consumer of a group."""
        groups = [each for host in self.hosts for each in host.groups]
        return groups.count(group) == 1

    def queues(self):
        """Return all queues of all topics of the story, including removed ones."""
        return [queue for topic in TOPICS for queue in self.queues_of(topic)]

    def queues_of(self, topic):
        """Return all queues of a topic of the story."""
        return [
            (topic, broker.name, queue_id)
            for broker in self.brokers
            for queue_id in range(self._queues[topic])
        ]

    def queue_count(self, topic):
        """Return the highest number of queues that a topic ever had."""
        return self._queues[topic]

    def has_queues(self, topic, count):
        """Record that a topic gets this number of queues."""
        self._queues[topic] = max(count, self._queues[topic])

    def broker_named(self, name):
        """Return the broker with this name."""
        return next(each for each in self.brokers if each.name == name)

    def end_of(self, queue):
        """Return the offset of the next message of a queue."""
        topic, name, queue_id = queue
        broker = self.broker_named(name)
        return broker.life.controller.store.queue_offsets(topic, queue_id).next

    def stored_offset(self, group, queue):
        """Return a group's offset in a queue that its broker has stored, or None."""
        topic, name, queue_id = queue
        broker = self.broker_named(name)
        return broker.life.controller.tables.offsets.query(group, topic, queue_id)

    # ---- troubles

    def befall(self, kind, seconds, arguments):
        """Start a trouble of this duration."""
        broker = arguments.get("broker")
        if kind in _UNHEARD or (kind == "hold up" and seconds > _NOTICED_SECONDS):
            name = self._broker(broker).name if broker is not None else None
            self.ledger.moves.troubled(seconds, name)
        if kind == "lie":
            self.ledger.moves.troubled(seconds)
        if kind == "hold up":
            self.ledger.held_up(self._broker(broker).name, seconds)
        super().befall(kind, seconds, arguments)

    def _silence(self, seconds, broker):
        super()._silence(seconds, broker)
        if broker is not None:
            self.ledger.silenced(self._broker(broker).name)

    def counts(self):
        """Return the number of messages that listeners and polling programs have received."""
        kinds = {step.kind for client in self.story.clients for step in client.steps}
        more = {f"stories with {kind}": 1 for kind in sorted(kinds)}
        return {**self.ledger.counts(), **more}

    # ---- the story

    def _tell(self):
        self.curtain = threading.Event()
        self._auditor = Auditor(self, self._audited)
        self._begin_brokers(_HOSTS, TOPICS, _QUEUES)
        self.hosts = [Host(self, plan, number) for number, plan in enumerate(self.story.clients)]
        lives = [self.tasks.begin(host.live(), host.name) for host in self.hosts]
        self._begin_troubles()
        for host in self.hosts:
            self._await(host.steps_are_done, _STORY_SECONDS, f"the steps of {host.name}")
        self._outlast_troubles()
        self._put_all_right()
        if self._lies:
            lives.append(self._send_after_lies())
        self.is_calm = True
        self.note("all is calm")
        self._join_all(_PATIENCE_SECONDS, _LOOK_SECONDS, "whom they were for")
        self.curtain.set()
        for host, life in zip(self.hosts, lives, strict=True):
            self._await(life, _CURTAIN_SECONDS, f"the end of {host.name}")
        self._look_at_the_end()

    def _send_after_lies(self):
        """Send messages that must all arrive, with all brokers honest; return a promise of the
        sender's end.

        Members may have skipped earlier messages because of a wrong claim.
        """
        self.kernel.run(_BELIEVED_SECONDS)
        self.ledger.disturbed(_GHOSTS_SECONDS)
        for name in self.lied_about:
            self.ledger.was_lied_to(name)
        sends = [Step("send", {**_SEND, "topic": topic}) for topic in TOPICS]
        host = Host(self, Client("after-lies", tuple(sends)), len(self.hosts))
        self.hosts.append(host)
        life = self.tasks.begin(host.live(), host.name)
        self._await(host.steps_are_done, _STORY_SECONDS, f"the steps of {host.name}")
        return life

    def _put_all_right(self):
        """Restore everything that operators have closed or removed."""
        for broker in self.brokers:
            for topic, queues in self._queues.items():
                known = broker.life.controller.tables.topics.get(topic)
                make_topic(broker.life.controller, topic, queues)
                if known != broker.life.controller.tables.topics.get(topic):
                    self.ledger.disturbed(_ROUTES_SECONDS)
            groups = broker.life.controller.tables.groups
            for group in {each for host in self.hosts for each in host.groups}:
                groups.put(SubscriptionGroupConfig(group_name=group))
        for topic, since in self.ledger.recreated_topics.items():
            self.ledger.recreated_topics[topic] = min(since, self.kernel.now)

    def _audit(self):
        groups = dict.fromkeys(reader.group for reader in self.ledger.readers.values())
        own = [f"%{kind}%{group}" for group in groups for kind in ("RETRY", "DLQ")]
        own += [_REVIVE_TOPIC] if self.ledger.pops.has_groups else []
        own += [HALF_TOPIC] if any(host.has_transactions for host in self.hosts) else []
        auditor = self._auditor.audit(self.brokers, (*TOPICS, *own))
        self._await(self.tasks.begin(auditor, "audit"), _AUDIT_SECONDS, "the audit")

    def _audited(self, queue, message):
        if queue[0] == HALF_TOPIC:
            self.ledger.transactions.audited(message)
        elif queue[0] == _REVIVE_TOPIC:
            self.ledger.pops.audited(queue[1], message)
        else:
            self.ledger.audited(queue, message.queue_offset, message.body)

    # ---- implementation of troubles

    def disturbed(self, seconds):
        self.ledger.disturbed(seconds + _UNSETTLED_SECONDS)

    def _kill_a_client(self, seconds, client):
        for host in self.hosts:
            if host.name == client and host.process is not None:
                host.down_seconds = seconds
                host.process.kill()


class ClientLogs(Logs):
    """Clients may log errors of failing listeners only; brokers those of delayed messages whose
    topic was deleted."""

    loggers = (*Logs.loggers, "rmq_spark")

    def __init__(self, world):
        super().__init__(world.kernel, world.note, world.complain, world.watch.is_excused)
        self._world = world

    def is_expected(self, record, error):
        found = _UNREADABLE.match(record.getMessage())
        if found is not None and found[4] in self._world.liars:
            offset, queue_id, topic, broker = found.groups()
            self._world.ledger.cannot_be_read((topic, broker, int(queue_id), int(offset)))
            return True
        return (
            record.name == "rmq_spark.client.consumer.dispatch.listeners"
            or record.getMessage().endswith(_DELETED)
            or super().is_expected(record, error)
        )


def _load_all():
    """Import all modules that the client loads lazily: nothing in a world may wait for another's
    import."""
    for module in pkgutil.walk_packages(rmq_spark.client.__path__, "rmq_spark.client."):
        if not module.name.rpartition(".")[2].startswith(_WITHOUT):
            importlib.import_module(module.name)
