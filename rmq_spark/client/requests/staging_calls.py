"""StagingCalls: requests about staged batches, which rocketpoll's brokers know, a method each.

A broker answers them where its `agreement` has STAGED_BATCHES; any other one refuses them as not
supported. Each may be made again: a chunk replaces the one of the same number, and a batch that is
committed stays what it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from rmq_spark.client.connections.calls import body_of, checked, command_of, header_of
from rmq_spark.wire.bodies.staged_batches import (
    AbortBatchRequestBody,
    CommitBatchRequestBody,
    CommittedBatch,
    StagedAttempt,
)
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.headers.staging import (
    BatchRequestHeader,
    LastBatchRequestHeader,
    StageChunkRequestHeader,
)

if TYPE_CHECKING:
    from rmq_spark.client.connections.connections import Connections

_FOUND_OR_NOT: Final = frozenset({ResponseCode.SUCCESS.value, ResponseCode.QUERY_NOT_FOUND.value})


class StagingCalls:
    """The requests about staged batches, a method each; the broker's address comes first."""

    def __init__(self, connections: Connections, timeout_ms: int) -> None:
        """Make calls over connections; ``timeout_ms`` is how long each may take by default."""
        self._connections = connections
        self._timeout_ms = timeout_ms

    def stage_chunk(
        self,
        address: str,
        header: StageChunkRequestHeader,
        sized_records: Buffer,
        timeout_ms: int | None = None,
    ) -> Future[bool]:
        """Stage encoded records, their sizes in front.

        Returns a future that is True if the batch is committed already, and nothing was staged.
        """
        code = RequestCode.STAGE_CHUNK
        command = command_of(code, header, sized_records)

        def interpret(answer: RemotingCommand) -> bool:
            checked(address, code, answer)
            is_committed: bool = header_of(address, code, answer).is_committed
            return is_committed

        return self._connections.request_async(address, command, self._time(timeout_ms), interpret)

    def commit_batch(
        self,
        address: str,
        batch: BatchRequestHeader,
        attempts: Sequence[StagedAttempt],
        timeout_ms: int | None = None,
    ) -> CommittedBatch:
        """Make all rows of these attempts visible; return the last batch that is committed then.

        One that was committed before is returned as it was committed then. The broker goes on when
        nobody waits for it any more: who asks again hears what it has come to.
        """
        code, body = RequestCode.COMMIT_BATCH, CommitBatchRequestBody(attempts=tuple(attempts))
        answer = self._ask(address, command_of(code, batch, body), timeout_ms)
        return body_of(address, CommittedBatch, checked(address, code, answer))

    def abort_batch(
        self,
        address: str,
        batch: BatchRequestHeader,
        attempts: Sequence[str],
        timeout_ms: int | None = None,
    ) -> None:
        """Forget what these attempts have staged, unless the batch is committed."""
        code, body = RequestCode.ABORT_BATCH, AbortBatchRequestBody(attempts=tuple(attempts))
        checked(address, code, self._ask(address, command_of(code, batch, body), timeout_ms))

    def last_batch(self, address: str, sink: str) -> CommittedBatch | None:
        """Return the last batch that a sink has committed, or None."""
        code = RequestCode.LAST_BATCH
        answer = self._ask(address, command_of(code, LastBatchRequestHeader(sink)), None)
        checked(address, code, answer, _FOUND_OR_NOT)
        if answer.code != ResponseCode.SUCCESS:
            return None
        return body_of(address, CommittedBatch, answer)

    def _ask(
        self, address: str, command: RemotingCommand, timeout_ms: int | None
    ) -> RemotingCommand:
        return self._connections.request(address, command, self._time(timeout_ms))

    def _time(self, timeout_ms: int | None) -> int:
        return self._timeout_ms if timeout_ms is None else timeout_ms
