"""A client that runs its steps over all lives of the broker, reconnecting when necessary.

`acts` defines the steps; a step that finds no broker, or gets no response, ends, and the next one
runs.
"""

from world.acts import ACTS
from world.client import ANSWER_SECONDS, Connection

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.extensions import Extension, ExtensionsHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.command import RemotingCommand

_CONNECT_SECONDS = 2.0
_RECONNECT_SECONDS = 0.05


class Player:
    """One client of a story, and the parts of the world that its acts use."""

    def __init__(self, world, plan):
        self.world = world
        self.ledger = world.ledger
        self.dice = world.dice_for(f"client {plan.name}")
        self.name = plan.name
        self._plan = plan
        self._connection = None
        self._agreement = None

    async def play(self):
        """Run all steps, one after the other."""
        for step in self._plan.steps:
            self.world.note(f"{self.name}: {step}")
            await ACTS[step.kind].play(self, **step.arguments)
        self.leave()

    def leave(self):
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.leave()

    async def connected(self):
        """Return a connection to the current broker."""
        while self._connection is None or self._connection.is_over:
            connection = Connection(self.world, self.name)
            self.world.network.connect(connection, self.world.address)
            if await self.world.tasks.within(_CONNECT_SECONDS, connection.is_open, otherwise=False):
                self._connection = connection
                self._agreement = None
            else:
                connection.give_up()
                await self.world.tasks.sleep(_RECONNECT_SECONDS)
        return self._connection

    async def known_agreement(self):
        """Return a connection with negotiated extensions, and these; None if it broke."""
        connection = await self.connected()
        if self._agreement is None:
            codec = HEADERS[RequestCode.EXTENSIONS]
            fields = codec.request.encode(ExtensionsHeader.of(frozenset(Extension)))
            answer = await self.answer(
                connection, RemotingCommand(RequestCode.EXTENSIONS, ext_fields=fields)
            )
            if answer is None:
                return None, None
            self._agreement = codec.response.decode(answer.ext_fields)
        return connection, self._agreement

    async def ask(self, code, *, body=b"", seconds=ANSWER_SECONDS, **ext_fields):
        """Send a request with text fields; return its response, or None."""
        fields = {name: str(value) for name, value in ext_fields.items()}
        connection = await self.connected()
        return await self.answer(
            connection, RemotingCommand(code, ext_fields=fields, body=body), seconds
        )

    async def answer(self, connection, request, seconds=ANSWER_SECONDS):
        """Return the response to a request on a connection; break the connection if
        there is none."""
        return await self.awaited(
            connection, connection.ask(request, seconds), f"request {request.code}"
        )

    async def awaited(self, connection, promise, what):
        """Return the response to an earlier request."""
        asked_at = self.world.kernel.now
        answer = await promise
        if answer is None and not connection.is_over:
            self.world.watch.check_patience(connection, asked_at, f"{what} of {self.name}")
            connection.give_up()
        return answer
