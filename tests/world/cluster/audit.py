"""The auditor: reads new messages of every queue of the brokers, over the wire protocol."""

from collections import defaultdict

from support.clients.remoting_clients import pull_request
from world.client import Connection

from rmq_spark.client.message import to_message
from rmq_spark.wire.message.record import decode_records

_AT_ONCE = 32


class Auditor:
    """Calls ``found(queue, message)`` for each stored message."""

    def __init__(self, world, found, *, check_crc=True):
        """``check_crc``: whether all bodies must be intact."""
        self._check_crc = check_crc
        self._world = world
        self._found = found
        self._next = defaultdict(int)

    async def audit(self, brokers, topics):
        """Read the messages added since the last time."""
        for broker in brokers:
            connection = Connection(self._world, f"auditor of {broker.name}")
            self._world.network.connect(connection, (broker.host, broker.port))
            await connection.is_open
            for topic in topics:
                config = broker.topic(topic)
                for queue_id in range(config.read_queue_nums if config is not None else 0):
                    await self._read(connection, broker, topic, queue_id)
            connection.leave()

    async def _read(self, connection, broker, topic, queue_id):
        queue = topic, broker.name, queue_id
        while True:
            request = pull_request(
                self._next[queue], topic, queue_id, group="auditor", count=_AT_ONCE
            )
            answer = await connection.ask(request)
            if answer is None or "nextBeginOffset" not in answer.ext_fields:
                self._world.complain(f"{queue} cannot be read: {answer}")
            for stored in decode_records(answer.body, check_crc=self._check_crc):
                self._found(queue, to_message(stored, broker.name))
            next_offset = int(answer.ext_fields["nextBeginOffset"])
            if next_offset == self._next[queue]:
                return
            self._next[queue] = next_offset
