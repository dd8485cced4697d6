"""Batches that a broker of a simulated world cannot commit, while others send to the same queues.

All rows are staged; the disk fails to read the last chunk when the broker copies it to the log. So
the batch is rolled back after some of its rows are in the log, followed by messages of others:
queues have gaps, but no message is lost. If the broker dies meanwhile, its next start decides. No
row of these batches may ever be visible: the ledger does not know them.
"""

import zlib
from itertools import count

from world.acts.staging import staging_request
from world.client import Connection

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.staged_batches import CommitBatchRequestBody, StagedAttempt
from rmq_spark.wire.chunk import encode_chunk
from rmq_spark.wire.chunk.sized_chunk import encode_sizes
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.extensions import Extension, ExtensionsHeader
from rmq_spark.wire.headers.members import BatchRequestHeader, StageChunkRequestHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.command import RemotingCommand

SINK = "never-commits"
_OWNER, _ATTEMPT = "nobody", "a"
_CONNECT_SECONDS = 2.0
_ANSWER_SECONDS = 10.0
_ALL = 1_000_000


class RolledBack:
    """The sink of such batches; each has the next batch number."""

    def __init__(self, world, others):
        """``others`` is the producer that sends meanwhile."""
        self._world = world
        self._others = others
        self._numbers = count()
        self.gaps = 0
        """Total number of offsets without messages directly after batches."""

    async def fail(self, broker, topic, rows, seconds):
        """Stage rows for each queue of a topic and commit them, while others send. The failing read
        takes this number of ``seconds``."""
        config = broker.topic(topic)
        connection = Connection(self._world, SINK)
        self._world.network.connect(connection, (broker.host, broker.port))
        is_open = self._world.tasks.within(_CONNECT_SECONDS, connection.is_open, otherwise=False)
        if config is None or not await is_open:
            connection.give_up()
            return
        queues = range(config.write_queue_nums)
        committing = await self._staged(connection, topic, [*queues, 0], rows)
        if committing is not None:
            batch, number, request = committing
            broker.refuse_read(f"{SINK}/{batch}-{number}-{_ATTEMPT}", seconds)
            answer = connection.ask(request, _ANSWER_SECONDS)
            for queue_id in (*queues, *queues):
                await self._others.send_to(broker, topic, queue_id, "single", 200)
            answer = await answer
            self._world.note(f"{SINK}: {answer and (answer.code, answer.remark)}")
            self.gaps += sum(
                len(
                    broker.life.controller.store.staged_batches.rolled_back_offsets(
                        topic, queue_id, 0, _ALL
                    )
                )
                for queue_id in (queues if answer is not None and broker.is_serving else ())
            )
            if answer is not None and not answer.code:
                self._world.complain(f"{broker.name} has committed what it could not read")
        connection.give_up()

    async def _staged(self, connection, topic, queues, rows):
        """Stage a batch; return its number, that of its last chunk, and the request that commits
        it.

        Return None if the broker does not accept it.
        """
        fields = HEADERS[RequestCode.EXTENSIONS].request.encode(
            ExtensionsHeader.of(frozenset(Extension))
        )
        answer = await connection.ask(RemotingCommand(RequestCode.EXTENSIONS, ext_fields=fields))
        if answer is None or answer.code:
            return None
        agreement = HEADERS[RequestCode.EXTENSIONS].response.decode(answer.ext_fields)
        batch, crc = next(self._numbers), 0
        for number, queue_id in enumerate(queues):
            body = self._encoded(agreement, topic, queue_id, rows)
            crc = zlib.crc32(body, crc)
            header = StageChunkRequestHeader(SINK, batch, _OWNER, _ATTEMPT, number, topic, queue_id)
            request = staging_request(RequestCode.STAGE_CHUNK, header, body)
            answer = await connection.ask(request, _ANSWER_SECONDS)
            if answer is None or answer.code:
                return None
        staged = StagedAttempt(
            attempt=_ATTEMPT, chunks=len(queues), rows=rows * len(queues), crc=crc
        )
        request = staging_request(
            RequestCode.COMMIT_BATCH,
            BatchRequestHeader(SINK, batch, _OWNER),
            encode_body(CommitBatchRequestBody(attempts=(staged,))),
        )
        return batch, len(queues) - 1, request

    def _encoded(self, agreement, topic, queue_id, rows):
        encoded = encode_chunk(
            {
                "topic": topic,
                "queueId": queue_id,
                "body": [f"never seen {number}".encode() for number in range(rows)],
                "bornHost": agreement.born_host,
                "storeHost": agreement.store_host,
            }
        )
        return encode_sizes(encoded.sizes) + bytes(encoded.data)
