"""The RocketMQ header codec, serialize type 1: binary.

    i16 code   i8 language   i16 version   i32 opaque   i32 flag
    i32 remark length, remark in UTF-8 (length 0: none)
    i32 ext length in bytes (0: none), then repeatedly
        i16 key length, key   i32 value length, value

Codes above 32,767 do not fit: RocketMQ's own POP requests need the JSON header.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache

from rmq_spark.errors import HeaderError
from rmq_spark.wire.codes import LanguageCode
from rmq_spark.wire.remoting.framing import Buffer
from rmq_spark.wire.remoting.header import (
    INT16,
    LANGUAGES,
    NO_EXT_FIELDS,
    Header,
    check_ext_count,
    check_writable,
    encoding_error,
)

CODE_MAX = (1 << 15) - 1
"""The largest code that fits into this header."""

_FIXED = struct.Struct(">hbhiii")
_KEY_LENGTH = struct.Struct(">h")
_LENGTH = struct.Struct(">i")


def encode_header(header: Header) -> bytes:
    """Return the header as bytes."""
    check_writable("binary header", header)
    try:
        remark = (header.remark or "").encode()
        pieces: list[bytes] = []
        for key, text in header.ext_fields.items():
            value = text.encode()
            pieces += (_encode_key(key), _LENGTH.pack(len(value)), value)
        ext = b"".join(pieces)
        fixed = _FIXED.pack(*header[:5], len(remark))
    except (struct.error, AttributeError, UnicodeEncodeError) as error:
        raise encoding_error("binary header", header, INT16) from error
    return b"".join((fixed, remark, _LENGTH.pack(len(ext)), ext))


def decode_header(data: Buffer) -> Header:
    """Decode a header from bytes."""
    end = len(data)
    ext_length_at = _FIXED.size
    if end >= ext_length_at:
        code, language, version, opaque, flag, remark_length = _FIXED.unpack_from(data)
        ext_length_at += remark_length
    if not _FIXED.size <= ext_length_at <= end - _LENGTH.size:
        raise _fault(
            min(end, _FIXED.size - _LENGTH.size),
            "a fixed part, a remark and a length of the ext fields",
            f"{end} bytes, {ext_length_at - _FIXED.size} of remark",
        )
    ext_at = ext_length_at + _LENGTH.size
    (ext_length,) = _LENGTH.unpack_from(data, ext_length_at)
    if ext_length != end - ext_at:
        raise _fault(ext_length_at, f"ext length {end - ext_at}", ext_length)
    remark = _text(data, _FIXED.size, ext_length_at) if remark_length else None
    return Header(
        code,
        LANGUAGES.get(language, LanguageCode.OTHER),
        version,
        opaque,
        flag,
        remark,
        _decode_fields(bytes(data[ext_at:]), ext_at) if ext_length else NO_EXT_FIELDS,
    )


def _fault(at: int, needed: str, found: object) -> HeaderError:
    return HeaderError("binary header", at=at, needed=needed, found=found)


@lru_cache(maxsize=1024)  # keys are field names: the same few, in every frame
def _encode_key(key: str) -> bytes:
    data = key.encode()
    return _KEY_LENGTH.pack(len(data)) + data


def _decode_fields(data: bytes, data_at: int) -> Mapping[str, str]:
    """Decode alternating keys and values; ASCII is decoded once, and then only sliced."""
    fields: dict[str, str] = {}
    ascii_text = str(data, "ascii") if data.isascii() else None
    end = len(data)
    at = 0
    count = 0
    while at < end:
        value_length_at = value_at = next_at = end + 1
        if at + 2 <= end:
            value_length_at = at + 2 + (data[at] << 8 | data[at + 1])
            value_at = value_length_at + 4
        if value_at <= end:
            next_at = value_at + int.from_bytes(data[value_length_at:value_at], "big")
        if next_at > end:
            raise _fault(
                data_at + at, "a key and a value within the ext fields", data[at : at + 40]
            )
        if ascii_text is not None:
            fields[ascii_text[at + 2 : value_length_at]] = ascii_text[value_at:next_at]
        else:
            key = _text(data, at + 2, value_length_at, data_at)
            fields[key] = _text(data, value_at, next_at, data_at)
        at = next_at
        count += 1  # not len(fields): a key may occur many times
        check_ext_count(count)
    return fields


def _text(data: Buffer, start: int, end: int, data_at: int = 0) -> str:
    try:
        return str(data[start:end], "utf-8")
    except UnicodeDecodeError as error:
        raise _fault(data_at + start + error.start, "UTF-8", bytes(data[start:end])) from error
