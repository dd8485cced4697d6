"""Header template check: verifies that a JSON header was cut at the right places.

A template is built from one header, which is cut where later ones may differ. It is valid if the
codec finds other values that are put there in their fields, and all else unchanged.
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
    """Return whether a header equals that of a request except for opaque and some fields."""
    fields = {**request.ext_fields, **changed}
    expected = Header(*request[:7])._replace(opaque=opaque, ext_fields=fields)
    try:
        return decode_header(other) == expected
    except HeaderError:
        return False
