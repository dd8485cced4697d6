"""The common base of worlds with several brokers, a name server and their troubles.

Subclasses define the story (`_tell`), the files whose threads may be interrupted, and which log
lines are errors.
"""

import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from unittest.mock import patch

from support.brokers.in_process import make_topic
from world.cluster.answers import Answers
from world.cluster.brokers import Broker
from world.cluster.lies import RENUMBERED, WORLD_LIES, Liar
from world.cluster.name_server import HOST as NAME_SERVER_HOST
from world.cluster.name_server import NameServer
from world.identity import Identity
from world.network import Weather
from world.sockets import Sockets
from world.stage import Stage, forget_earlier_stories
from world.threads import Threads

from rmq_spark.client.transport import connection
from rmq_spark.client.transport.sockets import SocketRegistry

_TWICE = 0.1
_OF_ANSWERS = frozenset({"twice", "late", "lie"})
_BEGIN_SECONDS = 30.0
_STOP_SECONDS = 2_000.0
_REST_SECONDS = 140.0
_ENDS_SECONDS = 3.0


class ClusterStage(Stage):
    """Brokers that serve in successive lives, and a name server with their addresses."""

    preempted = ""
    """Files whose threads may be interrupted at any statement."""

    harmless = frozenset()
    """Kinds of trouble that clients of the cluster must not notice."""

    def __init__(self, story):
        super().__init__(story)
        self.threads = Threads(self.kernel, story.preemption, story.line_preemption, self.preempted)
        self.brokers = []
        self.liar = None
        self._lies = []  # start, end, broker and lie
        self._over_at = 0.0

    def tell(self):
        """Run the story to its end, and check all promises."""
        forget_earlier_stories()
        with ExitStack() as stack:
            self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            stack.enter_context(
                self.threads
            )  # first: everything else must be created within the world
            for each in (
                Sockets(self.kernel, self.network),
                patch.object(connection, "SOCKETS", SocketRegistry()),
                Identity(self.kernel, self.dice_for("chance")),
                *self._furniture(),
            ):
                stack.enter_context(each)
            try:
                self._tell()
            finally:
                self.kernel.close()

    def _furniture(self):
        """Return further replacements in Python's modules during the story."""
        return ()

    def _audit(self):
        """Read all messages of the brokers."""
        raise NotImplementedError

    def disturbed(self, seconds):
        """Record a disturbance of this duration."""

    def may_be_wrong(self, name, ago_seconds=0.0, about=None):
        """Return whether a broker makes wrong claims, or made some up to some seconds ago.

        None means any broker; ``about`` restricts it to lies for which that function returns True.
        """
        now = self.kernel.now
        return any(
            begin <= now < end + ago_seconds
            and name in (None, broker)
            and (lie.is_claim if about is None else about(lie))
            for begin, end, broker, lie in self._lies
        )

    @property
    def liars(self):
        """Return the brokers that have given wrong responses so far."""
        return {name for _, _, name, _ in self._lies if name is not None}

    @property
    def lied_about(self):
        """Return the brokers that have made wrong claims."""
        return {name for _, _, name, lie in self._lies if lie.is_claim}

    @property
    def renumbered(self):
        """Return the brokers that have reported records at wrong offsets."""
        return {name for _, _, name, lie in self._lies if lie is WORLD_LIES[RENUMBERED]}

    # ---- the story

    def _begin_brokers(self, hosts, topics, queues):
        """Start brokers with these topics, and a name server that knows them."""
        if not _OF_ANSWERS.isdisjoint(trouble.kind for trouble in self.story.troubles):
            self.liar = Liar(self.kernel, self.dice_for("lies"), self.note)
            self._answers = Answers(self.kernel, self.dice_for("answers"), self.liar)
            self.network.lines = self._answers.lines
        self.brokers = [Broker(self, name, host) for name, host in hosts.items()]
        self._ends = [self.tasks.begin(broker.live(), broker.name) for broker in self.brokers]
        self._wait_for_brokers()
        for broker in self.brokers:
            for topic in topics:
                make_topic(broker.life.controller, topic, queues)
            broker.life.controller.tables.topics.save()  # saved, because a kill could lose them
        self.name_server = NameServer(self, self.brokers, _TWICE)

    def _begin_troubles(self):
        for trouble in self.story.troubles:
            befall = partial(self.befall, trouble.kind, trouble.seconds, trouble.arguments)
            self.kernel.after(trouble.begin, befall)

    def _outlast_troubles(self):
        """Wait until the last trouble is over, and all brokers are up."""
        over = max((each.begin + each.seconds for each in self.story.troubles), default=0.0)
        while (left := max(over, self._over_at) + 1.0 - self.kernel.now) > 0:
            self.kernel.run(left)
        self._wait_for_brokers()

    def _join_all(self, patience_seconds, look_seconds, what):
        """Wait until everything outstanding has arrived; ``what`` names the missing messages in an
        error.

        The timeout restarts whenever fewer are missing: a connection that was made while the
        network was slow stays slow.
        """
        until, least = self.kernel.now + patience_seconds, None
        while True:
            self._audit()
            left = self.ledger.outstanding()
            if not left:
                return
            if least is None or len(left) < least:
                until, least = self.kernel.now + patience_seconds, len(left)
            if self.kernel.now > until:
                self.complain(
                    f"{len(left)} messages never came to {what}:\n" + "\n".join(left[:10])
                )
            self.kernel.run(look_seconds)

    def _look_at_the_end(self):
        """Check the final result, and that nothing is left over."""
        self._audit()
        self.ledger.check()
        self.kernel.run(_ENDS_SECONDS)
        self._end_brokers()

    def _end_brokers(self):
        """Check that nothing is left at the brokers, and stop them."""
        for broker in self.brokers:
            if broker.life.controller.server.connections:  # of silent clients
                self.kernel.run(_REST_SECONDS)
            self._check_nothing_is_left(broker)
            broker.is_wanted = False
            self.tasks.begin(broker.stop(), "stop")
        for end in self._ends:
            self._await(end, _STOP_SECONDS, "the end of a broker")

    def _check_nothing_is_left(self, broker):
        """Check that an unused broker has no connections, and holds no pulls."""
        controller = broker.life.controller
        left = {
            "connections": controller.server.connections,
            "bytes in flight": controller.server.in_flight_bytes,
            "waiting pulls": controller.hold_service.hold_count,
        }
        for what, count in left.items():
            if count:
                self.complain(
                    f"when all clients had gone, {count} {what} were left at {broker.name}"
                )

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

    # ---- troubles

    def befall(self, kind, seconds, arguments):
        """Start a trouble of this duration."""
        self.note(f"{kind} {arguments} for {seconds} s")
        self._over_at = max(self._over_at, self.kernel.now + seconds)
        if kind not in self.harmless:
            self.disturbed(seconds)
        getattr(self, f"_{kind.replace(' ', '_')}")(seconds, **arguments)

    def _kill_a_broker(self, seconds, broker):
        broker = self._broker(broker)
        if broker.is_serving:
            broker.down_seconds = seconds
            broker.kill()

    def _stop_a_broker(self, seconds, broker):
        broker = self._broker(broker)
        if broker.is_serving:
            broker.down_seconds = seconds
            self.tasks.begin(broker.stop(), "stop")

    def _cut(self, seconds, broker):  # takes no time
        self.network.cut_all(self._host(broker) if broker is not None else None)

    def _silence(self, seconds, broker):
        host = self._host(broker)
        self.network.silence(host)
        self.kernel.after(seconds, partial(self.network.send_back, host))

    def _hold_up(self, seconds, broker):
        self.network.hold_up(self._host(broker), seconds)

    def _slow(self, seconds, latency_seconds):
        usual = Weather(latency_seconds=self.story.latency_seconds)
        self.network.weather = Weather(latency_seconds, latency_seconds)
        self.kernel.after(seconds, partial(setattr, self.network, "weather", usual))

    def _twice(self, seconds, broker):
        self._answers.twice(self._broker(broker).host, seconds)

    def _late(self, seconds, broker):
        self._answers.overdue(self._broker(broker).host, seconds)

    def _lie(self, seconds, broker, about):
        """Let a broker, or the name server, give wrong responses of one kind."""
        lie, name = WORLD_LIES[about], None
        if not lie.is_of_names:
            name = self._broker(broker).name
        host = self._host(None if lie.is_of_names else broker)
        self._lies.append((self.kernel.now, self.kernel.now + seconds, name, lie))
        self.liar.lie(host, about, seconds)

    def _clock(self, seconds, ahead_seconds):  # takes no time
        self.threads.wall_ahead += ahead_seconds

    def _host(self, broker):
        return NAME_SERVER_HOST if broker is None else self._broker(broker).host

    def _broker(self, number):
        """Return the broker with this number; a shrunk story has fewer brokers."""
        return self.brokers[number % len(self.brokers)]
