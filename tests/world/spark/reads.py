"""Batch reads in a simulated world: planned once, run by tasks, with the same rows for
all actions."""

import pickle

from support.spark.source_queries import schema_of
from world.spark.runs import Application
from world.spark.tasks import Fate, TaskSet, reading
from world.spark.ways import with_new_names

from rmq_spark.spark.data_source import RocketPollDataSource
from rmq_spark.spark.errors import RecordFault


class Reads(Application):
    """A program of repeated batch reads."""

    def __init__(self, world, plan, host):
        super().__init__(world, plan, host)
        arguments, *self._left = [step.arguments for step in plan.steps]
        self.topics = arguments["topics"]
        self.options = dict(arguments["options"])
        self._then = arguments.get("on_bad_record_then", "skip")
        self.model = world.ledger.reads(self)
        self._fate = Fate(arguments["speculation"], arguments["kills"])

    async def execute(self):
        while self._left:
            await self.run.pause(self._left.pop(0)["after"])
            await self._read()
        self.is_wanted = False

    async def _read(self):
        run = self.run
        source = pickle.dumps(RocketPollDataSource(self.options))
        self.model.began()

        def planned():
            loaded = pickle.loads(source)  # noqa: S301  # as Spark does
            reader = loaded.reader(schema_of(loaded.schema()))
            return pickle.dumps(reader), [pickle.dumps(each) for each in reader.partitions()]

        read, partitions = await run.answer(run.worker("plan"), planned)
        tasks = TaskSet(run, reading(run, read, self.model.seen), self._fate)
        first = await run.tasks(tasks, partitions)
        self.model.ran(first)
        self.model.ran_again(await run.tasks(tasks, partitions), first)

    def renamed(self, names):
        self.options = with_new_names(self.options, names)

    def failed(self, error):
        self.model.failed(error)
        if isinstance(error, RecordFault):
            if not self.model.may_meet(error):
                self.model.complain(f"it cannot read what nobody has damaged: {error}")
            self.options["onBadRecord"] = self._then
            self.model.goes_on_with(self.options)
