"""SendHeaderTemplate: the JSON header of a send, cut where it differs from the next one's.

    {"code":310,"extFields":{"a":"G","b":"T", ... "g":"1700000000000","h":"0","i":"KEYS..","j":"0",
    |-------------------- prefix ----------------|mark|---- born ---|-- middle --|-texts-|-----

               ... },"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON", ... }
               ---------------- suffix -----------------|--|---------------- end -----------------|

Born is the birth timestamp in 13 digits, texts are the properties, and the last cut is the opaque.
A header with the same bytes around them has the same content otherwise: each value that is cut out
is in a string, which its first quote ends, or is a number. When a template is built, it is tested
with other values: the codec must find these in their fields, and all else unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rmq_spark.wire.codes import SerializeType
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR

from ...fast_path.header_template import is_changed_header

BORN_MARK: Final = b'"g":"'
BORN_DIGITS: Final = 13
QUOTE: Final = b'"'
_NAME_VALUE_ESCAPED, _PROPERTY_ESCAPED = "\\u0001", "\\u0002"
_PROPERTIES_MARK = b'"i":"'
_OPAQUE_MARK = b'"opaque":'
_OPAQUE_END = 1 << 31
_HEADER_BYTES_MAX = 4_096
"""The most bytes of a shape, as it is kept while its client is there."""

_OTHER_BORN, _OTHER_OPAQUE = b"1234567890123", 1_234_567_890
_OTHER_TEXTS = b"KEYS\\u0001o\\u0002"


class SendHeaderTemplate(NamedTuple):
    """The bytes that headers of one shape have in common."""

    prefix: bytes
    middle: bytes
    suffix: bytes
    end: bytes

    def match(self, rest: bytes) -> tuple[int, bytes, int] | None:
        """Return birth, texts and opaque of a header that has the shape; else None.

        ``rest`` is what follows `BORN_MARK`; the caller has already compared the bytes before that.
        `unescape_all` decodes the texts, of many headers at once.
        """
        _, middle, behind, end = self
        texts, _, last = rest.partition(behind)
        texts_at = BORN_DIGITS + len(middle)
        born, opaque = texts[:BORN_DIGITS], last[: -len(end)]
        if (
            texts[BORN_DIGITS:texts_at] != middle
            or last[-len(end) :] != end
            or not (born.isdigit() and opaque.isdigit())
            or (len(opaque) > 1 and opaque.startswith(b"0"))
        ):
            return None
        number = int(opaque)
        return (int(born), texts[texts_at:], number) if number < _OPAQUE_END else None


def unescape_all(texts: Sequence[bytes]) -> str | None:
    """Return the texts of many headers as JSON reads them, with a quote between each two.

    None if one of them needs the codec: it holds a quote, an escape other than of the separators
    of properties, or anything but printable ASCII.
    """
    joined = QUOTE.join(texts)
    if joined.count(QUOTE) != len(texts) - 1 or not joined.isascii():
        return None
    text = joined.decode()
    if not text.isprintable():
        return None
    text = text.replace(_NAME_VALUE_ESCAPED, NAME_VALUE_SEPARATOR)
    text = text.replace(_PROPERTY_ESCAPED, PROPERTY_SEPARATOR)
    return None if "\\" in text else text


def header_prefix(header: bytes) -> bytes:
    """Return the beginning of a header, which identifies its shape."""
    return header.partition(BORN_MARK)[0]


def build_template(header: bytes, request: RemotingCommand) -> SendHeaderTemplate | None:
    """Return the shape of a request's header, or None if it cannot be cut safely."""
    if request.serialize_type is not SerializeType.JSON:
        return None
    before, _, rest = header.partition(BORN_MARK)
    middle, mark, others = rest[BORN_DIGITS:].partition(_PROPERTIES_MARK)
    _, quote, last = others.partition(QUOTE)
    behind, opaque_mark, opaque_and_end = last.rpartition(_OPAQUE_MARK)
    end = opaque_and_end[len(str(request.opaque)) :]
    shape = SendHeaderTemplate(before, middle + mark, quote + behind + opaque_mark, end)
    if not end or not opaque_mark or sum(map(len, shape)) > _HEADER_BYTES_MAX:
        return None
    return shape if _is_safe(shape, request) else None


def _is_safe(template: SendHeaderTemplate, request: RemotingCommand) -> bool:
    """Return whether other values, put into the cuts, are what changes, and all that does."""
    before, middle, behind, end = template
    opaque = str(_OTHER_OPAQUE).encode()
    other = b"".join((before, BORN_MARK, _OTHER_BORN, middle, _OTHER_TEXTS, behind, opaque, end))
    changed = {"g": _OTHER_BORN.decode(), "i": "KEYS\1o\2"}
    return is_changed_header(other, request, _OTHER_OPAQUE, changed)
