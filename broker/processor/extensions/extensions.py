"""ExtensionsProcessor: negotiates extensions with clients, and appends ready-encoded records.

A client that has not asked for extensions gets the responses of a RocketMQ broker.
"""

from __future__ import annotations

from functools import partial

from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.extensions import Extension, ExtensionsHeader, is_nonce
from rmq_spark.wire.headers.members import AppendChunkRequestHeader, AppendChunkResponseHeader
from rmq_spark.wire.message.record import decode_record
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.remoting.framing import Buffer

from ...auth.rights import Action
from ...common.channel import Channel, ResponseSteps
from ...store.bulk import bulk_tools
from ...store.results import PutMessageResult, PutMessageStatus
from ..processor import BrokerParts, Processor, handles
from ..request import RequestRejected, header_of, refuse_if_busy, reply, success_response
from ..sends.send_message import CODES, SendParts

SUPPORTED_EXTENSIONS = frozenset(Extension)


class ExtensionsProcessor(Processor):
    """The responses to requests beyond RocketMQ's protocol."""

    def __init__(self, broker: BrokerParts, sends: SendParts) -> None:
        super().__init__(broker)
        self._sends = sends

    @handles(RequestCode.EXTENSIONS)
    def extensions(self, connection: Channel, request: RemotingCommand) -> RemotingCommand:
        """Agree on the extensions that both sides support, and that the client may use.

        READ_FILES needs the right to read every topic, because files of the log have messages of
        all.
        """
        header: ExtensionsHeader = header_of(request)
        agreed = header.extensions & SUPPORTED_EXTENSIONS
        may_read_files = self._broker.access.allows_every_topic(connection, Action.SUB)
        if not (may_read_files and _is_on_this_machine(connection)):
            agreed -= {Extension.READ_FILES}
        connection.extensions = agreed
        found = ExtensionsHeader.of(
            agreed,
            born_host=str(connection.remote_host),
            store_host=str(self._broker.advertised_host(connection)),
        )
        if Extension.READ_FILES in agreed and header.nonce is not None and is_nonce(header.nonce):
            ends = connection.local_host, connection.remote_host
            location = self._broker.store.proof_files.write(connection, header.nonce, *ends)
            if location is not None:
                found = found.with_log_location(location)
        return success_response(request, found)

    def connection_closed(self, connection: Channel) -> None:
        """Delete the proof file of a disconnected client."""
        self._broker.store.proof_files.discard(connection)

    @handles(RequestCode.APPEND_CHUNK, extension=Extension.APPEND_CHUNK)
    def append_chunk(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Append records of one queue, each checked as if sent alone."""
        refuse_if_busy(self._broker.busy_reason())
        header: AppendChunkRequestHeader = header_of(request)
        return self._put(connection, request, header, self._admit(header, header.queue_id))

    def _admit(self, header: AppendChunkRequestHeader, queue_id: int) -> int:
        return self._sends.admission.admit(
            header.topic, queue_id, header.default_topic, header.default_topic_queue_nums
        )

    def _put(
        self,
        connection: Channel,
        request: RemotingCommand,
        header: AppendChunkRequestHeader,
        queue_id: int,
    ) -> ResponseSteps:
        yield from bulk_tools.load_in_steps()
        from rmq_spark.wire.chunk.sized_chunk import decode_sized_chunk  # noqa: PLC0415  # needs the tools for many records

        sizes, records = decode_sized_chunk(request.body)
        check_same_queue(header.topic, queue_id, records)
        admit = partial(self._admit, header, queue_id)
        result = yield from self._broker.store.put_chunk_in_steps(records, sizes, admit)
        body_bytes = len(request.body)
        request = request.without_content()  # the log has the records: release the body

        def on_stored(result: PutMessageResult) -> None:
            if result.status is not PutMessageStatus.PUT_OK:
                reply(connection, request, request.respond(CODES[result.status], result.remark))
                return
            self._broker.stats.record_put(header.topic, result.message_count, body_bytes)
            sent = AppendChunkResponseHeader(
                queue_id, result.queue_offset, result.message_count, result.store_timestamp
            )
            reply(connection, request, success_response(request, sent))

        self._sends.acknowledger.when_stored(result, on_stored)
        return None


def _is_on_this_machine(connection: Channel) -> bool:
    """Return whether a client seems to run here; the client tests whether it can read the files."""
    client = connection.remote_host
    return client.address == connection.local_host.address or client.is_loopback


def check_same_queue(topic: str, queue_id: int, records: Buffer) -> None:
    """Refuse records of another queue than the request names.

    The store checks that all records are of one queue, so only the first is compared.
    """
    first = decode_record(records, check_crc=False)
    if (first.topic, first.queue_id) != (topic, queue_id):
        raise RequestRejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the records belong to queue {first.queue_id} of {first.topic}, but the request "
            f"names queue {queue_id} of {topic}",
        )
