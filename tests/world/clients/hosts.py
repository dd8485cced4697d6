"""A machine that runs clients: a process with the steps of a plan, and its successors after kills.

The first step describes the consumer, if the machine has one; each process starts with it. After
all steps, the process keeps consuming until the story ends, and shuts down its clients.
"""

import threading

from world.clients.acts import ACTS
from world.clients.consuming import CONSUME, Consuming
from world.clients.pops import POP, Popping
from world.clients.transactions import TRANSACT, start_transaction_producer
from world.cluster.name_server import ADDRESS
from world.machine import Process
from world.tasks import Promise

from rmq_spark.client.instance.instance import SHUTDOWN_MS, ClientInstance
from rmq_spark.client.producer.producer import Producer

SHUTDOWN_SECONDS = SHUTDOWN_MS / 1000 + 0.1
_LOOK_SECONDS = 1.0
_REST_SECONDS = 35.0
"""Seconds until the last listener has ended, and the last request that is not awaited."""


class Host:
    """One machine, and the plan for its processes."""

    def __init__(self, world, plan, number):
        self.world = world
        self.name = plan.name
        self.address = f"127.0.2.{number + 1}"
        self.dice = world.dice_for(f"host {plan.name}")
        self.steps_are_done = Promise()
        self.down_seconds = 0.1
        self.process = None
        self._plan = plan
        self._steps = iter([step for step in plan.steps if step.kind not in (CONSUME, POP)])
        self._consumes = [step.arguments for step in plan.steps if step.kind == CONSUME]
        self.pops = next((step.arguments for step in plan.steps if step.kind == POP), None)
        self.has_transactions = any(step.kind == TRANSACT for step in plan.steps)
        self.groups = tuple(each["group"] for each in self._consumes)
        self._lives = 0

    async def live(self):
        """Run processes one after the other until one has finished the plan."""
        while True:
            self._lives += 1
            self.process = process = Process(
                self.world.kernel, f"{self.name} {self._lives}", self.address
            )
            has_ended = Promise()
            process.on_death(has_ended.keep)
            life = Life(self, process)
            thread = threading.Thread(
                target=life.run, args=(self._consumes, self._steps), name=process.name
            )
            thread.belongs_to(process)
            thread.start()
            await has_ended
            if life.is_over:
                return
            self.world.note(f"{process.name} was killed")
            await self.world.tasks.sleep(self.down_seconds)


class Life:
    """One process of a host, and its clients; its methods run in its first thread."""

    def __init__(self, host, process):
        self.host = host
        self.world = host.world
        self.process = process
        self.dice = host.dice
        self.consumings = []
        self.popping = None
        self.producer = None
        self.producer_settings = {}
        self.is_over = False

    def run(self, consumes, steps):
        """Run the rest of the plan."""
        world, process = self.world, self.process
        self.consumings = [Consuming(self, **arguments) for arguments in consumes]
        self.begin()
        if self.host.has_transactions:
            self.producer = start_transaction_producer(self)
        if self.host.pops is not None:
            self.popping = Popping(self, **self.host.pops)
            self.popping.begin()
        for step in steps:
            world.note(f"{process.name}: {step}")
            ACTS[step.kind].play(self, **step.arguments)
        self.host.steps_are_done.keep()
        world.curtain.wait()
        if self.popping is not None:
            self.popping.end()
        self.end()
        self._wait_for_threads()
        self.is_over = True
        process.end()

    @property
    def instance(self):
        """Return the client of the first consumer; None if there is none."""
        return self.consumings[0].instance if self.consumings else None

    def begin(self, instance=None):
        """Start all consumers; they share the first one's client."""
        for consuming in self.consumings:
            consuming.begin(instance)
            instance = self.instance

    def end(self):
        """Shut down all clients."""
        producer, self.producer = self.producer, None
        if producer is not None:
            with self.world.watch.within(self.process, "shutdown of a producer", SHUTDOWN_SECONDS):
                producer.shutdown()
        for consuming in self.consumings[:0:-1]:
            if consuming.instance is self.instance:
                consuming.end_first()
            else:
                consuming.end()
        for consuming in self.consumings[:1]:
            consuming.end()

    def _wait_for_threads(self):
        """Check that only the first thread remains soon after all clients were shut down."""
        kernel = self.world.kernel
        until = kernel.now + _REST_SECONDS
        while len(left := kernel.actors_of(self.process)) > 1:
            if kernel.now > until:
                self.world.complain(
                    f"{self.process} has shut down its clients, and has left: {left}"
                )
            kernel.sleep(_LOOK_SECONDS)

    def new_instance(self, **more):
        """Return a new client of this process."""
        return ClientInstance(
            ADDRESS, route_interval_ms=5_000, heartbeat_interval_ms=10_000, **more
        )

    def running_producer(self):
        """Return the producer of this process; create it on first use."""
        if self.producer is None:
            instance = self.instance or self.new_instance()
            self.producer = Producer(
                f"P-{self.host.name}", instance=instance, **self.producer_settings
            )
            self.producer.start()
        return self.producer
