"""StagedBatchesProcessor: stages the rows of a batch, and commits or aborts it; an extension.

A commit continues if its client disconnects; a client that requests it again gets the result.

With authentication, a sink belongs to one user: first to the user who first stages rows, and after
a commit to the user in the table of committed batches. Other users are refused, except super users.
A commit checks again that its user may send to the topics.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final

from rmq_spark.wire.bodies.staged_batches import (
    AbortBatchRequestBody,
    CommitBatchRequestBody,
    CommittedBatch,
    SinksBody,
    SinkState,
)
from rmq_spark.wire.codes import RequestCode, ResponseCode, TopicPermission
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers.members import (
    BatchRequestHeader,
    ForgetSinkRequestHeader,
    LastBatchRequestHeader,
    StageChunkRequestHeader,
    StageChunkResponseHeader,
)
from rmq_spark.wire.message_queue import QueueKey
from rmq_spark.wire.remoting.command import RemotingCommand

from ...auth.rights import Action, ResourceType
from ...common.channel import BackgroundSteps, Channel, ResponseSteps
from ...store.bulk import bulk_tools
from ...store.errors import BatchRefused
from ...store.staging.commit_table import SINKS_MAX
from ...store.staging.staging_area import StagedName, StagingFull
from ..processor import BrokerParts, Processor, handles
from ..request import (
    RequestRejected,
    body_in_steps,
    header_of,
    no_permission,
    refuse_if_busy,
    reply,
    success_response,
)
from ..sends.admission import TopicAdmission
from .extensions import check_same_queue

_RETRY_SECONDS: Final = 1.0


class SinkUsers:
    """The users to whom sinks belong."""

    def __init__(
        self,
        last_of: Callable[[str], CommittedBatch | None],
        has_staged: Callable[[str], bool],
    ) -> None:
        """Store functions that return a sink's last batch, and whether it has staged rows."""
        self._last_of, self._has_staged = last_of, has_staged
        self._staging_users: dict[str, str] = {}
        """The users of sinks that have staged rows and committed nothing."""

    def begin(self, connection: Channel, sink: str) -> None:
        """Record the user who first stages rows for a new sink; refuse a sink of another user."""
        self.check(connection, sink)
        if connection.identity is not None and self._user_of(sink) is None:
            if len(self._staging_users) >= SINKS_MAX:
                self._staging_users = {
                    each: user
                    for each, user in self._staging_users.items()
                    if self._has_staged(each)
                }
            self._staging_users[sink] = connection.identity.name

    def check(self, connection: Channel, sink: str) -> None:
        """Refuse a sink of another user."""
        identity, user = connection.identity, self._user_of(sink)
        if user is None or identity is None or identity.is_super or identity.name == user:
            return
        raise no_permission(
            f"sink {sink} belongs to another user: give the sink of {identity.name} another name, "
            "or ask a super user to run rocketpoll sink forget"
        )

    def user_for(self, connection: Channel, sink: str) -> str | None:
        """Return the user to whom a sink belongs once this client has committed a batch."""
        own = None if connection.identity is None else connection.identity.name
        return self._user_of(sink) or own

    def _user_of(self, sink: str) -> str | None:
        last = self._last_of(sink)
        return self._staging_users.get(sink) if last is None else last.user

    def forget(self, sink: str) -> None:
        """Forget the user of a sink whose state is deleted."""
        self._staging_users.pop(sink, None)


class StagedBatchesProcessor(Processor):
    """The responses to sinks, and to FORGET_SINK and ALL_SINKS of operators."""

    def __init__(
        self,
        broker: BrokerParts,
        admission: TopicAdmission,
        wrap_errors: Callable[[Channel, RemotingCommand, ResponseSteps], ResponseSteps],
    ) -> None:
        """Store the parts; ``wrap_errors`` turns exceptions of steps into responses."""
        super().__init__(broker)
        self._admission = admission
        self._wrap_errors = wrap_errors
        self._batches = broker.store.staged_batches
        self._users = SinkUsers(self._batches.table.last, self._batches.staging_area.has_any)

    @handles(RequestCode.STAGE_CHUNK, extension=Extension.STAGED_BATCHES)
    def stage(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Stage records of one queue, unless their batch is committed already."""
        refuse_if_busy(self._broker.busy_reason())
        header: StageChunkRequestHeader = header_of(request)
        if header.queue_id < 0:
            raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, "staged records need a queueId")
        self._users.begin(connection, header.sink)
        self._admission.admit(
            header.topic, header.queue_id, header.default_topic, header.default_topic_queue_nums
        )
        return self._map_refusals(request, self._stage(request, header))

    @handles(RequestCode.COMMIT_BATCH, extension=Extension.STAGED_BATCHES)
    def commit(self, connection: Channel, request: RemotingCommand) -> None:
        """Commit all rows of a batch or none; the response says where they are."""
        header: BatchRequestHeader = header_of(request)
        self._users.check(connection, header.sink)
        self._run_in_background(connection, request, self._commit(connection, request, header))

    @handles(RequestCode.ABORT_BATCH, extension=Extension.STAGED_BATCHES)
    def abort(self, connection: Channel, request: RemotingCommand) -> None:
        """Discard the given attempts of an uncommitted batch, or all attempts if none is given."""
        header: BatchRequestHeader = header_of(request)
        self._users.check(connection, header.sink)
        self._run_in_background(connection, request, self._abort(request, header))

    @handles(RequestCode.LAST_BATCH, extension=Extension.STAGED_BATCHES)
    def last(self, connection: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer LAST_BATCH with the last batch that a sink has committed."""
        header: LastBatchRequestHeader = header_of(request)
        self._users.check(connection, header.sink)
        last = self._batches.table.last(header.sink)
        if last is None:
            raise RequestRejected(ResponseCode.QUERY_NOT_FOUND, _unknown(header.sink))
        return success_response(request, body=last)

    @handles(RequestCode.FORGET_SINK, extension=Extension.STAGED_BATCHES)
    def forget(self, connection: Channel, request: RemotingCommand) -> None:
        """Delete a sink's state: its last committed batch, and everything it has staged."""
        header: ForgetSinkRequestHeader = header_of(request)
        self._run_in_background(connection, request, self._forget(request, header.sink))

    @handles(RequestCode.ALL_SINKS, extension=Extension.STAGED_BATCHES)
    def sinks(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Return the last batch that each sink has committed."""
        sinks = {sink: _state_of(last) for sink, last in self._batches.table.sinks.items()}
        return success_response(request, body=SinksBody(sinks=sinks))

    def _stage(self, request: RemotingCommand, header: StageChunkRequestHeader) -> ResponseSteps:
        is_committed = self._batches.table.is_committed(header.sink, header.batch_id, header.owner)
        if not is_committed:
            yield from bulk_tools.load_in_steps()
            from rmq_spark.wire.chunk.sized_chunk import decode_sized_chunk  # noqa: PLC0415  # needs the tools for many records

            sizes, records = decode_sized_chunk(request.body)
            check_same_queue(header.topic, header.queue_id, records)
            name = StagedName(header.sink, header.batch_id, header.attempt, header.number)
            yield from self._batches.stage(
                name, request.body, sizes, records, self._broker.run_in_batch_thread
            )
        return success_response(request, StageChunkResponseHeader(is_committed))

    def _commit(
        self, connection: Channel, request: RemotingCommand, header: BatchRequestHeader
    ) -> ResponseSteps:
        body = yield from body_in_steps(request, CommitBatchRequestBody)
        committed = yield from self._batches.commit(
            header.sink,
            header.batch_id,
            header.owner,
            body.attempts,
            partial(self._admit, connection),
            self._broker.run_in_batch_thread,
            self._pause,
            self._users.user_for(connection, header.sink),
        )
        return success_response(request, body=committed)

    def _abort(self, request: RemotingCommand, header: BatchRequestHeader) -> ResponseSteps:
        body = AbortBatchRequestBody()
        if request.body:
            body = yield from body_in_steps(request, AbortBatchRequestBody)
        yield from self._batches.abort(
            header.sink,
            header.batch_id,
            header.owner,
            self._broker.run_in_batch_thread,
            frozenset(body.attempts),
        )
        return success_response(request)

    def _forget(self, request: RemotingCommand, sink: str) -> ResponseSteps:
        was_known = yield from self._batches.forget_sink(sink, self._broker.run_in_batch_thread)
        self._users.forget(sink)
        if not was_known:
            raise RequestRejected(ResponseCode.QUERY_NOT_FOUND, _unknown(sink))
        return success_response(request)

    def _admit(self, connection: Channel, queue: QueueKey) -> None:
        """Refuse a queue that was deleted meanwhile, or that the client may not write to."""
        topic, queue_id = queue
        self._broker.access.require(connection, ResourceType.TOPIC, topic, Action.PUB)
        config = self._admission.config_of(topic)
        if config is None or topic in self._admission.deleting:
            raise BatchRefused(f"topic {topic} was deleted after rows had been staged for it")
        if not config.perm & TopicPermission.WRITE.value:
            raise BatchRefused(f"topic {topic} is no longer writable")
        queues = max(config.read_queue_nums, config.write_queue_nums)
        if queue_id >= queues:
            raise BatchRefused(
                f"topic {topic} has only {queues} queues now, and rows are staged for its "
                f"queue {queue_id}: stage the batch again"
            )

    def _pause(self) -> Future[None]:
        over: Future[None] = Future()
        self._broker.loop.call_later(_RETRY_SECONDS, over.set_result, None)
        return over

    def _run_in_background(
        self, connection: Channel, request: RemotingCommand, steps: ResponseSteps
    ) -> None:
        handled = self._wrap_errors(connection, request, self._map_refusals(request, steps))
        self._broker.run_steps(self._reply_when_done(connection, request, handled))

    def _reply_when_done(
        self, connection: Channel, request: RemotingCommand, steps: ResponseSteps
    ) -> BackgroundSteps:
        response = yield from steps
        if response is not None:
            reply(connection, request, response)

    def _map_refusals(self, request: RemotingCommand, steps: ResponseSteps) -> ResponseSteps:
        """Pass on steps; turn a full staging area or a refused batch into a refused request."""
        try:
            return (yield from steps)
        except StagingFull as full:  # `StagingFull` is logged when it begins
            raise RequestRejected(ResponseCode.SYSTEM_BUSY, str(full)) from full
        except BatchRefused as error:
            raise RequestRejected(
                ResponseCode.MESSAGE_ILLEGAL, f"{error} (request {request.code})"
            ) from error


def _unknown(sink: str) -> str:
    return f"sink {sink} has committed nothing"


def _state_of(last: CommittedBatch) -> SinkState:
    return SinkState(
        batch_id=last.batch_id,
        owner=last.owner,
        rows=last.rows,
        topics=tuple(sorted({span.topic for span in last.spans})),
        committed_ms=last.committed_ms,
        body_bytes=sum(span.body_bytes for span in last.spans),
    )
