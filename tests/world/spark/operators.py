"""Operators of a simulated world: they delete and recreate topics and change their queues.

An operator repeats a change when a broker is up again.
"""

from world.client import Connection, topic_fields

from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.remoting.command import RemotingCommand

_CONNECT_SECONDS = 2.0
_ANSWER_SECONDS = 10.0
_AGAIN_SECONDS = 0.3


class Operator:
    """Changes topics at all brokers."""

    def __init__(self, world):
        self._world = world

    async def delete(self, topic):
        """Delete a topic at all brokers."""
        for broker in self._world.brokers:
            self._world.ledger.takes_away(broker=broker.name, topic=topic)
            await self._tell(broker, RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
            self._world.ledger.takes_away(broker=broker.name, topic=topic)

    async def create(self, topic, read_queues, write_queues):
        """Create or change a topic at all brokers."""
        for broker in self._world.brokers:
            before = self._queues_of(broker, topic)  # None also if the broker is down
            may_shrink = before is None or read_queues < before
            if may_shrink:
                self._world.ledger.takes_away(broker=broker.name, topic=topic)
            fields = topic_fields(topic, read_queues, write_queues)
            await self._tell(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)
            if may_shrink:
                self._world.ledger.takes_away(broker=broker.name, topic=topic)

    async def make_missing(self, broker, topics):
        """Create the topics again that a broker lacks after its return.

        An exactly-once sink requires that: its commits topic may be one of them.
        """
        for config in topics:
            if broker.topic(config.topic_name) is None:
                queues = config.read_queue_nums, config.write_queue_nums
                fields = {**topic_fields(config.topic_name, *queues), "perm": int(config.perm)}
                await self._tell(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)

    def _queues_of(self, broker, topic):
        config = broker.topic(topic)
        return None if config is None else config.read_queue_nums

    async def _tell(self, broker, code, **fields):
        request = RemotingCommand(
            code, ext_fields={name: str(value) for name, value in fields.items()}
        )
        world = self._world
        while True:
            connection = Connection(world, "operator")
            world.network.connect(connection, (broker.host, broker.port))
            if await world.tasks.within(_CONNECT_SECONDS, connection.is_open, otherwise=False):
                answer = await connection.ask(request, _ANSWER_SECONDS)
                connection.give_up()
                if answer is not None and answer.code == ResponseCode.SUCCESS:
                    return
                world.note(
                    f"operator: {broker.name} answered {code} with {answer and answer.remark}"
                )
            else:
                connection.give_up()
            await world.tasks.sleep(_AGAIN_SECONDS)
