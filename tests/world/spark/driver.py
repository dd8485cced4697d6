"""Spark's driver in a simulated world: a streaming query, run as MicroBatchExecution runs it.

    plan       planner's worker, reader, default limit; prepare for AvailableNow;
               read function pickled once
    construct  latestOffset, reportLatestOffset ──> offset log ──> commit of the batch before
    run        initialOffset if nothing is committed ──> partitions ──> tasks ──> rows
               ──> commit log

Logs are text of JSON on a checkpoint that outlives the driver. What is in the offset log and not in
the commit log is run again, with the very same offsets. Whatever it waits for, the driver may be
killed meanwhile, and all its workers with it; a query that ends with an error is started again, as
its user would.
"""

from __future__ import annotations

import json
import pickle
from functools import partial

from pyspark.sql.datasource_internal import ReadLimitRegistry
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from source_parts import schema_of
from world.spark.runs import Application
from world.spark.tasks import Fate, TaskSet, reading

from rmq_spark.spark.errors import DataLoss
from rmq_spark.spark.source import RocketPollDataSource

_POLL_SECONDS = 0.01
_SLOW_SECONDS = 0.1
"""A driver that pauses while something lasts goes on so long behind it."""

_LIMITS = ReadLimitRegistry()


class Checkpoint:
    """What a query leaves behind: two logs of text."""

    def __init__(self):
        self.offsets = {}
        self.commits = {}


class Stream(Application):
    """A streaming query of a story, over all its lives."""

    def __init__(self, world, plan, host):
        super().__init__(world, plan, host)
        arguments = dict(plan.steps[0].arguments)
        self.topics = arguments["topics"]
        self.options = arguments["options"]
        self.checkpoint = Checkpoint()
        self.planner = None
        self.model = world.ledger.stream(self)
        self._is_available_now = arguments["available_now"]
        self._fate = Fate(arguments["speculation"], arguments["kills"])
        self._trigger_seconds = arguments["trigger_seconds"]
        self._events = [dict(step.arguments) for step in plan.steps[1:]]
        self._is_to_go_on_without = False

    def failed(self, error):
        self.model.failed(error)
        self._is_to_go_on_without = isinstance(error, DataLoss)

    def _given(self):
        """The options of the next run: behind a loss, its user has it go on
        without what is gone."""
        return self.options | ({"failOnDataLoss": "false"} if self._is_to_go_on_without else {})

    async def execute(self):
        run, log = self.run, self.checkpoint
        source = pickle.dumps(RocketPollDataSource(self._given()))
        self.model.began()
        await run.answer(run.worker("load"), lambda: pickle.loads(source).schema())  # noqa: S301  # what Spark does
        self.planner = planner = run.worker("planner")
        await run.answer(planner, partial(_make_reader, planner, source))
        if self._is_available_now:
            await self._ask("prepareForTriggerAvailableNow")
        limit = await run.answer(planner, partial(_default_limit, planner))
        read = await run.answer(run.worker("plan"), partial(_pickled_reader, source))
        batch, is_constructed, committed = self._recovered()
        while True:
            if not is_constructed:
                end = await self._next_end(committed, limit)
                if end == committed:
                    if self._is_available_now:
                        self.model.came_to_its_end()
                        return
                    await run.pause(_POLL_SECONDS)
                    continue
                await self._point("planned")
                log.offsets[batch] = end
                self.model.planned(batch, end)
                self.world.note(f"{run.name}: batch {batch} is to {end}")
                await self._point("offsets are logged")
                if batch:
                    await self._ask("commit", log.offsets[batch - 1])
                    await self._point("told of the batch before")
            await self._run_batch(batch, committed, log.offsets[batch], read)
            await self._point("rows are written")
            log.commits[batch] = "{}"
            self.model.committed(batch)
            await self._point("the batch is committed")
            committed, is_constructed, batch = log.offsets[batch], False, batch + 1
            await run.pause(self._trigger_seconds)

    def _recovered(self):
        """Which batch is next, whether it is planned already,
        and where the one before it has ended."""
        log = self.checkpoint
        if not log.offsets:
            return 0, False, None
        latest = max(log.offsets)
        if latest in log.commits:
            return latest + 1, False, log.offsets[latest]
        return latest, True, log.offsets.get(latest - 1)

    async def _next_end(self, committed, limit):
        start = committed if committed is not None else await self._ask("initialOffset")
        if committed is None:
            self.model.initial(start)
        reader = self.planner.has

        def latest():
            limit_now = _LIMITS.get(json.loads(limit))
            return json.dumps(reader["reader"].latestOffset(json.loads(start), limit_now))

        end = await self.run.answer(self.planner, latest)
        await self._ask("reportLatestOffset")
        self.model.looked()
        return end

    async def _run_batch(self, batch, committed, end, read):
        start = committed if committed is not None else await self._ask("initialOffset")
        reader = self.planner.has

        def planned():
            parts = reader["reader"].partitions(json.loads(start), json.loads(end))
            return [pickle.dumps(each) for each in parts]

        partitions = await self.run.answer(self.planner, planned)
        await self._point("partitions are planned")
        tasks = TaskSet(self.run, reading(self.run, read, self.model.seen), self._fate)
        self.model.ran(batch, await self.run.tasks(tasks, partitions))

    async def _ask(self, method, *documents):
        """Call the planner's reader, as the runner does: JSON in, JSON out."""
        reader = self.planner.has

        def call():
            found = getattr(reader["reader"], method)(*(json.loads(each) for each in documents))
            return json.dumps(found)

        return await self.run.answer(self.planner, call)

    async def _point(self, name):
        """A moment between two steps: something may befall then,
        and the driver be killed or be slow."""
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


def _make_reader(planner, source):
    source = pickle.loads(source)  # noqa: S301  # what Spark does
    planner.has["reader"] = reader = source.streamReader(schema_of(source.schema()))
    assert isinstance(reader, SupportsTriggerAvailableNow)


def _default_limit(planner):
    limit = planner.has["reader"].getDefaultReadLimit()
    return json.dumps({**vars(limit), "_type": type(limit).__name__})


def _pickled_reader(source):
    source = pickle.loads(source)  # noqa: S301  # what Spark does
    return pickle.dumps(source.streamReader(schema_of(source.schema())))
