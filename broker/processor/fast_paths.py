"""Shared parts of the fast paths of sends and pulls: templates of headers, and caches by client.

A template is a request header, cut at the values in which later headers may differ. It is valid if
the codec decodes other values at the cuts into their fields, and leaves all other fields unchanged
(`is_changed_header`). `cut_signature` removes the signature, which differs in each request and is
verified each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Final, Generic, TypeVar

from rmq_spark.errors import HeaderError
from rmq_spark.wire.codes import CommandFlag, ResponseCode, SerializeType
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.remoting.framing import Buffer
from rmq_spark.wire.remoting.header import Header
from rmq_spark.wire.remoting.header_json import JsonResponseTemplate, decode_header
from rmq_spark.wire.signature import SIGNATURE

from ..common.channel import Channel

_SIGNATURE_MARK: Final = f'"{SIGNATURE}":"'.encode()
_SIGNATURE_BYTES: Final = 28
"""An HMAC-SHA1 in base64."""


def cut_signature(header: bytes) -> tuple[bytes, bytes]:
    """Return a header without the value of its signature, and the signature.

    `is_changed_header` has tested the template of such a header with an empty signature, so the
    bytes cut from other headers are the value of that field as well.
    """
    at = header.find(_SIGNATURE_MARK)
    if at < 0:
        return header, b""
    start = at + len(_SIGNATURE_MARK)
    end = start + _SIGNATURE_BYTES
    return header[:start] + header[end:], header[start:end]


def is_changed_header(
    other: bytes, request: RemotingCommand, opaque: int, changed: Mapping[str, str]
) -> bool:
    """Return whether a header equals a request's, except for opaque and the changed fields.

    The signature of a signed request has been cut.
    """
    fields = {**request.ext_fields, **changed}
    if SIGNATURE in fields:
        fields[SIGNATURE] = ""
    expected = Header(*request[:7])._replace(opaque=opaque, ext_fields=fields)
    try:
        return decode_header(other) == expected
    except HeaderError:
        return False


_JSON = SerializeType.JSON
_ONE_WAY = CommandFlag.ONE_WAY.value


class ResponseTemplate:
    """A success response of one handler, with some constant and some variable ext fields."""

    def __init__(
        self,
        varying_fields: Mapping[str, str],
        constant_fields: Mapping[str, str] | None = None,
        remark: str | None = None,
    ) -> None:
        """Store the fields; ``varying_fields`` have formats. No value may need a JSON escape."""
        self._varying_fields = varying_fields
        self._constant_fields = dict(constant_fields or {})
        self._remark = remark
        model = RemotingCommand(0).respond(ResponseCode.SUCCESS, remark, self._constant_fields)
        self._json = JsonResponseTemplate(Header(*model[:7]), varying_fields)

    def send(
        self,
        connection: Channel,
        request: RemotingCommand,
        *values: object,
        body: Sequence[Buffer] = (),
    ) -> None:
        """Send the response, if one is wanted, with values in the order of the formats."""
        if request.flag & _ONE_WAY:
            return
        is_json = request.serialize_type is _JSON
        if is_json and not body:
            connection.send_frame(self._json.encode(request.opaque, *values))
            return
        body_bytes = sum(map(len, body))
        if is_json:
            connection.send_frame(
                self._json.encode(request.opaque, *values, body_bytes=body_bytes), body
            )
            return
        texts = ("\n".join(self._varying_fields.values()) % values).split("\n")
        fields = {**self._constant_fields, **dict(zip(self._varying_fields, texts, strict=True))}
        response = request.respond(ResponseCode.SUCCESS, self._remark, fields)
        connection.send_frame(response.encode_head(body_bytes), body)

    def send_all(self, connection: Channel, rows: Iterable[tuple[object, ...]]) -> None:
        """Send responses without body to JSON requests; a row has an opaque and its values."""
        frames = self._json.encode_all(rows)
        if frames:
            connection.send_frame(frames)


# ---- Caches of what clients' requests have in common, with a limit on all entries together.


class LearningBudget:
    """Limits how many cache entries the requests of one client may create."""

    __slots__ = ("_cost", "_debt", "_debt_max")

    def __init__(self, cost: int, count_max: int) -> None:
        """Create a budget: an entry costs ``cost`` requests; ``count_max`` may be unpaid."""
        self._cost = cost
        self._debt_max = cost * count_max
        self._debt = 0

    def spend(self) -> bool:
        """Return whether the budget permits one more entry, and charge it."""
        if self._debt >= self._debt_max:
            return False
        self._debt += self._cost
        return True

    def repay(self, requests: int) -> None:
        """Record requests that used cached entries; they pay for new ones."""
        self._debt = max(self._debt - requests, 0)


_CacheT = TypeVar("_CacheT", bound=Sized)


class PerClientCache(Generic[_CacheT]):
    """The cached entries of all clients; its length is their number."""

    def __init__(self, count_max: int) -> None:
        self._clients: dict[Channel, _CacheT] = {}
        self._count_max = count_max
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, connection: Channel) -> _CacheT | None:
        """Return the cached entries of a client, or None if there are none."""
        return self._clients.get(connection)

    def discard(self, connection: Channel) -> None:
        """Discard the entries of a disconnected client."""
        client_cache = self._clients.pop(connection, None)
        if client_cache is not None:
            self._count -= len(client_cache)

    def add_count(self, change: int) -> None:
        """Add a change to the number of entries; past the limit, discard the oldest clients'."""
        self._count += change
        while self._count > self._count_max:
            self.discard(next(iter(self._clients)))
