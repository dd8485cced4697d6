"""PullHeaderTemplate: the JSON header of a pull, cut where it differs from the next one's.

    {"code":11,"extFields":{"queueId":"3", ... "commitOffset":"0","topic":"T","queueOffset":"17", ..
    |--------------------- first -----------------------------||-|------- second --------||--|------

                        ... },"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC": ... }
                        ------------- third ---------------------||------------ last ---------------

The three numbers may come in any order, which depends on the client. A header with the same bytes
around them has the same content otherwise: two of the numbers are in strings, which a quote ends,
and one is a plain number. When a template is built, it is tested with other numbers: the codec must
find these in their fields, and all else unchanged.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from rmq_spark.wire.codes import SerializeType
from rmq_spark.wire.command import RemotingCommand

from ..fast_path.header_template import is_changed_header

_FIELDS = ("queueOffset", "commitOffset")
_MARKS: Final = (*(f'"{name}":"'.encode() for name in _FIELDS), b'"opaque":')
_PROBE_VALUES: Final = (b"1234567890123456", b"6543210987654321", b"1234567890")
_DIGITS = b"0123456789"
_DIGITS_MAX = 18
"""Numbers of more digits may be too large for their field, which is for the codec to say."""
_OPAQUE_END = 1 << 31
_HEADER_BYTES_MAX = 2_048
"""The most bytes of a shape, as it is kept while its client is there."""


class PullHeaderTemplate(NamedTuple):
    """The bytes that headers of one shape have in common, and the order of the numbers."""

    pieces: tuple[bytes, bytes, bytes, bytes]
    order: tuple[int, int, int]
    """The places of queue offset, commit offset and opaque among the numbers."""

    @property
    def marks(self) -> tuple[bytes, bytes]:
        """The marks before the first and the second number."""
        return _MARKS[self.order.index(0)], _MARKS[self.order.index(1)]

    def match(self, header: bytes) -> tuple[int, int, int] | None:
        """Return the queue offset, the commit offset and the opaque of a header of this shape.

        None if it has another. The caller has already compared its first piece.
        """
        (first, second, third, last), (queue_offset, commit_offset, opaque) = self
        start = len(first)
        end = header.find(second, start)
        next_start = end + len(second)
        next_end = header.find(third, next_start)
        numbers = (
            header[start:end],
            header[next_start:next_end],
            header[next_end + len(third) : -len(last)],
        )
        if (
            end < 0
            or next_end < 0
            or not header.endswith(last)
            or not all(map(bytes.isdigit, numbers))
            or max(map(len, numbers)) > _DIGITS_MAX
        ):
            return None
        text = numbers[opaque]
        found = int(text)
        if found >= _OPAQUE_END or (len(text) > 1 and text.startswith(b"0")):
            return None
        return int(numbers[queue_offset]), int(numbers[commit_offset]), found


def header_prefix(header: bytes, marks: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """Return what precedes a header's first number, and what lies between that and the second.

    These identify nearly all shapes of a client, whose headers have these marks.
    """
    before, _, rest = header.partition(marks[0])
    return before, rest.partition(marks[1])[0].lstrip(_DIGITS)


def build_template(header: bytes, request: RemotingCommand) -> PullHeaderTemplate | None:
    """Return the shape of a request's header, or None if it cannot be cut safely."""
    if request.serialize_type is not SerializeType.JSON or len(header) > _HEADER_BYTES_MAX:
        return None
    numbers = (
        *(request.ext_fields.get(name, "").encode() for name in _FIELDS),
        b"%d" % request.opaque,
    )
    places = sorted((header.find(mark), n) for n, mark in enumerate(_MARKS))
    pieces: list[bytes] = []
    at = 0
    for place, n in places:
        start = place + len(_MARKS[n])
        if place < at or not numbers[n] or not header.startswith(numbers[n], start):
            return None
        pieces.append(header[at:start])
        at = start + len(numbers[n])
    came = [n for _, n in places]
    first, second, third = pieces
    order = came.index(0), came.index(1), came.index(2)
    shape = PullHeaderTemplate((first, second, third, header[at:]), order)
    others = [_PROBE_VALUES[n] for n in came]
    return shape if _is_safe(shape, others, request) else None


def _is_safe(template: PullHeaderTemplate, probes: list[bytes], request: RemotingCommand) -> bool:
    """Return whether other numbers, put into the cuts, are what changes, and all that does."""
    first, second, third, last = template.pieces
    other = b"".join((first, probes[0], second, probes[1], third, probes[2], last))
    changed = dict(zip(_FIELDS, map(bytes.decode, _PROBE_VALUES[:2]), strict=True))
    opaque = int(_PROBE_VALUES[2])
    return is_changed_header(other, request, opaque, changed) and template.match(other) is not None
