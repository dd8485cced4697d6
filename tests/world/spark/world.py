"""A world of Spark: a story with brokers, a name server, and queries with the real source and sink.

World(story).tell() ──> a trace that is the same, byte for byte, for the same story
                   └──> Broken: a broken promise, with the trace up to there

There is no JVM: `driver`, `tasks` and `workers` implement Spark's contract. When all producers are
done and all troubles over, the queries get all outstanding messages within a time; then all end,
and the ledger checks the whole.
"""

import errno
import importlib
import os
import pkgutil
import sys
from functools import partial, wraps
from unittest.mock import patch

from world.cluster.audit import Auditor
from world.cluster.lies import WORLD_LIES
from world.cluster.stage import ClusterStage
from world.disk import ROOMY
from world.logs import Logs
from world.spark.drawing import QUEUES, TOPICS
from world.spark.driver import Stream
from world.spark.files import WorkersFiles, reading_files
from world.spark.ledger import Ledger
from world.spark.onlookers import Onlooker
from world.spark.operators import Operator
from world.spark.producers import Producer
from world.spark.reads import Reads
from world.spark.rolled_back import RolledBack
from world.spark.ways import prefix_of, told_address
from world.spark.writes import TOPIC as SINKS_TOPIC
from world.spark.writes import TaskContext, Writes
from world.story import Client
from world.tasks import Promise

import rmq_spark
from rmq_spark.spark import writer
from rmq_spark.spark.bodies import decoder
from rmq_spark.spark.read import partition_reader
from rmq_spark.spark.write import sender
from rmq_spark.wire.codes import ResponseCode
from rocketpoll.broker.processor.extensions.extensions import ExtensionsProcessor
from rocketpoll.broker.processor.request import RequestRejected

_STORY_SECONDS = 2_000.0
_AUDIT_SECONDS = 60.0
_LOOK_SECONDS = 1.0
_PATIENCE_SECONDS = 600.0
"""Seconds without progress that are allowed: each worker with a silent connection waits 30 s for
it, once, and a batch for its workers."""

_FULL = 0.87
_MADE_SECONDS = 1.0
"""Seconds until brokers have saved the topics that exist before the story begins."""

_BODIES_MAX = 2
"""Maximum number of bodies that are decoded one by one if one is bad."""

_LAID_SECONDS = 1.5
"""Seconds after its acknowledgement until a message has its final place."""

_CLEANED_SECONDS = 0.1
"""Interval at which old messages may be deleted from a full disk."""
_CLAIMED_SECONDS = 5.0
"""Seconds after a wrong claim for which a query may still use it."""
_WITHOUT = ("tls_", "cli", "__main__")
_PROGRAMS = {"stream": Stream, "read": Reads, "sink": Writes}
"""The class of a program, by its first step."""


class SparkWorld(ClusterStage):
    """The state of a story of Spark."""

    preempted = r"rmq_spark/spark/"

    def __init__(self, story):
        super().__init__(story)
        prefix = prefix_of(story)
        self.sinks_topic = prefix + SINKS_TOPIC
        self._topics = (*(prefix + topic for topic in TOPICS), self.sinks_topic)
        self.ledger = Ledger(self)
        self.watch = Watch()
        self.programs = []
        self.gate = Promise()
        """A gate at which programs wait before they start, while it is closed."""
        self.gate.keep()
        self._damage_dice = self.dice_for("damage")
        self.calm_since = None
        self._operations = []
        self._are_plain = False
        self.rolled_back = RolledBack(self, Producer(self, Client("others", ())))
        _load_all()

    def _furniture(self):
        self.task_context = TaskContext(self.kernel)
        self.files = WorkersFiles(self)
        return (
            SparkLogs(self),
            *reading_files(self.files),
            patch.dict(os.environ, PYSPARK_PYTHON=sys.executable),
            patch.object(writer, "TaskContext", self.task_context),
            patch.object(decoder, "_SLICE_ROWS_MAX", _BODIES_MAX),
            patch.object(ExtensionsProcessor, "extensions", self._agreeing()),
        )

    def _agreeing(self):
        """Return the brokers' function for extensions; plain brokers have none."""
        agree = ExtensionsProcessor.extensions

        @wraps(agree)  # keeps the attributes of a handler
        def extensions(processor, connection, request):
            if self._are_plain:
                raise RequestRejected(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not known here")
            return agree(processor, connection, request)

        return extensions

    def _tell(self):
        partition_reader._addresses.clear()  # of the processes of another world
        sender._producers.clear()
        self._begin_brokers(
            {
                plan.name: f"127.0.1.{number + 1}"
                for number, plan in enumerate(self._plans("broker"))
            },
            self._topics,
            QUEUES,
        )
        producers = [Producer(self, plan) for plan in self._plans("producer")]
        plays = [self.tasks.begin(each.play(), each.name) for each in producers]
        programs = [
            plan for plan in self.story.clients if plan.steps and plan.steps[0].kind in _PROGRAMS
        ]
        self.programs = [
            _PROGRAMS[plan.steps[0].kind](self, plan, f"127.0.4.{number + 1}")
            for number, plan in enumerate(programs)
        ]
        lives = [self.tasks.begin(program.live(), program.name) for program in self.programs]
        self.onlookers = [
            Onlooker(self, plan, self.sinks_topic) for plan in self._plans("onlooker")
        ]
        for onlooker in self.onlookers:
            self.tasks.begin(onlooker.look(), "onlooker")
        self._begin_troubles()
        for producer, play in zip(producers, plays, strict=True):
            self._await(play, _STORY_SECONDS, f"the end of {producer.name}")
        self._outlast_troubles()
        for done in self._operations:
            self._await(done, _STORY_SECONDS, "the end of an operation")
        for program, life in zip(self.programs, lives, strict=True):
            if isinstance(program, Writes) and program.has_troubles:
                self._await(life, _STORY_SECONDS, f"the last batch of {program.name}")
        self._outlast_troubles()  # a query may have started another trouble meanwhile
        self.calm_since = self.kernel.now
        self.note("all is calm")
        self._join_all(_PATIENCE_SECONDS, _LOOK_SECONDS, "a query")
        for program, life in zip(self.programs, lives, strict=True):
            if isinstance(program, Stream):
                program.stop()
            self._await(life, _STORY_SECONDS, f"the end of {program.name}")
        self._look_at_the_end()

    def _plans(self, kind):
        """Return the plans of a kind, with the names of their players."""
        return [plan for plan in self.story.clients if plan.name.startswith(kind)]

    def _audit(self):
        self.ledger.audit_begins()
        auditor = Auditor(self, self.ledger.audited, check_crc=not self.ledger.damaged)
        audit = auditor.audit(self.brokers, self._topics)
        self._await(self.tasks.begin(audit, "audit"), _AUDIT_SECONDS, "the audit")

    # ---- troubles

    def befall(self, kind, seconds, arguments):
        if self.calm_since is None:
            super().befall(kind, seconds, arguments)

    def _kill_a_broker(self, seconds, broker):
        if self.kernel.now > _MADE_SECONDS:
            super()._kill_a_broker(seconds, broker)

    def _lose_power(self, seconds, broker):
        broker = self._broker(broker)
        if broker.is_serving and self.kernel.now > _MADE_SECONDS:
            broker.down_seconds = seconds
            if not self.story.is_sync:
                self.ledger.takes_away(broker=broker.name)
            broker.lose_power()

    def _kill_a_driver(self, seconds, program):
        for each in self.programs:
            if each.name == program and each.run is not None:
                each.down_seconds = seconds
                each.run.kill()

    def _kill_a_planner(self, seconds, stream):
        for each in self.programs:
            if each.name == stream and isinstance(each, Stream):
                each.down_seconds = seconds
                each.kill_a_planner()

    def _lie(self, seconds, broker, about):
        """Let a broker make wrong claims, which count as losses for its clients."""
        super()._lie(seconds, broker, about)
        lie, until = WORLD_LIES[about], self.kernel.now + seconds + _CLAIMED_SECONDS
        if lie.is_claim or lie.is_partly_claim or lie.is_of_names:
            names = [None] if lie.is_of_names else [self._broker(broker).name]

            def is_believed():
                for name in names:
                    self.ledger.takes_away(broker=name)
                if self.kernel.now < until:
                    self.kernel.after(_CLEANED_SECONDS, is_believed)

            is_believed()

    def _make_again(self, seconds, topic, queues):
        async def make_again():
            operator = Operator(self)
            await operator.delete(topic)
            await self.tasks.sleep(seconds)
            await operator.create(topic, queues, queues)

        self._operate(make_again())

    def _damage(self, seconds, broker):  # takes no time
        """Flip a bit of a stored body, which readers must detect."""
        ledger, name = self.ledger, self.ledger.first_name(self._broker(broker).name)
        whole = [
            body
            for body, (time, place) in ledger.acknowledged.items()
            if place[1] == name
            and time + _LAID_SECONDS < self.kernel.now
            and place not in ledger.damaged
        ]
        if whole:
            body = self._damage_dice.choice(whole)
            if self._broker(broker).spoil(body):
                self.note(f"{ledger.sent[body]} is damaged")
                ledger.damages(body)

    def _older_copy(self, seconds, broker, age_seconds):
        """Restart a broker on an older copy of its disk."""
        self._from_a_copy(broker, age_seconds, lambda each, copy: each.put_back(copy, seconds))

    def _slave(self, seconds, broker, age_seconds):
        """Let a slave with lag answer instead of a broker."""
        host = self._slave_host(broker % len(self.brokers))
        self._from_a_copy(
            broker, age_seconds, lambda each, copy: each.stand_in(copy, host, seconds)
        )

    def _from_a_copy(self, broker, age_seconds, use):
        broker = self._broker(broker)

        async def operate():
            copy = broker.copy_disk()
            await self.tasks.sleep(age_seconds)
            await self._until_it_serves(broker)
            self.ledger.takes_away(broker=broker.name)
            had = [*broker.topics()]
            await use(broker, copy)
            await self._until_it_serves(broker)
            self.ledger.takes_away(broker=broker.name)
            await Operator(self).make_missing(broker, had)

        self._operate(operate())

    def _rename(self, seconds, broker):
        """Rename a broker while no program runs, and tell the users."""
        broker = self._broker(broker)
        before, name = broker.name, f"{broker.name}-renamed"

        async def operate():
            self.gate = Promise()
            for program in self.programs:
                if program.run is not None:
                    program.run.kill()
            await self._until_it_serves(broker)
            await broker.rename(name, seconds)
            self.ledger.renames(before, name)
            await self._until_it_serves(broker)
            for program in self.programs:
                program.renamed(self.ledger.new_names)
            self.gate.keep()

        if not before.endswith("-renamed"):
            self._operate(operate())

    async def _until_it_serves(self, broker):
        while not broker.is_serving:
            await self.tasks.sleep(_LOOK_SECONDS / 10)

    def _change_queues(self, seconds, topic, read_queues, write_queues):  # takes no time
        self._operate(Operator(self).create(topic, read_queues, write_queues))

    def _operate(self, operation):
        """Run operations one after the other: concurrent ones would leave the brokers different."""
        before = self._operations[-1:]

        async def operate():
            try:
                for done in before:
                    await done
                await operation
            finally:
                operation.close()  # after a failure, waiting operations are not run

        self._operations.append(self.tasks.begin(operate(), "operation"))

    def _roll_back(self, seconds, broker, topic, rows, slow_seconds):  # takes no time
        """Let a batch fail to commit while others send."""
        broker = self._broker(broker)
        self._operate(self.rolled_back.fail(broker, topic, rows, slow_seconds))

    def _plain(self, seconds, for_good):
        """Let brokers behave like RocketMQ's to new clients."""
        self._are_plain = True
        if not for_good:
            self.kernel.after(seconds, partial(setattr, self, "_are_plain", False))

    def _fill(self, seconds, broker):
        """Fill a disk so far that the oldest messages are deleted."""
        broker = self._broker(broker)
        broker.use_disk(_FULL)
        until = self.kernel.now + seconds

        def messages_go():
            self.ledger.takes_away(broker=broker.name, expired=True)
            if self.kernel.now < until:
                self.kernel.after(_CLEANED_SECONDS, messages_go)
            else:
                broker.use_disk(ROOMY)

        messages_go()

    def _hide(self, seconds, how):  # takes no time, and is permanent
        """Let the name server return addresses that lead nowhere, or to the next broker."""
        addresses = [broker.address for broker in self.brokers]
        if how == "next":
            told = dict(zip(addresses, [*addresses[1:], *addresses[:1]], strict=True))
        else:
            told = {address: told_address(number) for number, address in enumerate(addresses)}
            told |= {
                self._slave_host(number) + ":10911": told_address(number, is_slave=True)
                for number in range(len(addresses))
            }
        self.name_server.tells_others(told)

    @staticmethod
    def _slave_host(number):
        return f"127.0.5.{number + 1}"

    def _forget_a_broker(self, seconds, broker):
        """Let the name server forget a broker."""
        broker = self._broker(broker)
        self.ledger.takes_away(broker=broker.name)
        self.name_server.forget(broker, seconds)


class Watch:
    """Excuses brokers' errors about full disks, and no others."""

    def is_excused(self, error):
        """Return whether a broker's error is expected."""
        return isinstance(error, OSError) and error.errno == errno.ENOSPC


class SparkLogs(Logs):
    """Passes a query's log lines to its model, which checks the reported losses."""

    loggers = (*Logs.loggers, "rmq_spark")

    def __init__(self, world):
        super().__init__(world.kernel, world.note, world.complain, world.watch.is_excused)
        self._world = world

    def emit(self, record):
        super().emit(record)
        actor = self._kernel.current
        if actor is None or actor.is_killed or not record.name.startswith("rmq_spark"):
            return
        for program in self._world.programs:
            if actor.process is not None and actor.process.name.startswith(f"{program.name} "):
                for model in program.models_of(actor.process.name):
                    model.logged(record.getMessage())


def _load_all():
    """Import everything that is loaded lazily: in a world nothing may wait for another's import."""
    for package in (rmq_spark.client, rmq_spark.spark, rmq_spark.wire):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.rpartition(".")[2].startswith(_WITHOUT):
                importlib.import_module(module.name)
