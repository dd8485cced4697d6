"""Errors of the client, sorted by what the caller can do about them.

    ClientError                      a `RocketPollError`; every one of these can be pickled
    ├── ConnectionFailed             no answer there: check address and port, try again later
    │   ├── TlsFailed                a server answers, but the TLS handshake with it fails
    │   └── NoNameServer             no name server answers, or none was given
    ├── ConnectionClosed             before the response; the broker may have acted on the request
    ├── RequestTimeout               no answer in time; the broker may have acted on the request
    ├── ProtocolError                not a broker's answer: another program listens there
    │   └── MessageUnreadable        a message ended a read; see ``on_bad_record``
    ├── RouteNotFound                the name servers know no such topic: create it
    │   └── TopicNotUsable           not writable, or readable: change its perm, start its masters
    ├── BrokerNotFound               no route leads to the broker, or it has no master now
    ├── GroupNotFound                no broker of the topic knows the group: check its name
    ├── BrokerRefused                the broker understood, and refused; see ``code``, ``remark``
    │   ├── SystemBusy               2, 215: try again later, slower
    │   ├── NotSupported             3: an older broker, one of another kind, or a proxy
    │   ├── MessageIllegal           13: send something else
    │   ├── NoPermission             16: ask the operator of the broker
    │   │   ├── AuthenticationFailed  no or wrong credentials: correct them
    │   │   └── AccessDenied         an access list denies the right: have it granted
    │   ├── TopicNotFound            17: create the topic
    │   ├── NotFound                 22, 208: there is no such offset, message or key
    │   ├── SubscriptionRejected     23 to 28: the expression is wrong, or not known there yet
    │   └── ConsumerNotOnline        206, 207: no member of the group can be asked
    ├── MessageRejected              refused before anything was sent: correct the message
    ├── NotResendable                a dead letter without its original topic, or a damaged one
    ├── SendFailed                   all tries of a send failed; ``tries`` has the outcome of each
    │   └── PartlySent               the first of several requests succeeded; see ``results``
    ├── ReplyTimeout                 no reply to a request in time; ``sent`` has where it is stored
    ├── TooManyPending               too many sends wait for their answers: wait for some of them
    ├── OffsetMoved                  the queue does not hold the offset; see ``next_begin_offset``
    ├── NotAssigned                  the queue is not this consumer's now: see ``assignment()``
    ├── OffsetOutOfRange             the queue has no such offset; the error says which it has
    ├── TableTooLarge                a topic does not fit into the memory that a table may take
    ├── LookupTooLarge               messages that were found do not fit into a limit of memory
    ├── SubscriptionConflict         both subscribed and assigned: make another consumer
    ├── TlsRejected                  TLS settings that cannot work: correct the one that it names
    ├── ProfileRejected              a profile that cannot be used: correct the file that it names
    ├── RegistryFailed               a schema registry refuses: check its address, user and password
    │   ├── RegistryAway             no answer: try again later
    │   └── SchemaNotFound           it has no such id or subject: register the schema
    ├── OffsetFileDamaged            the offsets of BROADCASTING: repair the file, or delete it
    ├── OffsetFileFailed             this file cannot be read or written: check its directory
    ├── ManifestError                a manifest or its rows are damaged, or of a newer release
    ├── ThreadNotStarted             a limit of threads, or Python ends; a `RuntimeError` as well
    └── ClientShutDown               the client was shut down, or was never started

After a connection fault (`CONNECTION_FAULTS`: ConnectionFailed, ConnectionClosed, RequestTimeout,
ProtocolError) another broker may succeed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from rmq_spark.errors import RocketPollError, excerpt, format_count, sanitize
from rmq_spark.wire.codes import RequestCode, ResponseCode

_CONNECTION_PAGE: Final = "troubleshooting.md#nobody-answers"
_TOPICS_PAGE: Final = "troubleshooting.md#topics-groups-names"
_ACCESS_PAGE: Final = "troubleshooting.md#users-and-access-lists"
SQL_EXAMPLE: Final = "total > 5"
"""A condition in SQL92 as errors show one."""


class ClientError(RocketPollError, page="troubleshooting.md#sending-and-consuming"):
    """Base class of all errors that the client raises.

    Constructor arguments stay in ``args``, so that every error can be pickled.
    """


class ConnectionFailed(ClientError, page=_CONNECTION_PAGE):
    """No connection could be made to an address.

    Check the address and the port, or try again later.

    Attributes:
        address: The address, as ``host:port``.
        why: The reason.
    """

    def __init__(self, address: str, why: str) -> None:
        super().__init__(address, why)
        self.address = address
        self.why = why

    def __str__(self) -> str:
        return (
            f"cannot connect to {sanitize(self.address)}: {self.why}; check that a broker listens "
            "there"
        )


class TlsFailed(ConnectionFailed):
    """A server answers at an address, but the TLS handshake with it fails."""

    def __str__(self) -> str:
        return f"the TLS handshake with {sanitize(self.address)} failed: {self.why}"


class NoNameServer(ConnectionFailed):
    """No name server answers, or none was given.

    Attributes:
        tries: The error of each name server that was asked.
    """

    def __init__(self, tries: Sequence[ClientError] = ()) -> None:
        super().__init__(", ".join(getattr(error, "address", "?") for error in tries), "")
        self.args = (tuple(tries),)
        self.tries = tuple(tries)
        self.why = "; ".join(map(str, tries))

    def __str__(self) -> str:
        if not self.tries:
            return (
                "no name server was given. Pass its address, as in localhost:9876, or set "
                "NAMESRV_ADDR"
            )
        hint = ""
        if not all(isinstance(error, ConnectionFailed) for error in self.tries):
            hint = ". Check that this is the address of a name server, or of a rocketpoll broker"
            if any(isinstance(error, RequestTimeout) for error in self.tries):
                hint += ": it accepts connections, but its program is another one, or hangs"
        return f"no name server answers: {self.why}{hint}"


class ConnectionClosed(ClientError, page=_CONNECTION_PAGE):
    """A connection ended before the response came. The broker may have acted on the request.

    Attributes:
        address: The address, as ``host:port``.
        why: The reason.
    """

    def __init__(self, address: str, why: str) -> None:
        super().__init__(address, why)
        self.address = address
        self.why = why

    def __str__(self) -> str:
        return f"the connection to {self.address} is closed: {self.why}"


class RequestTimeout(ClientError, page=_CONNECTION_PAGE):
    """A response did not come in time. The broker may have acted on the request.

    Attributes:
        address: The address, as ``host:port``.
        request_code: RocketMQ's code of the request.
        timeout_ms: Milliseconds that the response was waited for.
    """

    def __init__(self, address: str, request_code: int, timeout_ms: int) -> None:
        super().__init__(address, request_code, timeout_ms)
        self.address = address
        self.request_code = request_code
        self.timeout_ms = timeout_ms

    def __str__(self) -> str:
        name = request_name(self.request_code)
        return f"{self.address} did not answer {name} within {self.timeout_ms} ms"


class ProtocolError(ClientError, page=_CONNECTION_PAGE):
    """A response cannot be a broker's: another program may listen at the address.

    Attributes:
        address: The address, as ``host:port``.
        why: The reason.
    """

    def __init__(self, address: str, why: str) -> None:
        super().__init__(address, why)
        self.address = address
        self.why = why

    def __str__(self) -> str:
        return f"{self.address} does not answer like a broker: {self.why}"


class MessageUnreadable(ProtocolError, page="troubleshooting.md#bytes-that-cannot-be-read"):
    """A read has ended at a message that cannot be read; the text names its place."""

    def __str__(self) -> str:
        return (
            f"{self.why}. Set on_bad_record to 'null' for a row without its body, or to 'skip' to "
            "leave it out"
        )


CONNECTION_FAULTS: Final = (ConnectionFailed, ConnectionClosed, RequestTimeout, ProtocolError)


class RouteNotFound(ClientError, page=_TOPICS_PAGE):
    """The name servers know no such ``topic``; ``why`` is the reason."""

    def __init__(self, topic: str, why: str = "the name servers know no such topic") -> None:
        super().__init__(topic, why)
        self.topic = topic
        self.why = why

    def __str__(self) -> str:
        return f"no route to topic {sanitize(self.topic)}: {self.why}; create it, or check its name"


class TopicNotUsable(RouteNotFound):
    """The topic exists, but none of its queues can be written, or read.

    Creating it again does not help: change its permissions, or start its masters.
    """

    def __str__(self) -> str:
        return f"no route to topic {sanitize(self.topic)}: {self.why}"


class BrokerNotFound(ClientError, page=_TOPICS_PAGE):
    """No route leads to broker ``broker_name``, or it has no master now; ``why`` is the reason.

    The name is empty if any broker would do.
    """

    def __init__(self, broker_name: str, why: str = "no route contains it") -> None:
        super().__init__(broker_name, why)
        self.broker_name = broker_name
        self.why = why

    def __str__(self) -> str:
        which = f"broker {sanitize(self.broker_name)}" if self.broker_name else "any broker"
        return f"cannot reach {which}: {self.why}"


class GroupNotFound(ClientError, page=_TOPICS_PAGE):
    """No broker of the topic knows the consumer ``group``, or has offsets of it.

    Attributes:
        near: The name of a group that is similar, or None.
    """

    def __init__(self, group: str, near: str | None = None) -> None:
        super().__init__(group, near)
        self.group = group
        self.near = near

    def __str__(self) -> str:
        hint = (
            f"did you mean {sanitize(self.near)}?"
            if self.near
            else "check its name, or create it with Admin.create_group"
        )
        return f"there is no consumer group {sanitize(self.group)}; {hint}"


class BrokerRefused(ClientError, page="troubleshooting.md#refused-by-a-broker"):
    """A broker, or a name server, answered a request with an error code.

    Attributes:
        code: RocketMQ's response code.
        remark: The explanation sent with it, if any.
        address: The address that refused, as ``host:port``.
        request_code: RocketMQ's code of the request.
    """

    def __init__(self, code: int, remark: str | None, address: str, request_code: int) -> None:
        super().__init__(code, remark, address, request_code)
        self.code = code
        self.remark = remark
        self.address = address
        self.request_code = request_code

    def __str__(self) -> str:
        request = request_name(self.request_code)
        return (
            f"{self.address} refused {request}: {_response_name(self.code)}: "
            f"{self.remark or 'no reason'}"
        )


class SystemBusy(BrokerRefused):
    """The broker is overloaded at the moment (2, 215): try again later, slower."""


class NotSupported(BrokerRefused):
    """The broker does not know the request (3): it is older, or of another kind, or a proxy."""

    def __str__(self) -> str:
        if not self.is_of_proxy:
            return super().__str__()
        return (
            f"{super().__str__()}. Give the address of a name server: a proxy of RocketMQ answers "
            "producers and consumers only"
        )

    @property
    def is_of_proxy(self) -> bool:
        """True if every name server answers the request, so that the address is a proxy's."""
        return self.request_code in _NAME_SERVER_REQUESTS


class MessageIllegal(BrokerRefused):
    """The broker will never accept the message (13): send something else."""

    @property
    def has_cause_other_than_size(self) -> bool:
        """True if the broker names the message's time or type: a shorter one is refused as well."""
        return self._is_of_timer or _WRONG_MESSAGE_TYPE.search(self.remark or "") is not None

    @property
    def _is_of_timer(self) -> bool:
        return _ILLEGAL_TIMER in (self.remark or "")

    def __str__(self) -> str:
        if self._is_of_timer:
            return (
                f"{super().__str__()}. Set an earlier time of delivery, or raise the broker's "
                "timerMaxDelaySec"
            )
        types = _WRONG_MESSAGE_TYPE.search(self.remark or "")
        if types is None:
            return super().__str__()
        expected, found = types.groups()
        remedy = "Create the topic first"
        if expected != "UNSPECIFIED":
            remedy = f"Send to a topic with the attribute message.type={found}"
        return f"{super().__str__()}. {remedy}"


class NoPermission(BrokerRefused):
    """The topic, the group, the broker or its access list forbids the request (16)."""


class AuthenticationFailed(NoPermission, page=_ACCESS_PAGE):
    """The broker does not accept the credentials of a request, or the request has none.

    Trying again does not help: correct the credentials, or have the user created.
    """

    @property
    def user(self) -> str | None:
        """Name of the user that the broker refused; None if its answer has none."""
        return _authentication_refusal(self.remark)[0]

    @property
    def remedy(self) -> str:
        """The advice, in the imperative."""
        return _authentication_refusal(self.remark)[1]

    def __str__(self) -> str:
        return f"{super().__str__().rstrip('.')}. {self.remedy}"


class AccessDenied(NoPermission, page=_ACCESS_PAGE):
    """The broker's access lists do not let the user make the request.

    Trying again does not help: have an operator grant the right.
    """

    @property
    def user(self) -> str | None:
        """Name of the user; None if the broker's answer has none."""
        return _access_refusal(self.remark).get("user")

    @property
    def resource(self) -> str | None:
        """The resource that is denied, as ``Topic:orders``; None if the answer has none."""
        return _access_refusal(self.remark).get("resource")

    @property
    def actions(self) -> tuple[str, ...]:
        """The actions on the resource, one of which the request needs, as ``("Pub",)``."""
        kind = (self.resource or "").partition(":")[0]
        return needed_actions(self.request_code, kind)

    @property
    def remedy(self) -> str:
        """The advice, in the imperative; for RocketMQ 5 and rocketpoll, with the command."""
        refused = _access_refusal(self.remark)
        if _ACL_EXCEPTION in (self.remark or ""):
            return "Use an account that may do this, or change plain_acl.yml of the broker"
        if refused.get("detail", "").startswith(_DENIED):
            return "Use another user, or have an operator change the entry that denies it"
        user, resource = refused.get("user"), refused.get("resource")
        if not user or not resource:
            return "Use a user that may do this, or have an operator grant it"
        action, *others = self.actions or ("ACTION",)
        command = f"rocketpoll acl grant {shlex.quote(user)} {shlex.quote(resource)}"
        also = f"; {' or '.join(others)} suffices as well" if others else ""
        return f"Have an operator run {command} --actions {action}{also}"

    def __str__(self) -> str:
        return f"{super().__str__().rstrip('.')}. {self.remedy}"


class TopicNotFound(BrokerRefused, page=_TOPICS_PAGE):
    """The broker does not have the topic (17): create it."""


class NotFound(BrokerRefused, page=_TOPICS_PAGE):
    """The broker does not have the offset, message or key asked for (22, 208)."""


class SubscriptionRejected(BrokerRefused, page=_TOPICS_PAGE):
    """The broker cannot filter by the subscription, or does not know it yet (23 to 28)."""

    def __str__(self) -> str:
        refusal = super().__str__()
        if self.code != ResponseCode.SUBSCRIPTION_PARSE_FAILED:
            return refusal
        return f"{refusal}. Write for example by_sql({SQL_EXAMPLE!r}) or 'paid || refunded'"


class ConsumerNotOnline(BrokerRefused, page=_TOPICS_PAGE):
    """No member of the consumer group could be asked (206, 207)."""


class MessageRejected(ClientError, ValueError):
    """A message, a name or a setting was refused before anything was sent.

    Attributes:
        what: The field or setting that is wrong.
        needed: The values that are allowed, in words.
        found: The value that was given.
        remedy: What to do, as an imperative, or empty.
    """

    def __init__(self, what: str, needed: str, found: object, remedy: str = "") -> None:
        found = found if isinstance(found, (int, str)) else excerpt(found)
        super().__init__(what, needed, found, remedy)
        self.what = what
        self.needed = needed
        self.found = found
        self.remedy = remedy

    def __str__(self) -> str:
        problem = f"{self.what}: needed {self.needed}, found {excerpt(self.found)}"
        return f"{problem}. {self.remedy}" if self.remedy else problem


class NotResendable(ClientError):
    """A dead letter cannot be sent again as it is.

    Attributes:
        letter: The dead letter, with its place.
        why: The reason.
        lacks_topic: Whether it can be sent if a topic is named.
    """

    def __init__(self, letter: str, why: str, *, lacks_topic: bool = False) -> None:
        super().__init__(letter, why)
        self.letter = letter
        self.why = why
        self.lacks_topic = lacks_topic

    def __str__(self) -> str:
        return f"{self.letter} {self.why}"


class SendFailed(ClientError):
    """All tries of a send failed; one of them may have stored the message nevertheless.

    The last try is also the cause of this error.

    Attributes:
        topic: Name of the topic.
        tries: The error of each try.
    """

    def __init__(self, topic: str, tries: Sequence[ClientError]) -> None:
        super().__init__(topic, tuple(tries))
        self.topic = topic
        self.tries = tuple(tries)
        if self.tries:
            self.__cause__ = self.tries[-1]

    def __str__(self) -> str:
        reasons = "; ".join(dict.fromkeys(map(str, self.tries)))  # without repeats
        return f"sending to {self.topic} failed {format_count(len(self.tries), 'time')}: {reasons}"


class PartlySent(SendFailed):
    """Some messages of a batch or a table were stored, then a request failed.

    The first ``messages_sent`` messages are stored; the others may be, but need to be sent again.
    Rows of a table that name their topics are sent by record batch, and within it by topic: "first"
    means in that order.

    Attributes:
        topic: Name of the topic.
        tries: The error of each try of the request that failed.
        results: Results of the requests that succeeded: a `SendResult` for each, or, for a table,
            the spans of queue offsets that are stored.
        messages_sent: Number of messages that are stored for certain.
    """

    def __init__(
        self,
        topic: str,
        tries: Sequence[ClientError],
        results: Sequence[object],
        messages_sent: int,
    ) -> None:
        super().__init__(topic, tries)
        self.args = (topic, tuple(tries), tuple(results), messages_sent)
        self.results = tuple(results)
        self.messages_sent = messages_sent

    def __str__(self) -> str:
        return f"{format_count(self.messages_sent, 'message')} sent, then {super().__str__()}"


class ReplyTimeout(ClientError, TimeoutError):
    """No reply to a request arrived in time.

    Attributes:
        topic: Topic of the request.
        timeout_ms: Milliseconds that the reply was waited for.
        sent: The `SendResult` with the place at which the request is stored; None if no broker has
            acknowledged it, so that it may be stored or not.
    """

    def __init__(self, topic: str, timeout_ms: int, sent: object = None) -> None:
        super().__init__(topic, timeout_ms, sent)
        self.args = (topic, timeout_ms, sent)  # OSError would keep only two
        self.topic = topic
        self.timeout_ms = timeout_ms
        self.sent = sent

    @property
    def where(self) -> str:
        """The place at which the request is stored, in words, as far as it is known."""
        if self.sent is None:
            return "no broker has acknowledged the request, which may be stored all the same"
        queue, queue_offset = (getattr(self.sent, name) for name in ("queue", "queue_offset"))
        return (
            f"the request is stored at offset {queue_offset} of queue {queue.queue_id} on "
            f"{sanitize(queue.broker_name)}"
        )

    def __str__(self) -> str:
        return (
            f"no reply to a request to {sanitize(self.topic)} within {self.timeout_ms} ms: "
            f"{self.where}. Check that a consumer of the topic replies, or raise timeout_ms"
        )


class TooManyPending(ClientError):
    """A producer's limit of unanswered sends, or of their bytes, was reached for too long.

    Wait for some of them, or raise ``pending_max`` or ``pending_bytes_max``. Callbacks that are
    slower than the responses fill ``pending_max`` as well.

    Attributes:
        sends: Number of sends that wait for their responses.
        size: Number of bytes in their bodies.
        callbacks: Number of callbacks that wait to run, if there are too many of these; else 0.
    """

    def __init__(self, sends: int, size: int, callbacks: int = 0) -> None:
        super().__init__(sends, size, callbacks)
        self.sends = sends
        self.size = size
        self.callbacks = callbacks

    def __str__(self) -> str:
        if self.callbacks:
            return (
                f"too many callbacks of sends are queued: {self.callbacks} (pending_max). Make "
                "callbacks faster, move the work to your own threads, or raise pending_max"
            )
        return (
            f"too many sends wait for their responses: {self.sends} with {self.size} bytes. Wait "
            "for "
            "some of them, or raise pending_max or pending_bytes_max"
        )


class OffsetMoved(ClientError):
    """A queue does not hold the requested offset.

    Attributes:
        queue: The queue, in words.
        queue_offset: The requested offset.
        min_offset: First offset that the queue holds.
        max_offset: Offset past the last one that the queue holds.
        next_begin_offset: Offset at which to resume.
    """

    def __init__(
        self,
        queue: str,
        queue_offset: int,
        min_offset: int,
        max_offset: int,
        next_begin_offset: int,
    ) -> None:
        super().__init__(queue, queue_offset, min_offset, max_offset, next_begin_offset)
        self.queue = queue
        self.queue_offset = queue_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.next_begin_offset = next_begin_offset

    def __str__(self) -> str:
        return (
            f"{self.queue} does not hold offset {self.queue_offset}: it has those from "
            f"{self.min_offset} to before {self.max_offset}. Resume at {self.next_begin_offset}"
        )


class NotAssigned(ClientError):
    """A queue is not assigned to this consumer now; `assignment()` lists those that are."""

    def __init__(self, queue: object) -> None:
        super().__init__(queue)

    def __str__(self) -> str:
        return f"{sanitize(str(self.args[0]))} is not assigned to this consumer. See assignment()"


class OffsetOutOfRange(ClientError):
    """A queue does not have the offset to seek to; the error says which offsets it has."""

    def __init__(self, queue: object, offset: int, first: int, last: int) -> None:
        super().__init__(queue, offset, first, last)

    def __str__(self) -> str:
        queue, offset, first, last = self.args
        return f"{sanitize(str(queue))} has offsets {first} to {last}, not {offset}"


class TableTooLarge(ClientError):
    """The messages of a topic need more memory, with bodies inflated, than a table may take.

    Attributes:
        topic: The topic that was read.
        bytes_max: The limit, in bytes.
    """

    def __init__(self, topic: str, bytes_max: int, row_count: int) -> None:
        super().__init__(topic, bytes_max, row_count)
        self.topic = topic
        self.bytes_max = bytes_max

    def __str__(self) -> str:
        topic, bytes_max, row_count = self.args
        return (
            f"the table of {sanitize(topic)} takes over {bytes_max} bytes (bytes_max) with its "
            f"first {row_count} rows, as bodies are inflated. Choose columns, read ranges with "
            "start and end, or raise bytes_max"
        )


class LookupTooLarge(ClientError):
    """The messages that a lookup finds need more memory, with bodies inflated, than it may take.

    Attributes:
        topic: The topic in which messages were looked up.
        bytes_max: The limit, in bytes.
    """

    def __init__(self, topic: str, bytes_max: int, message_count: int) -> None:
        super().__init__(topic, bytes_max, message_count)
        self.topic = topic
        self.bytes_max = bytes_max

    def __str__(self) -> str:
        topic, bytes_max, message_count = self.args
        return (
            f"the messages found in {sanitize(topic)} take over {bytes_max} bytes (bytes_max) with "
            f"the first {message_count}, as bodies are inflated. Look for fewer, in a shorter "
            "time, or raise bytes_max"
        )


class SubscriptionConflict(ClientError, page=_TOPICS_PAGE):
    """A consumer was both subscribed to topics and assigned queues: make another consumer."""

    def __str__(self) -> str:
        return "a consumer either subscribes to topics or is assigned queues. Make another consumer"


class TlsRejected(ClientError):
    """TLS settings cannot work.

    Attributes:
        setting: Name of the setting to correct.
        problem: The reason.
    """

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(setting, problem)
        self.setting = setting
        self.problem = problem

    def __str__(self) -> str:
        return f"TLS setting {self.setting}: {self.problem}"


class ProfileRejected(ClientError):
    """A profile of connection settings cannot be used: correct the file of profiles.

    Attributes:
        name: Name of the profile.
        problem: The reason, with the file, and what to do.
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name = name
        self.problem = problem

    def __str__(self) -> str:
        return f"profile {sanitize(self.name)}: {self.problem}"


class RegistryFailed(ClientError):
    """A registry of schemas refuses a request, or its answer cannot be used.

    Attributes:
        url: Address of the registry.
        why: The reason.
    """

    def __init__(self, url: str, why: str) -> None:
        super().__init__(url, why)
        self.url = url
        self.why = why

    def __str__(self) -> str:
        return f"schema registry {sanitize(self.url)}: {self.why}"


class RegistryAway(RegistryFailed):
    """A registry of schemas does not answer: try again later."""


class SchemaNotFound(RegistryFailed, LookupError):
    """A registry has no schema of this id, or no such subject."""


class OffsetFileDamaged(ClientError):
    """Neither the offset file of a broadcasting group nor its backup can be read.

    Repair one of them, or delete both to start without offsets.
    """

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path, why)

    def __str__(self) -> str:
        path, why = self.args
        return (
            f"{path} and its backup hold no offsets: {why}. Repair one of them, or delete both to "
            "start without offsets"
        )


class OffsetFileFailed(ClientError):
    """The offset file of a broadcasting group cannot be read or written: check its directory."""

    def __init__(self, path: str, doing: str, why: str) -> None:
        super().__init__(path, doing, why)

    def __str__(self) -> str:
        path, doing, why = self.args
        return f"{path} cannot be {doing}: {why}. Check that its directory exists and is writable"


class ManifestError(ClientError, page="troubleshooting.md#spark"):
    """A manifest cannot be read, or its committed rows cannot be read or have changed.

    Attributes:
        version: Version of the manifest, if a newer release has written it; 0 otherwise.
    """

    def __init__(self, problem: str, version: int = 0) -> None:
        super().__init__(problem, version)
        self.version = version

    def __str__(self) -> str:
        return str(self.args[0])


class ThreadNotStarted(ClientError, RuntimeError):
    """The process cannot start another thread.

    Attributes:
        reason: What Python says about it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"cannot start a thread ({self.reason}). Raise the process's limit of threads "
            "(ulimit -u, or pids.max of its cgroup), or end some"
        )


class ClientShutDown(ClientError):
    """The client was shut down, or was never started."""

    def __init__(self, what: str = "the client was shut down") -> None:
        super().__init__(what)


UNREACHABLE_ERRORS: Final = (*CONNECTION_FAULTS, BrokerNotFound)
"""Errors after which another broker may succeed, or the same one later."""


def request_name(code: int) -> str:
    """Return the name of a request code, for error messages."""
    return RequestCode(code).name if code in RequestCode.__members__.values() else f"request {code}"


def _response_name(code: int) -> str:
    return ResponseCode(code).name if code in ResponseCode.__members__.values() else f"code {code}"


# ---- Refusals of brokers: from a response code to the class of error that says what can be done.

_REFUSAL_CLASSES: Final[Mapping[int, type[BrokerRefused]]] = {
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


# ---- Refusals of access lists. RocketMQ reports them by texts: 5.x with code 16, which topics that
# are not writable have as well, and 4.9 with code 1 and the class name of its exception.

_ACL_EXCEPTION: Final = "AclException"
"""Class name by which RocketMQ 4.9 reports a refusal of its access lists; it has no code."""

_DENIED: Final = "the decision is deny"
_NO_CREDENTIALS: Final = "Pass the access key and the secret key of a user"
_AUTHENTICATION_REFUSALS: Final = (
    (
        re.compile(r"username cannot be null|No accessKey is configured|nobody has signed this"),
        _NO_CREDENTIALS,
    ),
    (
        re.compile(r"this connection belongs to (?P<user>[^\s:]+): use another connection"),
        "Use another client for another user",
    ),
    (
        re.compile(r"User:(?P<user>\S+) (?:is )?not found"),
        "Correct the access key, or have an operator run rocketpoll user create {user}",
    ),
    (
        re.compile(r"User:(?P<user>\S+) is disabled"),
        "Use another user, or have an operator run rocketpoll user update {user} --enable",
    ),
    (
        re.compile(r"No acl config for (?P<user>[^\s,]+)"),
        "Correct the access key, or add the account to plain_acl.yml of the broker",
    ),
    (
        re.compile(r"check signature failed(?: for accessKey=(?P<user>[^\s,]+))?", re.IGNORECASE),
        "Correct the secret key",
    ),
)
"""Texts of brokers that do not accept credentials, of 5.x and 4.9, and what to do about each."""

_ACCESS_REFUSALS: Final = (
    re.compile(
        r"User:(?P<user>\S+) has no permission to access (?P<resource>\S+) from \S*, (?P<detail>.+)"
    ),
    re.compile(r"No default permission for (?P<resource>[^\s,]+)"),
    re.compile(r"Need admin permission for request code=\d+, but accessKey=(?P<user>\S+) is not"),
)

_WRONG_MESSAGE_TYPE: Final = re.compile(
    r"TopicMessageType validate failed, the expected type is (\w+), but actual type is (\w+)"
)
"""The remark of RocketMQ's proxy about a message whose type its topic does not have."""

_ILLEGAL_TIMER: Final = "timer message illegal"
"""The beginning of a broker's remark about a message with a time that it does not accept."""

_NAME_SERVER_REQUESTS: Final = frozenset(
    {RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER}
)

_PUBLISHING: Final = frozenset(
    {
        *(RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE),
        *(RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2),
        *(RequestCode.END_TRANSACTION, RequestCode.APPEND_CHUNK, RequestCode.STAGE_CHUNK),
        *(RequestCode.COMMIT_BATCH, RequestCode.ABORT_BATCH, RequestCode.LAST_BATCH),
    }
)
_CONSUMING: Final = frozenset(
    {
        *(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.HEART_BEAT),
        *(RequestCode.PULL_CHUNK, RequestCode.PULL_PLACES, RequestCode.CONSUMER_SEND_MSG_BACK),
        *(RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ, RequestCode.UNREGISTER_CLIENT),
        *(RequestCode.CONSUME_MESSAGE_DIRECTLY, RequestCode.CHECK_CLIENT_CONFIG),
        *(RequestCode.QUERY_ASSIGNMENT, RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE),
        *(RequestCode.BATCH_ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME),
    }
)
_NEEDED_ACTIONS: Final[Mapping[int, tuple[str, ...]]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: ("Pub", "Sub", "Get"),
    RequestCode.QUERY_MESSAGE: ("Sub", "Get"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: ("Sub", "Get"),
    RequestCode.QUERY_CONSUMER_OFFSET: ("Sub", "Get"),
    RequestCode.UPDATE_CONSUMER_OFFSET: ("Sub", "Update"),
    RequestCode.UPDATE_AND_CREATE_TOPIC: ("Create",),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: ("Create",),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ("Create",),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: ("Create",),
    RequestCode.DELETE_TOPIC_IN_BROKER: ("Delete",),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: ("Delete",),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ("Update",),
    RequestCode.CLONE_GROUP_OFFSET: (),  # Get on one group, Update on the other
    RequestCode.RESUME_CHECK_HALF_MESSAGE: ("Update",),
}
_READ_ONLY: Final = (
    *("GET_", "QUERY_", "SEARCH_", "VIEW_", "ALL_", "AUTH_GET_", "AUTH_LIST_"),
    "INVOKE_BROKER_TO_GET_",
)
"""Prefixes of the names of read requests, which need the action Get."""


def needed_actions(request_code: int, resource_type: str) -> tuple[str, ...]:
    """Return the actions, as access lists call them, one of which a request needs.

    ``resource_type`` is ``Topic``, ``Group`` or ``Cluster``; empty if the answer does not say. The
    most usual action comes first. There are none for a request that this client does not make, or
    that needs different actions on several resources.
    """
    is_of_group = resource_type == "Group"  # a retry topic counts as its group
    if request_code in _NEEDED_ACTIONS:
        found = _NEEDED_ACTIONS[request_code]
        return tuple(each for each in found if each != "Pub") if is_of_group else found
    if request_code in _PUBLISHING:
        return ("Sub",) if is_of_group else ("Pub",)
    if request_code in _CONSUMING:
        return ("Sub",)
    if request_code not in RequestCode.__members__.values():
        return ()
    return ("Get",) if RequestCode(request_code).name.startswith(_READ_ONLY) else ("Update",)


def _authentication_refusal(remark: str | None) -> tuple[str | None, str]:
    """Return the user that a broker does not accept, if it names one, and what to do."""
    for pattern, remedy in _AUTHENTICATION_REFUSALS:
        found = pattern.search(remark or "")
        if found:
            user = found.groupdict().get("user")
            return user, remedy.format(user=shlex.quote(user or ""))
    return None, _NO_CREDENTIALS


def _access_refusal(remark: str | None) -> Mapping[str, str]:
    """Return the user, the resource and the detail that a refusal of an access list names."""
    for pattern in _ACCESS_REFUSALS:
        found = pattern.search(remark or "")
        if found:
            return {name: text for name, text in found.groupdict().items() if text}
    return {}


def refusal(code: int, remark: str | None, address: str, request_code: int) -> BrokerRefused:
    """Return the error for a response code, of the matching class."""
    is_of_list = code == ResponseCode.SYSTEM_ERROR and _ACL_EXCEPTION in (remark or "")
    if is_of_list or code == ResponseCode.NO_PERMISSION:
        kind: type[BrokerRefused] = NoPermission
        if any(pattern.search(remark or "") for pattern, _ in _AUTHENTICATION_REFUSALS):
            kind = AuthenticationFailed
        elif _access_refusal(remark):
            kind = AccessDenied
        return kind(code, remark, address, request_code)
    return _REFUSAL_CLASSES.get(code, BrokerRefused)(code, remark, address, request_code)
