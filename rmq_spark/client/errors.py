"""What can go wrong for a client, sorted by what the caller can do about it.

    ClientError                      a `RocketPollError`; every one of these can be pickled
    ├── ConnectionFailed             nobody answers there: check address and port, try again later
    │   ├── TlsFailed                somebody does, but not with a TLS that this client trusts
    │   └── NoNameServer             nobody answers at any of the name servers, or none was given
    ├── ConnectionClosed             it ended under way; whether the broker has acted is not known
    ├── RequestTimeout               no answer in time; likewise not known
    ├── ProtocolError                what came back cannot be an answer: another program listens there
    ├── RouteNotFound                the name servers know no such topic: create it
    │   └── TopicNotUsable           it may not be written, or read: change its perm, or start its masters
    ├── BrokerNotFound               no route leads to a broker of that name, or it has no master now
    ├── BrokerRefused                the broker understood, and said no: ``code`` and ``remark`` say why
    │   ├── SystemBusy               2, 215: try again later, slower
    │   ├── NotSupported             3: an older broker, or none of this kind
    │   ├── MessageIllegal           13: send something else
    │   ├── NoPermission             16: ask whoever runs the broker
    │   ├── TopicNotFound            17: create the topic
    │   ├── NotFound                 22, 208: there is no such offset, message or key
    │   ├── SubscriptionRejected     23 to 28: the expression is wrong, or the heartbeat has not arrived yet
    │   └── ConsumerNotOnline        206, 207: no member of the group can be asked
    ├── MessageRejected              found out before anything was sent: correct the message
    ├── SendFailed                   all tries of a send; ``tries`` carries what became of each
    │   └── PartlySent               of several requests the first went well: ``results`` has them
    ├── TooManyPending               so many sends wait for their answers already: wait for some of them
    ├── OffsetMoved                  the queue does not hold what was asked for; it says where to go on
    ├── NotAssigned                  that queue is not this consumer's, at least not now: see ``assignment()``
    ├── OffsetOutOfRange             the queue has no such offset; it says which it has
    ├── SubscriptionConflict         both subscribed and assigned: make another consumer
    ├── TlsRejected                  TLS settings that cannot work: correct the setting that it names
    ├── OffsetFileDamaged            of a group that broadcasts: mend the file, or delete it
    ├── OffsetFileFailed             it cannot be read or written: see to its directory
    └── ClientShutDown               it was shut down, or was never started

The first four are faults of the way to a broker (`CONNECTION_FAULTS`): another broker may do better.
This module knows no socket and no client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rmq_spark.errors import RocketPollError, excerpt
from rmq_spark.wire.codes import RequestCode, ResponseCode


class ClientError(RocketPollError):
    """The root of what a client reports. Arguments stay in ``args``, so that pickling keeps them."""


class ConnectionFailed(ClientError):
    """Nobody answers at an address."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(address, why)
        self.address = address
        self.why = why

    def __str__(self) -> str:
        return f"cannot connect to {self.address}: {self.why}; check that a broker listens there"


class TlsFailed(ConnectionFailed):
    """Somebody answers at an address, but TLS fails."""

    def __str__(self) -> str:
        return f"no TLS with {self.address}: {self.why}"


class NoNameServer(ConnectionFailed):
    """No name server answers; ``tries`` says what became of each that was asked."""

    def __init__(self, tries: Sequence[ClientError] = ()) -> None:
        super().__init__(", ".join(getattr(error, "address", "?") for error in tries), "")
        self.args = (tuple(tries),)
        self.tries = tuple(tries)
        self.why = "; ".join(map(str, tries))

    def __str__(self) -> str:
        if not self.tries:
            return "no name server was given: pass its address, as localhost:9876, or set NAMESRV_ADDR"
        return f"no name server answers: {self.why}"


class ConnectionClosed(ClientError):
    """A connection ended while, or before, an answer was waited for."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(address, why)
        self.address = address
        self.why = why

    def __str__(self) -> str:
        return f"the connection to {self.address} is closed: {self.why}"


class RequestTimeout(ClientError):
    """An answer has not come in time."""

    def __init__(self, address: str, request_code: int, timeout_ms: int) -> None:
        super().__init__(address, request_code, timeout_ms)
        self.address = address
        self.request_code = request_code
        self.timeout_ms = timeout_ms

    def __str__(self) -> str:
        name = name_of_request(self.request_code)
        return f"{self.address} has not answered {name} within {self.timeout_ms} ms"


class ProtocolError(ClientError):
    """What came from a peer is no answer to what it was asked."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(address, why)
        self.address = address
        self.why = why

    def __str__(self) -> str:
        return f"{self.address} does not answer as a broker does: {self.why}"


CONNECTION_FAULTS: Final = (ConnectionFailed, ConnectionClosed, RequestTimeout, ProtocolError)


class RouteNotFound(ClientError):
    """No name server knows a topic, or, as `TopicNotUsable`, none of its queues can be used."""

    def __init__(self, topic: str, why: str = "the name servers know no such topic") -> None:
        super().__init__(topic, why)
        self.topic = topic
        self.why = why

    def __str__(self) -> str:
        return f"no route to topic {self.topic}: {self.why}; create it, or check its name"


class TopicNotUsable(RouteNotFound):
    """A topic is there, and none of its queues can be used for what is wanted: it is not to be made anew."""

    def __str__(self) -> str:
        return f"no route to topic {self.topic}: {self.why}"


class BrokerNotFound(ClientError):
    """No route leads to a broker."""

    def __init__(self, broker_name: str, why: str = "no route names it") -> None:
        super().__init__(broker_name, why)
        self.broker_name = broker_name
        self.why = why

    def __str__(self) -> str:
        return f"no way to broker {self.broker_name}: {self.why}"


class BrokerRefused(ClientError):
    """A broker, or a name server, said no."""

    def __init__(self, code: int, remark: str | None, address: str, request_code: int) -> None:
        super().__init__(code, remark, address, request_code)
        self.code = code
        self.remark = remark
        self.address = address
        self.request_code = request_code

    def __str__(self) -> str:
        request = name_of_request(self.request_code)
        return (
            f"{self.address} refused {request}: {_name_of_response(self.code)}: {self.remark or 'no reason'}"
        )


class SystemBusy(BrokerRefused):
    """It has too much to do at the moment."""


class NotSupported(BrokerRefused):
    """It does not know this request."""


class MessageIllegal(BrokerRefused):
    """It will never take this message."""


class NoPermission(BrokerRefused):
    """Not allowed: by the topic, the group, the broker or its access list."""


class TopicNotFound(BrokerRefused):
    """It has no such topic."""


class NotFound(BrokerRefused):
    """There is nothing of that kind."""


class SubscriptionRejected(BrokerRefused):
    """It cannot filter by this subscription, or has not heard of it yet."""


class ConsumerNotOnline(BrokerRefused):
    """No consumer could be asked."""


_KINDS: Final[Mapping[int, type[BrokerRefused]]] = {
    ResponseCode.SYSTEM_BUSY: SystemBusy,
    ResponseCode.FLOW_CONTROL: SystemBusy,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: NotSupported,
    ResponseCode.MESSAGE_ILLEGAL: MessageIllegal,
    ResponseCode.NO_PERMISSION: NoPermission,
    ResponseCode.TOPIC_NOT_EXIST: TopicNotFound,
    ResponseCode.QUERY_NOT_FOUND: NotFound,
    ResponseCode.NO_MESSAGE: NotFound,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: SubscriptionRejected,
    ResponseCode.SUBSCRIPTION_NOT_EXIST: SubscriptionRejected,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: SubscriptionRejected,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: SubscriptionRejected,
    ResponseCode.FILTER_DATA_NOT_EXIST: SubscriptionRejected,
    ResponseCode.FILTER_DATA_NOT_LATEST: SubscriptionRejected,
    ResponseCode.CONSUMER_NOT_ONLINE: ConsumerNotOnline,
    ResponseCode.CONSUME_MSG_TIMEOUT: ConsumerNotOnline,
}


_OF_ACCESS_LISTS: Final = "AclException"
"""RocketMQ 4.9 has no code for what its access lists do not permit, only this class's name."""


def refusal(code: int, remark: str | None, address: str, request_code: int) -> BrokerRefused:
    """The refusal that a code stands for."""
    if code == ResponseCode.SYSTEM_ERROR and _OF_ACCESS_LISTS in (remark or ""):
        return NoPermission(code, remark, address, request_code)
    return _KINDS.get(code, BrokerRefused)(code, remark, address, request_code)


class MessageRejected(ClientError, ValueError):
    """A message, or a name, that no broker would take."""

    def __init__(self, what: str, needed: str, found: object) -> None:
        found = found if isinstance(found, (int, str)) else excerpt(found)
        super().__init__(what, needed, found)
        self.what = what
        self.needed = needed
        self.found = found

    def __str__(self) -> str:
        return f"{self.what}: needed {self.needed}, found {excerpt(self.found)}"


class SendFailed(ClientError):
    """Every try of a send failed; the last is also the cause. Some may have been stored all the same."""

    def __init__(self, topic: str, tries: Sequence[ClientError]) -> None:
        super().__init__(topic, tuple(tries))
        self.topic = topic
        self.tries = tuple(tries)

    def __str__(self) -> str:
        return f"sending to {self.topic} failed {len(self.tries)} times: " + "; ".join(map(str, self.tries))


class PartlySent(SendFailed):
    """The first ``messages_sent`` messages are stored; the others may be, but need to be sent again.

    Rows of a table that name their topics are sent topic by topic, each record batch in turn: the first are
    the first in that order, and ``results`` says of which topic and queue each span is.
    """

    def __init__(
        self, topic: str, tries: Sequence[ClientError], results: Sequence[object], messages_sent: int
    ) -> None:
        super().__init__(topic, tries)
        self.args = (topic, tuple(tries), tuple(results), messages_sent)
        self.results = tuple(results)
        self.messages_sent = messages_sent

    def __str__(self) -> str:
        return f"{self.messages_sent} messages were sent, then {super().__str__()}"


class TooManyPending(ClientError):
    """A producer has as many sends under way as it may have, or as many bytes of them."""

    def __init__(self, sends: int, size: int) -> None:
        super().__init__(sends, size)
        self.sends = sends
        self.size = size

    def __str__(self) -> str:
        return (
            f"{self.sends} sends wait for their answers already, with {self.size} bytes; "
            "wait for some of them, or raise pending_max or pending_bytes_max"
        )


class OffsetMoved(ClientError):
    """A queue holds the offsets from ``min_offset`` to before ``max_offset``, and not the one asked for."""

    def __init__(
        self, queue: str, queue_offset: int, min_offset: int, max_offset: int, next_begin_offset: int
    ) -> None:
        super().__init__(queue, queue_offset, min_offset, max_offset, next_begin_offset)
        self.queue = queue
        self.queue_offset = queue_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.next_begin_offset = next_begin_offset

    def __str__(self) -> str:
        return (
            f"{self.queue} does not hold offset {self.queue_offset}: it has those from {self.min_offset} "
            f"to before {self.max_offset}; go on at {self.next_begin_offset}"
        )


class NotAssigned(ClientError):
    """The queue is not this consumer's, at least not now."""

    def __init__(self, queue: object) -> None:
        super().__init__(queue)

    def __str__(self) -> str:
        return f"{self.args[0]} is not assigned to this consumer: see assignment()"


class OffsetOutOfRange(ClientError):
    """There is no such offset in the queue."""

    def __init__(self, queue: object, offset: int, least: int, most: int) -> None:
        super().__init__(queue, offset, least, most)

    def __str__(self) -> str:
        queue, offset, least, most = self.args
        return f"{queue} has offsets {least} to {most}, not {offset}"


class SubscriptionConflict(ClientError):
    """Both subscribed and assigned, which would contradict each other."""

    def __str__(self) -> str:
        return "a consumer either subscribes to topics or is assigned queues: make another consumer"


class TlsRejected(ClientError):
    """TLS settings that cannot work; ``setting`` is the one to correct."""

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(setting, problem)
        self.setting = setting
        self.problem = problem

    def __str__(self) -> str:
        return f"TLS setting {self.setting}: {self.problem}"


class OffsetFileDamaged(ClientError):
    """Neither the file of offsets nor its backup can be read."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)

    def __str__(self) -> str:
        path, why = self.args
        return f"{path} and its backup hold no offsets: {why}; mend one of them, or delete both to start anew"


class OffsetFileFailed(ClientError):
    """The file of offsets of a group that broadcasts cannot be read or written."""

    def __init__(self, path: str, doing: str, why: str) -> None:
        super().__init__(path, doing, why)

    def __str__(self) -> str:
        path, doing, why = self.args
        return f"{path} cannot be {doing}: {why}; check that its directory is there and may be written"


class ClientShutDown(ClientError):
    """The client does not run."""

    def __init__(self, what: str = "the client was shut down") -> None:
        super().__init__(what)


def name_of_request(code: int) -> str:
    """A request as people know it."""
    return RequestCode(code).name if code in RequestCode.__members__.values() else f"request {code}"


def _name_of_response(code: int) -> str:
    return ResponseCode(code).name if code in ResponseCode.__members__.values() else f"code {code}"


def forget_frames(error: BaseException) -> None:
    """Take the tracebacks from an error and from those that it comes of, and all that their frames hold."""
    found: list[BaseException | None] = [error]
    seen: set[int] = set()
    while found:
        each = found.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            found += (each.__cause__, each.__context__)
