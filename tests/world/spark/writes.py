"""Spark's writes in a simulated world: batches of a stream, or batch writes, by retried tasks.

A partition's rows are sent by one attempt or by several: one that fails or is killed is retried,
and two may run at the same time. The results of the attempts that count are committed, or all is
aborted. A batch that was not committed runs again, with the same rows.

An exactly-once writer, a stream or named batch writes, is also killed before and after its commits.
Its partitions differ when a batch runs again, as after a shuffle. In a stream, a replaced driver
commits late, or another one runs the same batch (`commits`). With visibleTo=all, it aborts late as
well, which must not drop anything that another one stages. Its checkpoint is deleted now and then:
the query that starts from nothing is refused, and then the checkpoint is restored. Or another
driver starts from a copy of it, with other rows for the last batch: they are refused as well.
"""

import pickle
from functools import partial
from itertools import count

import pyarrow as pa
from support.spark.source_queries import schema_of
from support.spark.task_context import FakeTaskContext
from world.spark.bodies import columns_of
from world.spark.commits import CommitTroubles
from world.spark.runs import Application, DriverKilled, QueryFailed, Run
from world.spark.tasks import Fate, TaskSet
from world.spark.workers import Crashed

from rmq_spark.client.manifest import commits_topic_name
from rmq_spark.errors import RocketPollError
from rmq_spark.spark.data_source import RocketPollDataSource

TOPIC = "S0"
_OF_BODIES = {
    None: ("body binary", (pa.binary(),)),
    "text": ("body string", (pa.string(),)),
    "json": ("number bigint, text string", (pa.int64(), pa.string())),
    "avro": ("number bigint, text string", (pa.int64(), pa.string())),
}
"""The columns that become the body, by its format."""

_SCHEMA = "keys string, tags string, properties map<string,string>"
_TYPES = (pa.string(), pa.string(), pa.map_(pa.string(), pa.string()))
_BATCH_ROWS = 3
_GIVES_UP = 0.5
"""Share of replaced drivers that abort a batch instead of committing it."""
_AMID_SECONDS = (0.002, 0.005, 0.01, 0.05)
"""Approximate seconds for a commit and its manifest."""

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"
_PROPERTIES = (_QUERY_ID, _BATCH_ID, _RUN_ID)


class TaskContext:
    """Spark's TaskContext for tasks of a world."""

    def __init__(self, kernel):
        self._kernel = kernel
        self._of = {}

    def get(self):
        """Return the context of the calling task."""
        return self._of.get(self._kernel.current.process)

    def enter(self, context):
        """Set the context of the current process's task."""
        self._of[self._kernel.current.process] = context


class Writes(Application):
    """A program that writes one batch after the other."""

    def __init__(self, world, plan, host):
        super().__init__(world, plan, host)
        sink, *writes = plan.steps
        self.model = world.ledger.sink(self)
        self._options = sink.arguments["options"]
        self._is_stream = sink.arguments["is_stream"]
        self.is_exactly_once = self._options.get("delivery") == "exactly_once"
        self._is_named = self.is_exactly_once and not self._is_stream
        space = self._options.get("namespace")
        self.topic = f"{space}%{self._options['topic']}" if space else self._options["topic"]
        self.format = self._options.get("bodyFormat")
        self.is_visible_to_all = self._options.get("visibleTo") == "all"
        self._deaths = sink.arguments.get("deaths", 0)
        self._zombies = sink.arguments.get("zombies", 0)
        self._deletions = sink.arguments.get("deletions", 0)
        self._copies = sink.arguments.get("copies", 0)
        self._troubles = CommitTroubles(world, self.name, sink.arguments)
        self._twins = []  # promises of the twins' ends
        self._reported = []  # commit messages that a driver has received, with their batch
        self._fate = Fate(sink.arguments["speculation"], sink.arguments["kills"])
        self._left = [(batch, step.arguments) for batch, step in enumerate(writes)]
        self._rows = {}  # partitions by batch: the same in each run
        self._numbers = count()
        of_bodies, types = _OF_BODIES[self.format]
        self._schema, self._types = schema_of(f"{of_bodies}, {_SCHEMA}"), (*types, *_TYPES)

    @property
    def has_troubles(self):
        """Return whether troubles at its commits are left."""
        return self._troubles.are_drawn

    async def execute(self):
        while self._left:
            batch, arguments = self._left[0]
            await self.run.pause(arguments["after"])
            if batch not in self._rows:
                self._rows[batch] = [self._some(rows) for rows in arguments["partitions"]]
            elif self.is_exactly_once:
                self._rows[batch] = self._shuffled(self._rows[batch], self.dice)
            await self._write(batch, self._rows[batch])
            self._left.pop(0)
            if self.model.counted_rows and self.dice.random() < self._deletions:
                await self._begin_again()
            if self._copies and any(self._rows[batch]) and self.dice.random() < self._copies:
                await self._go_on_from_a_copy(batch)
        for twin in self._twins:
            await self.run.until(twin)
        self.is_wanted = False

    async def _begin_again(self):
        """Write batch 0 as a query whose checkpoint was deleted; it must be refused."""
        self.world.note(f"{self.run.name}: its checkpoint is deleted")
        query = f"another-id-of-{self.name}-{next(self._numbers)}"
        await self._be_refused(query, 0, self._options)

    async def _go_on_from_a_copy(self, batch):
        """Write the last batch with other rows, from a copy of the checkpoint; it
        must be refused."""
        self.world.note(f"{self.run.name}: another driver has a copy of the checkpoint")
        elsewhere = self._options | {"checkpointLocation": "elsewhere"}
        await self._be_refused(f"id-of-{self.name}", batch, elsewhere)

    async def _be_refused(self, query, batch, options):
        """Write a row as part of a batch, as another driver."""
        run, rows = self.run, [self._some(1)]
        source = pickle.dumps(RocketPollDataSource(options))
        properties = {_QUERY_ID: query, _BATCH_ID: str(batch), _RUN_ID: "another driver's"}
        try:
            writer = await run.answer(
                run.worker("plan"), lambda: pickle.dumps(self._writer(source))
            )
            tasks = TaskSet(run, partial(self._send, writer, properties), self._fate)
            sent = await run.tasks(tasks, rows)
            if self._is_disturbed:  # counted rows may be lost, so the check is impossible
                return
            await self._tell(source, writer, "commit", sent, batch)
        except QueryFailed as failed:
            if not isinstance(failed.__cause__, (RocketPollError, Crashed)):
                raise
            return
        if not self._is_disturbed:
            self.world.ledger.complain(f"nobody notices batch {batch} of {query} by another driver")
        self.model.tells(query, rows)

    @property
    def _is_disturbed(self):
        """Return whether a trouble has hit the records of committed batches."""
        ledger, topics = self.world.ledger, (self.topic, commits_topic_name(self.topic))
        return any(
            ledger.may_be_gone((topic, broker.name, 0))
            for topic in topics
            for broker in ledger.brokers
        )

    def _some(self, rows):
        return [self.model.row(next(self._numbers)) for _ in range(rows)]

    def _shuffled(self, partitions, dice):
        rows = [row for some in partitions for row in some]
        dice.shuffle(rows)
        cuts = sorted(dice.randint(0, len(rows)) for _ in partitions[1:])
        return [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]

    async def _may_die(self, where):
        if self.is_exactly_once and self.dice.random() < self._deaths:
            self.world.note(f"{self.run.name} is killed {where}")
            self.run.kill()
            await self.run.pause(0)

    def _dies_amid(self, run):
        """Kill a driver at a random moment of its commit."""
        if run is self.run and not run.killed.is_kept:
            self.world.note(f"{run.name} is killed amid its commit")
            run.kill()

    async def _write(self, batch, partitions):
        run = self.run
        named = {"writeName": f"{self.name}-{batch}"} if self._is_named else {}
        source = pickle.dumps(RocketPollDataSource(self._options | named))
        plan = run.worker("plan")
        writer = await run.answer(plan, lambda: pickle.dumps(self._writer(source)))
        given = (f"id-of-{self.name}", str(batch), run.name)
        properties = dict(zip(_PROPERTIES, given, strict=True)) if self._is_stream else {}
        tasks = TaskSet(run, partial(self._send, writer, properties), self._fate)
        if self._is_stream and self._troubles.comes("twins"):
            twin = self._twin(f"{run.name} twin of {batch}", source, batch)
            self._twins.append(self.world.tasks.begin(twin, f"{run.name} twin"))
        self._troubles.sends()
        try:
            sent = await run.tasks(tasks, partitions)
        except QueryFailed:
            await self._tell(source, writer, "abort", [None] * len(partitions), batch)
            raise
        self.model.sent(batch, partitions, sent)
        self._reported.append((batch, sent))
        await self._may_die("before it commits")
        self.model.tells(batch, partitions)
        if (self.is_visible_to_all and self.dice.random() < self._deaths) or self._troubles.comes(
            "amid"
        ):
            self.world.kernel.after(
                self.dice.choice(_AMID_SECONDS), partial(self._dies_amid, self.run)
            )
        committed = self._troubles.commits() if any(partitions) else None
        try:
            await self._tell(source, writer, "commit", sent, batch)
        finally:
            if committed is not None:
                committed()
        await self._may_die("behind its commit")
        self.model.committed(batch, partitions, sent)
        if self.is_exactly_once and self.dice.random() < self._zombies:
            old_batch, old = self.dice.choice(self._reported)
            what = "commit"
            if self.is_visible_to_all and self.dice.random() < _GIVES_UP:
                what = "abort"
            self.world.note(f"{self.run.name}: another driver: {what} of batch {old_batch}")
            await self._tell(source, writer, what, old, old_batch)

    async def _twin(self, name, source, batch):
        """Write a batch as another driver with the same checkpoint, at the same time."""
        dice = self._troubles.dice
        run = Run(self.world, name, self.host, dice)
        self.world.note(f"{run.name} begins")
        partitions = self._shuffled(self._rows[batch], dice)
        properties = dict(zip(_PROPERTIES, (f"id-of-{self.name}", str(batch), name), strict=True))
        try:
            await run.pause(dice.choice((0.0, *_AMID_SECONDS)))
            writer = await run.answer(
                run.worker("plan"), lambda: pickle.dumps(self._writer(source))
            )
            tasks = TaskSet(run, partial(self._send, writer, properties), self._fate)
            sent = await run.tasks(tasks, partitions)
            self.model.tells(batch, partitions)
            await self._tell(source, writer, "commit", sent, batch, run)
            self.world.note(f"{run.name} has committed")
        except DriverKilled:
            pass
        except QueryFailed as failed:
            self.world.note(f"{run.name} has failed: {failed.__cause__}")
            self.model.failed(failed.__cause__)
        run.end()

    def _writer(self, source):
        source = pickle.loads(source)  # noqa: S301  # as Spark does
        make = source.streamWriter if self._is_stream else source.writer
        return make(self._schema, overwrite=False)

    def _send(self, writer, properties, worker, number, attempt, rows):
        """Run one attempt at a partition's rows in its worker."""
        self.world.task_context.enter(FakeTaskContext(number, properties, attempt))
        columns = [(*columns_of(self.format, body), *others) for body, *others in rows]
        batches = (
            pa.RecordBatch.from_arrays(
                [
                    pa.array(values, type_)
                    for values, type_ in zip(zip(*some, strict=True), self._types, strict=True)
                ],
                names=[field.name for field in self._schema.fields],
            )
            for some in (columns[at : at + _BATCH_ROWS] for at in range(0, len(rows), _BATCH_ROWS))
        )
        message = pickle.loads(writer).write(batches)  # noqa: S301  # as Spark does
        return pickle.loads(pickle.dumps(message))  # noqa: S301  # as Spark does

    async def _tell(self, source, writer, method, messages, batch, run=None):
        """Let a writer commit or abort; in a stream it is a new one in a process. The process
        belongs to this program's driver, unless another ``run`` is given."""
        run = run or self.run

        def call():
            if self._is_stream:
                getattr(self._writer(source), method)(messages, batch)
            else:
                getattr(pickle.loads(writer), method)(messages)  # noqa: S301  # as Spark does

        await run.answer(run.worker("commit"), call)

    def failed(self, error):
        self.model.failed(error)
