"""Lives of Spark's driver in a simulated world, with the workers that die with it."""

from world.spark.workers import Worker
from world.tasks import Promise

AGAIN_SECONDS = 1.0
"""Seconds until a user restarts a program that has ended."""


class DriverKilled(Exception):
    """Raised when the driver was killed, with all its workers."""


class QueryFailed(Exception):
    """Raised when a query has failed; the cause is its error."""


class Run:
    """One life of a driver, from start to end."""

    def __init__(self, world, name, host, dice):
        self.world = world
        self.name = name
        self.dice = dice
        self.killed = Promise()
        self.idle = []
        """Workers that have finished a task, and may be reused."""
        self._host = host
        self._workers = []
        self._has_ended = False

    def kill(self):
        """Kill it like `kill -9`, with its workers."""
        self.killed.keep()
        self.end()

    def end(self):
        """Release all workers."""
        self._has_ended = True
        for worker in self._workers:
            worker.kill()

    def worker(self, kind):
        """Return a new process; a dead one for a task that is retried after the end."""
        worker = Worker(self.world, f"{self.name} {kind} {len(self._workers)}", self._host)
        self._workers.append(worker)
        if self._has_ended:
            worker.kill()
        return worker

    async def until(self, promise):
        """Return the value of a promise; raise if the driver dies before."""
        either = Promise()
        promise.then(either.keep)
        self.killed.then(either.keep)
        await either
        if self.killed.is_kept:
            raise DriverKilled
        return promise.value

    async def answer(self, worker, work):
        """Return a worker's response; its error ends the query."""
        answer = await self.until(worker.ask(work))
        if answer.error is not None:
            raise QueryFailed from answer.error
        return answer.value

    async def tasks(self, task_set, partitions):
        """Return the results of all tasks; the first error ends the query."""
        values, error = await self.until(task_set.begin(partitions))
        if error is not None:
            raise QueryFailed from error
        return values

    async def pause(self, seconds):
        """Let time pass, in which others act."""
        await self.until(self.world.tasks.sleep(seconds))


class Application:
    """A user's program, which is restarted whenever it has ended."""

    def __init__(self, world, plan, host):
        self.world = world
        self.name = plan.name
        self.host = host
        self.dice = world.dice_for(plan.name)
        self.is_wanted = True
        self.run = None
        self.down_seconds = AGAIN_SECONDS
        self._runs = 0

    async def live(self):
        """Run the program repeatedly while it is wanted."""
        while self.is_wanted:
            while not self.world.gate.is_kept:  # it may have been closed again immediately
                await self.world.gate
            self._runs += 1
            self.run = Run(self.world, f"{self.name} {self._runs}", self.host, self.dice)
            self.world.note(f"{self.run.name} begins")
            try:
                await self.execute()
                self.world.note(f"{self.run.name} has come to its end")
            except DriverKilled:
                self.world.note(f"{self.run.name} was killed")
            except QueryFailed as failed:
                error = failed.__cause__
                self.world.note(f"{self.run.name} has failed: {type(error).__name__}: {error}")
                self.failed(error)
            self.run.end()
            await self.world.tasks.sleep(self.down_seconds)
            self.down_seconds = AGAIN_SECONDS

    async def execute(self):
        """Run the program once."""
        raise NotImplementedError

    def failed(self, error):
        """Record the error that ended a run."""

    def models_of(self, process_name):
        """Return the models to which one of its processes may report."""
        return [self.model]

    def renamed(self, names):
        """Set the brokers' new names; programs without such options do nothing."""

    def stop(self):
        """End the program in any state."""
        self.is_wanted = False
        if self.run is not None:
            self.run.kill()
