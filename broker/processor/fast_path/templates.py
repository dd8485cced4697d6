"""Templates: `ResponseTemplate` builds a handler's most frequent response in less time.

Only numbers differ from one response to the next. For a client that uses JSON, as all do by
default, they are filled into a prepared frame; for others the response goes through the codec. The
client reads the same either way.

`cut_signature` takes out of a header what differs in each signed request. Templates are made of the
rest, and the signature is verified for each.

`is_changed_header` tests templates of request headers, which are cut where later ones may differ: a
template is valid if the codec finds other values that are put there in their fields, and all else
unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rmq_spark.errors import HeaderError
from rmq_spark.wire.codes import CommandFlag, ResponseCode, SerializeType
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.header import Header
from rmq_spark.wire.header_json import JsonResponseTemplate, decode_header
from rmq_spark.wire.signature import SIGNATURE

from ...common.channel import Channel

_SIGNATURE_MARK: Final = f'"{SIGNATURE}":"'.encode()
_SIGNATURE_BYTES: Final = 28
"""An HMAC-SHA1 in base64."""


def cut_signature(header: bytes) -> tuple[bytes, bytes]:
    """Return a header with an empty signature in place of its own, and the signature.

    A template of such a header is tested by `is_changed_header`: the codec must find the empty
    signature. So what is cut out of headers of the same form is the value of that field, too.
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
        """Create a template from the varying fields' formats; no value may need a JSON escape."""
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
        """Send the response, unless none is wanted, with values in the order of the formats."""
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
        answer = request.respond(ResponseCode.SUCCESS, self._remark, fields)
        connection.send_frame(answer.encode_head(body_bytes), body)

    def send_all(self, connection: Channel, rows: Iterable[tuple[object, ...]]) -> None:
        """Send responses to JSON requests, without body, from each one's values and opaque."""
        frames = self._json.encode_all(rows)
        if frames:
            connection.send_frame(frames)
