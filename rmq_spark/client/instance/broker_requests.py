"""BrokerRequests: requests that brokers make of a client, passed to the member that each is for.

Only "the members of your group have changed" is dealt with on the spot, on the thread that reads.
Every other request gets a thread of its own, as it may take as long as a user's listener does; only
so many are handled at a time. Resets have room of their own: nobody answers them, so a broker would
not learn that one had found no room beside slow listeners.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from rmq_spark.client.connections.connection import Connection
from rmq_spark.client.errors import ClientError
from rmq_spark.client.instance.members import ConsumerMember, ProducerMember
from rmq_spark.client.message import MessageExt, received
from rmq_spark.client.threads.process_bound import ProcessBound
from rmq_spark.client.threads.starting import start_thread
from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.compression import PLAIN_BYTES_MAX
from rmq_spark.wire.headers import exchange_of
from rmq_spark.wire.record import decode_record

if TYPE_CHECKING:
    from rmq_spark.wire.bodies.stats import GetConsumerStatusBody

_log = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 16
_PRODUCER_GROUP: Final = "PGROUP"


def _room() -> Mapping[bool, threading.Semaphore]:
    """Return the slots of resets (True), and of all else."""
    return {is_reset: threading.Semaphore(AT_ONCE_MAX) for is_reset in (False, True)}


class NotForUs(ClientError):
    """A broker asks for a member that is not in this client."""

    def __str__(self) -> str:
        return f"there is no {self.args[0]} in this client"


class BrokerRequests(ProcessBound):
    """Passes brokers' requests to the members of one client."""

    def __init__(
        self,
        client_id: Callable[[], str],
        consumers: Mapping[str, ConsumerMember],
        producers: Mapping[str, ProducerMember | None],
        max_body_bytes: int = PLAIN_BYTES_MAX,
    ) -> None:
        """Make a dispatcher; both mappings are by group, and may change at any time.

        Compressed bodies of messages in requests may inflate to ``max_body_bytes``.
        """
        self._client_id = client_id
        self._consumers = consumers
        self._producers = producers
        self._max_body_bytes = max_body_bytes
        self._free = _room()
        self._handlers: Mapping[int, Callable[[str, RemotingCommand, Any], object]] = {
            RequestCode.CHECK_TRANSACTION_STATE: self._check_transaction_state,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offsets,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._consume_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }
        ProcessBound.__init__(self)

    def __call__(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """Take a request of a broker; return its answer, or None if that goes out later."""
        codec = exchange_of(request.code).request
        if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and codec is not None:
            consumer = self._consumers.get(codec.decode(request.ext_fields).consumer_group)
            if consumer is not None:
                consumer.rebalance_soon()
            return request.respond(ResponseCode.SUCCESS)
        handler = self._handlers.get(request.code)
        if handler is None or codec is None:
            remark = f" request type {request.code} not supported"
            return request.respond(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        header = codec.decode(request.ext_fields)
        free = self._free[request.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET]
        if not free.acquire(blocking=False):
            remark = f"the client is busy with {AT_ONCE_MAX} other requests"
            return self._busy(connection, request, remark)
        thread = threading.Thread(
            target=self._handle,
            args=(connection, request, handler, header, free),
            name=f"rocketpoll request {request.code}",
            daemon=True,
        )
        try:
            start_thread(thread)
        except RuntimeError as error:  # at a limit of threads
            free.release()
            remark = f"the client has no thread for it: {error}"
            return self._busy(connection, request, remark)
        return None

    def _busy(
        self, connection: Connection, request: RemotingCommand, remark: str
    ) -> RemotingCommand:
        if request.is_one_way:  # the broker will not hear of it
            _log.warning("%s: request %d was dropped: %s", connection.address, request.code, remark)
        return request.respond(ResponseCode.SYSTEM_BUSY, remark)

    def _forked(self) -> None:
        """Free all slots: the requests that are under way are the parent's."""
        self._free = _room()

    def _handle(
        self,
        connection: Connection,
        request: RemotingCommand,
        handler: Callable[[str, RemotingCommand, Any], object],
        header: Any,
        free: threading.Semaphore,
    ) -> None:
        try:
            body = handler(connection.address, request, header)
            data = b"" if body is None else encode_body(body)
            answer = request.respond(ResponseCode.SUCCESS, body=data)
        except NotForUs as error:
            _log.info("%s: request %d: %s", connection.address, request.code, error)
            answer = request.respond(ResponseCode.SYSTEM_ERROR, str(error))
        except BaseException as error:  # noqa: BLE001  # any error is answered, a listener's sys.exit too
            _log.exception("%s: request %d failed", connection.address, request.code)
            answer = request.respond(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        finally:
            free.release()
        if not request.is_one_way:
            try:
                connection.send(answer)
            except ClientError as error:
                _log.info("%s: request %d: %s", connection.address, request.code, error)

    # ---- one method for each request: the body of the answer, or None

    def _check_transaction_state(self, address: str, request: RemotingCommand, header: Any) -> None:
        message = self._message_in(request, header)
        group = message.properties.get(_PRODUCER_GROUP, "")
        producer = self._producers.get(group)
        if producer is None:
            raise NotForUs(f"transactional producer of group {group!r}")
        producer.check_transaction_state(address, message, header)

    def _reset_offsets(self, _: str, request: RemotingCommand, header: Any) -> None:
        from rmq_spark.wire.bodies.stats import ResetOffsetBody  # noqa: PLC0415  # rarely needed

        offsets = decode_body(ResetOffsetBody, request.body).offset_table
        self._consumer(header.group).reset_offsets(header.topic, offsets)

    def _consume_status(self, _: str, __: RemotingCommand, header: Any) -> GetConsumerStatusBody:
        from rmq_spark.wire.bodies.stats import GetConsumerStatusBody  # noqa: PLC0415  # rarely needed

        status = self._consumer(header.group).consume_status(header.topic)
        return GetConsumerStatusBody(message_queue_table=status)

    def _running_info(self, _: str, __: RemotingCommand, header: Any) -> object:
        self._check_client_id(header.client_id)
        return self._consumer(header.consumer_group).running_info()

    def _consume_directly(self, _: str, request: RemotingCommand, header: Any) -> object:
        self._check_client_id(header.client_id)
        message = self._message_in(request, header)
        return self._consumer(header.consumer_group).consume_directly(
            message, header.broker_name or ""
        )

    def _message_in(self, request: RemotingCommand, header: Any) -> MessageExt:
        stored = decode_record(request.body)
        broker_name = header.broker_name or ""
        return received(stored, broker_name, max_body_bytes=self._max_body_bytes)

    def _check_client_id(self, client_id: str | None) -> None:
        if client_id not in (None, self._client_id()):
            raise NotForUs(f"client {client_id!r}")

    def _consumer(self, group: str) -> ConsumerMember:
        consumer = self._consumers.get(group)
        if consumer is None:
            raise NotForUs(f"consumer of group {group!r}")
        return consumer
