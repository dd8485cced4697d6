"""Producers of a simulated world: they send the messages of the queries, once each, over the wire.

Tags that share a hash, keys, properties, batches, messages without a flush: each message has a
unique body. If a send got no response, only an audit shows its result.
"""

from __future__ import annotations

from typing import NamedTuple

from support.clients.remoting_clients import send_request
from world.client import Connection
from world.spark.bodies import bad_body_of, body_of, is_bad, read

from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.message.message_batch import BatchedMessage, encode_batch
from rmq_spark.wire.message.properties import encode_properties

TAGS = (None, "Aa", "BB", "C")
"""Aa and BB have the same hash."""

COLOURS = ("red", "blue")
_BATCH = 5
_CONNECT_SECONDS = 2.0
_ANSWER_SECONDS = 3.0


class Sent(NamedTuple):
    """A message as its producer made it."""

    number: int
    topic: str
    body: bytes
    tags: str | None
    keys: str
    properties: dict
    sent_at: float
    format: str | None
    fields: dict | None
    """The fields of its body, if it is valid in its format."""

    def fields_as(self, kind):
        """Return the fields of its body in this format; None if it is invalid."""
        if kind == self.format or kind != "text":
            return self.fields if kind == self.format else None
        return read(kind, self.body)

    @property
    def wire(self):
        """Return its properties in wire format."""
        return {
            "KEYS": self.keys,
            **self.properties,
            **({} if self.tags is None else {"TAGS": self.tags}),
        }

    def __str__(self):
        return f"message {self.number} to {self.topic}"


class Producer:
    """A producer that runs the steps of its plan."""

    def __init__(self, world, plan):
        self.world = world
        self.name = plan.name
        self.dice = world.dice_for(f"producer {plan.name}")
        self._plan = plan
        self._connections = {}

    async def play(self):
        """Run all steps, one after the other."""
        for step in self._plan.steps:
            self.world.note(f"{self.name}: {step}")
            await getattr(self, f"_{step.kind}")(**step.arguments)
        for connection in self._connections.values():
            connection.leave()

    async def _wait(self, seconds):
        await self.world.tasks.sleep(seconds)

    async def _send(self, topic, how, count, gap, size, format=None):  # noqa: A002  # named like the option
        for _ in range(count):
            broker = self.dice.choice(self.world.brokers)
            config = broker.topic(topic)
            if config is not None:
                queue_id = self.dice.randrange(config.write_queue_nums)
                await self.send_to(broker, topic, queue_id, how, size, format)
            await self.world.tasks.sleep(gap)

    async def send_to(self, broker, topic, queue_id, how, size, format=None):  # noqa: A002  # named like the option
        """Send a message or a batch to one queue."""
        connection = await self._connected(broker)
        if connection is None:
            return
        sents = [
            self._find_message(topic, size, format) for _ in range(_BATCH if how == "batch" else 1)
        ]
        if how == "batch":
            body = encode_batch(
                BatchedMessage(sent.body, encode_properties(sent.wire)) for sent in sents
            )
            code = RequestCode.SEND_BATCH_MESSAGE
            request = send_request(body, topic, queue_id, code=code, batch=True)
        else:
            more = {"WAIT": "false"} if how == "no wait" else {}
            request = send_request(sents[0].body, topic, queue_id, properties=sents[0].wire | more)
        answer = await connection.ask(request, _ANSWER_SECONDS)
        if answer is None:
            connection.give_up()
        elif answer.code == ResponseCode.SUCCESS:
            first = int(answer.ext_fields["queueOffset"])
            for offset, sent in enumerate(sents, first):
                self.world.ledger.is_acknowledged(sent, (topic, broker.name, queue_id, offset))
        else:
            self.world.note(f"{self.name} was refused: {answer.code} {answer.remark}")

    def _find_message(self, topic, size, format):  # noqa: A002  # named like the option
        ledger = self.world.ledger
        number = len(ledger.sent)
        body, fields = f"m{number} ".encode().ljust(size, b"."), None
        if format is not None and is_bad(self.dice):
            body = bad_body_of(self.dice, format, number, size)
        elif format is not None:
            body = body_of(format, number, size)
            fields = read(format, body)
        tags, colour = self.dice.choice(TAGS), self.dice.choice(COLOURS)
        sent = Sent(
            number,
            topic,
            body,
            tags,
            f"k{number}",
            {"colour": colour},
            self.world.kernel.now,
            format,
            fields,
        )
        ledger.sends(sent)
        return sent

    async def _connected(self, broker):
        """Return a connection to a broker; None if it cannot be reached."""
        connection = self._connections.get(broker.name)
        if connection is not None and not connection.is_over:
            return connection
        connection = Connection(self.world, self.name)
        self.world.network.connect(connection, (broker.host, broker.port))
        if not await self.world.tasks.within(_CONNECT_SECONDS, connection.is_open, otherwise=False):
            connection.give_up()
            return None
        self._connections[broker.name] = connection
        return connection
