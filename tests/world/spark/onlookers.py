"""Onlookers of a simulated world: consumers without isolation that read a sink's topic.

With visibleTo=all, an onlooker that has seen a row of a batch finds all of them when it reads
again.
"""

from collections import defaultdict

from support.clients.remoting_clients import pull_request
from world.client import Connection
from world.spark.bodies import known_by

from rmq_spark.client.message import to_message
from rmq_spark.wire.message.record import decode_records

_PAUSE_SECONDS = (0.0, 0.0, 0.001, 0.1)
_AWAY_SECONDS = 0.2
_OPEN_SECONDS = 2.0


class Onlooker:
    """A consumer that reads all queues of a topic of one broker, repeatedly until all is calm."""

    def __init__(self, world, plan, topic):
        self._world = world
        self._name = plan.name
        self._dice = world.dice_for(plan.name)
        self._topic = topic
        self._next = defaultdict(int)
        self._places = defaultdict(set)  # by body
        self.looks = 0
        """Number of reads after which batches were checked."""

    @property
    def _sinks(self):
        return [sink for sink in self._world.ledger.sinks if sink.is_visible_to_all]

    async def look(self):
        """Read until all is calm."""
        world = self._world
        (broker,) = world.brokers
        while world.calm_since is None:
            connection = Connection(world, self._name)
            world.network.connect(connection, (broker.host, broker.port))
            if await world.tasks.within(_OPEN_SECONDS, connection.is_open, otherwise=False):
                before = set(self._places)
                while await self._has_all(connection, broker):
                    self._check(broker, before)
                    before = set(self._places)
                    await world.tasks.sleep(self._dice.choice(_PAUSE_SECONDS))
                    if world.calm_since is not None:
                        break
            connection.give_up()
            await world.tasks.sleep(_AWAY_SECONDS)

    async def _has_all(self, connection, broker):
        """Read the messages since the last time; return whether the broker returned everything."""
        config = broker.topic(self._topic)
        for queue_id in range(config.read_queue_nums if config is not None else 0):
            at = None
            while at != self._next[queue_id]:
                at = self._next[queue_id]
                request = pull_request(at, self._topic, queue_id, group=self._name)
                answer = await connection.ask(request)
                if answer is None or "nextBeginOffset" not in answer.ext_fields:
                    return False
                self._next[queue_id] = int(answer.ext_fields["nextBeginOffset"])
                for stored in decode_records(answer.body):
                    self._see(queue_id, to_message(stored, broker.name))
        return config is not None

    def _see(self, queue_id, message):
        for sink in self._sinks:
            body = known_by(sink.format, message.body)
            if body is not None:
                self._places[body].add((queue_id, message.queue_offset))

    def _check(self, broker, before):
        """Check that each seen batch is complete, with each row once."""
        ledger = self._world.ledger
        if ledger.may_be_gone((self._topic, broker.name, 0)):
            return
        self.looks += 1
        for number, bodies in (batch for sink in self._sinks for batch in sink.told.items()):
            if bodies & before and not bodies <= self._places.keys():
                ledger.complain(
                    f"{self._name} sees {bodies & self._places.keys()} of batch {number}, "
                    f"and not {bodies - self._places.keys()}"
                )
            seen = {body: self._places.get(body, ()) for body in bodies}
            twice = {body: places for body, places in seen.items() if len(places) > 1}
            if twice:
                ledger.complain(f"{self._name} sees rows of batch {number} twice: {twice}")
