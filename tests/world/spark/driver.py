"""Spark's driver in a simulated world: a streaming query, run as MicroBatchExecution runs it.

    plan       for each source: planner's worker, reader, default limit; prepare for AvailableNow;
               read function pickled once
    construct  latestOffset, reportLatestOffset of each ──> offset log ──> commit of the batch
               before
    run        initialOffset if nothing is committed ──> partitions of those with something new
               ──> tasks ──> rows ──> commit log

Logs are JSON text on a checkpoint that outlives the driver. A batch in the offset log and not in
the commit log runs again with the same offsets. The driver may be killed at any wait, and all its
workers with it; a query that ends with an error is started again, as its user would.
"""

import json
import pickle
from functools import partial

from pyspark.sql.datasource_internal import ReadLimitRegistry
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from support.spark.source_queries import schema_of
from world.spark.runs import Application
from world.spark.tasks import Fate, TaskSet, reading
from world.spark.ways import with_new_names

from rmq_spark.spark.data_source import RocketPollDataSource
from rmq_spark.spark.errors import DataLoss, RecordFault

_POLL_SECONDS = 0.01
_SLOW_SECONDS = 0.1
"""Seconds by which a driver that pauses during a trouble resumes after it."""

_LIMITS = ReadLimitRegistry()


class Checkpoint:
    """A query's checkpoint: two logs of text, the first with a line for each source."""

    def __init__(self):
        self.offsets = {}
        self.commits = {}


class Source:
    """One source of a query: its options, its planner, and its model."""

    def __init__(self, query, name, topics, options):
        self.name = name
        self.topics = topics
        self.options = options
        self.planner = None
        self.limit = None
        self.read = None
        self._query = query
        self.model = query.world.ledger.stream(self)

    @property
    def run(self):
        """Return the current life of the driver."""
        return self._query.run

    def goes_on_with(self, options):
        """Set the user's new options; None removes one."""
        given = self.options | options
        self.options = {name: value for name, value in given.items() if value is not None}
        self.model.goes_on_with(self.options)

    async def begin(self, given):
        """Create a reader in a new planner, and the read function of tasks."""
        run = self.run
        source = pickle.dumps(RocketPollDataSource(given))
        self.model.began()
        await run.answer(run.worker("load"), lambda: pickle.loads(source).schema())  # noqa: S301  # as Spark does
        self.planner = planner = run.worker(self._query.planner_of(self))
        await run.answer(planner, partial(_make_reader, planner, source))
        if self._query.is_available_now:
            await self.ask("prepareForTriggerAvailableNow")
        self.limit = json.loads(await run.answer(planner, partial(_default_limit, planner)))
        self.read = await run.answer(run.worker("plan"), partial(_pickled_reader, source))

    async def next_end(self, committed):
        """Return the end offset of the available messages, as JSON."""
        start = committed if committed is not None else await self.ask("initialOffset")
        if committed is None:
            self.model.initial_offset(start)
        reader = self.planner.has

        def latest():
            limit_now = _LIMITS.get(self.limit)
            return json.dumps(reader["reader"].latestOffset(json.loads(start), limit_now))

        end = await self.run.answer(self.planner, latest)
        await self.ask("reportLatestOffset")
        self.model.looked()
        return end

    async def partitions(self, committed, end):
        start = committed if committed is not None else await self.ask("initialOffset")
        reader = self.planner.has

        def planned():
            parts = reader["reader"].partitions(json.loads(start), json.loads(end))
            return [pickle.dumps(each) for each in parts]

        return await self.run.answer(self.planner, planned)

    async def ask(self, method, *documents):
        """Call the planner's reader as Spark's runner does: JSON in, JSON out."""
        reader = self.planner.has

        def call():
            found = getattr(reader["reader"], method)(*(json.loads(each) for each in documents))
            return json.dumps(found)

        return await self.run.answer(self.planner, call)


class Stream(Application):
    """A streaming query of a story, over all its lives."""

    def __init__(self, world, plan, host):
        super().__init__(world, plan, host)
        arguments = dict(plan.steps[0].arguments)
        others = arguments.get("united_with", ())
        self.checkpoint = Checkpoint()
        self.is_available_now = arguments["available_now"]
        self.sources = [
            Source(self, plan.name, each["topics"], dict(each["options"]))
            for each in (arguments, *others)
        ]
        self._then = arguments.get("on_bad_record_then", "skip")
        self._options_of_lives = list(arguments.get("options_of_lives", ()))
        self._fate = Fate(arguments["speculation"], arguments["kills"])
        self._trigger_seconds = arguments["trigger_seconds"]
        self._events = [dict(step.arguments) for step in plan.steps[1:]]
        self._is_to_go_on_without = False

    @property
    def models(self):
        """Return the models of all sources."""
        return [source.model for source in self.sources]

    def planner_of(self, source):
        """Return the name of a source's planner."""
        number = self.sources.index(source)
        return f"planner of {number}" if number else "planner"

    def models_of(self, process_name):
        """Return the models to which a process may report: a planner has one source, a task any."""
        return [
            source.model
            for source in self.sources
            if "planner" not in process_name
            or (source.planner is not None and source.planner.name == process_name)
        ]

    def failed(self, error):
        for model in self.models:
            model.failed(error)
        self._is_to_go_on_without = isinstance(error, DataLoss) or any(
            model.begins_at_none(error) for model in self.models
        )
        if isinstance(error, RecordFault):
            if not any(model.may_meet(error) for model in self.models):
                self.models[0].complain(f"it cannot read what nobody has damaged: {error}")
            for source in self.sources:
                source.goes_on_with({"onBadRecord": self._then})

    def renamed(self, names):
        """Set the brokers' new names, as the user does."""
        for source in self.sources:
            named = {"brokerNames": json.dumps(names)}
            source.options = with_new_names(source.options, names) | named

    def kill_a_planner(self):
        """Kill the planner of one of the sources."""
        planners = [source.planner for source in self.sources if source.planner is not None]
        if planners:
            planners[-1].kill()

    async def execute(self):
        run, log = self.run, self.checkpoint
        # After a loss, the user lets the query continue without the lost messages.
        more = {"failOnDataLoss": "false"} if self._is_to_go_on_without else {}
        options = self._options_of_lives.pop(0) if self._options_of_lives else {}
        for source in self.sources:
            source.goes_on_with(options)
            await source.begin(source.options | more)
        batch, is_constructed, committed = self._recovered()
        while True:
            if not is_constructed:
                end = [
                    await source.next_end(start)
                    for source, start in zip(self.sources, committed, strict=True)
                ]
                if end == committed:
                    if self.is_available_now:
                        self._came_to_its_end()
                        return
                    await run.pause(_POLL_SECONDS)
                    continue
                await self._construct(batch, committed, end)
            await self._run_batch(batch, committed, log.offsets[batch])
            await self._point("rows are written")
            log.commits[batch] = "{}"
            for model in self.models:
                model.committed(batch)
            await self._point("the batch is committed")
            committed, is_constructed, batch = log.offsets[batch], False, batch + 1
            await run.pause(self._trigger_seconds)

    def _recovered(self):
        """Return the next batch, whether it is already planned, and the end of the one before."""
        log, nowhere = self.checkpoint, [None] * len(self.sources)
        if not log.offsets:
            return 0, False, nowhere
        latest = max(log.offsets)
        if latest in log.commits:
            return latest + 1, False, log.offsets[latest]
        return latest, True, log.offsets.get(latest - 1, nowhere)

    async def _construct(self, batch, committed, end):
        """Log the end of a batch, and report the previous one to the sources."""
        log = self.checkpoint
        await self._point("planned")
        log.offsets[batch] = end
        for source, start, each in zip(self.sources, committed, end, strict=True):
            source.model.planned(batch, each, is_new=each != start)
        self.world.note(f"{self.run.name}: batch {batch} is to {' and '.join(end)}")
        await self._point("offsets are logged")
        if batch:
            for source, before in zip(self.sources, log.offsets[batch - 1], strict=True):
                await source.ask("commit", before)
            await self._point("told of the batch before")

    def _came_to_its_end(self):
        for model in self.models:
            model.came_to_its_end()

    async def _run_batch(self, batch, committed, end):
        partitions, counts = [], []
        for source, start, to in zip(self.sources, committed, end, strict=True):
            found = await source.partitions(start, to) if start != to else []
            partitions += [(source, each) for each in found]
            counts.append(len(found))
        await self._point("partitions are planned")
        tasks = TaskSet(self.run, _of_sources(self.run), self._fate)
        parts = await self.run.tasks(tasks, partitions)
        for source, count in zip(self.sources, counts, strict=True):
            source.model.ran(batch, parts[:count])
            parts = parts[count:]

    async def _point(self, name):
        """Mark a moment between two steps, in which a trouble may start and the driver be killed or
        slow."""
        seconds = self.dice.choice((0.0, 0.001, 0.02))
        for event in self._events:
            if event["point"] != name or event["passes"] == 0:
                continue
            event["passes"] -= 1
            if event["passes"]:
                continue
            self.world.note(f"{self.run.name}: {name}")
            if event["trouble"] is not None:
                self.world.befall(event["trouble"], event["seconds"], event["arguments"])
            if event["dies"]:
                self.down_seconds = event["seconds"]
                self.run.kill()
            else:
                seconds = event["seconds"] + _SLOW_SECONDS
        await self.run.pause(seconds)


def _of_sources(run):
    """Return the function of a task's attempt, for any source."""

    def work(worker, number, attempt, partition):
        source, part = partition
        return reading(run, source.read, source.model.seen)(worker, number, attempt, part)

    return work


def _make_reader(planner, source):
    source = pickle.loads(source)  # noqa: S301  # as Spark does
    planner.has["reader"] = reader = source.streamReader(schema_of(source.schema()))
    assert isinstance(reader, SupportsTriggerAvailableNow)


def _default_limit(planner):
    limit = planner.has["reader"].getDefaultReadLimit()
    return json.dumps({**vars(limit), "_type": type(limit).__name__})


def _pickled_reader(source):
    source = pickle.loads(source)  # noqa: S301  # as Spark does
    return pickle.dumps(source.streamReader(schema_of(source.schema())))
