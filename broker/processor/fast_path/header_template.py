"""HeaderCuts: whether a header of JSON was cut where it may be: other values are put in, and read.

A shape of headers is made from one of them. It is good if the codec finds the other values in their
fields, and all else as it was. Where the cuts are is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping

from rmq_spark.errors import HeaderError
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.header import Header
from rmq_spark.wire.header_json import decode_header


def is_changed_header(
    other: bytes, request: RemotingCommand, opaque: int, changed: Mapping[str, str]
) -> bool:
    """Return whether a header says what that of a request does, but for opaque and some fields."""
    fields = {**request.ext_fields, **changed}
    expected = Header(*request[:7])._replace(opaque=opaque, ext_fields=fields)
    try:
        return decode_header(other) == expected
    except HeaderError:
        return False
