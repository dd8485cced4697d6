"""Validity: reads the dates between which the certificates of a PEM file are valid.

Python verifies certificates, but has no public way to read the dates of one's own. This module
reads them from the DER bytes, which nest values of the form tag, length, content:

    Certificate SEQUENCE
      TBSCertificate SEQUENCE
        [0] version          missing in version 1
        INTEGER serial number
        SEQUENCE signature algorithm
        SEQUENCE issuer
        SEQUENCE validity    two times: not before, not after
        ...
"""

from __future__ import annotations

import base64
import re
from datetime import datetime, timezone
from typing import Final, NamedTuple

_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_INTEGER: Final = 0x02
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_LENGTH_BYTES_MAX: Final = 4
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
_TIME: Final = re.compile(rb"([0-9]{10})([0-9]{2})?Z")


class Validity(NamedTuple):
    """The dates between which one certificate is valid, in seconds since 1970, both included."""

    not_before: int
    not_after: int


def certificates_of_pem(text: str) -> list[bytes]:
    """Return the certificates in a PEM text in DER, in order; other content is ignored."""
    return [_bytes_of(found[1]) for found in _PEM.finditer(text)]


def validity_of_der(data: bytes) -> Validity:
    """Return the validity of a certificate in DER."""
    certificate = _Values(data).read(_SEQUENCE)
    values = _Values(_Values(certificate).read(_SEQUENCE))
    if values.next_tag == _VERSION:
        values.read(_VERSION)
    values.read(_INTEGER)
    values.read(_SEQUENCE)
    values.read(_SEQUENCE)
    times = _Values(values.read(_SEQUENCE))
    return Validity(times.read_time(), times.read_time())


def _bytes_of(base64_text: str) -> bytes:
    try:
        return base64.b64decode("".join(base64_text.split()), validate=True)
    except ValueError as error:
        raise ValueError(f"its base64 is damaged: {error}") from error


class _Values:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def next_tag(self) -> int | None:
        return self._data[self._at] if self._at < len(self._data) else None

    def read(self, tag: int) -> bytes:
        if self.next_tag != tag:
            raise ValueError(f"needed the tag {tag:#04x} at byte {self._at}")
        length = self._read_length()
        end = self._at + length
        if end > len(self._data):
            raise ValueError(f"a value of {length} bytes at byte {self._at} is cut short")
        content, self._at = self._data[self._at : end], end
        return content

    def read_time(self) -> int:
        tag = self.next_tag
        if tag not in (_UTC_TIME, _GENERALIZED_TIME):
            raise ValueError(f"needed a time at byte {self._at}")
        text = self.read(tag)
        if tag == _UTC_TIME:  # UTCTime has years from 1950 to 2049
            text = (b"19" if text >= b"50" else b"20") + text
        century, found = text[:2], _TIME.fullmatch(text[2:])
        if found is None or not century.isdigit():
            raise ValueError(f"needed a time in UTC, found {text[:20]!r}")
        digits = (century + found[1] + (found[2] or b"00")).decode()
        moment = datetime.strptime(digits, "%Y%m%d%H%M%S").replace(tzinfo=timezone.utc)
        return int(moment.timestamp())

    def _read_length(self) -> int:
        data, self._at = self._data, self._at + 1
        first = data[self._at : self._at + 1]
        self._at += 1
        if not first:
            raise ValueError("a value has no length")
        if first[0] < 0x80:
            return first[0]
        size = first[0] & 0x7F
        more = data[self._at : self._at + size]
        if not 0 < size <= _LENGTH_BYTES_MAX or len(more) < size:
            raise ValueError(f"the length at byte {self._at} cannot be read")
        self._at += size
        return int.from_bytes(more, "big")
