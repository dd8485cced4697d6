"""The JSON header codec, serialize type 0: the one that every RocketMQ peer reads.

    {"code":11,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,
     "serializeTypeCurrentRPC":"JSON","version":409}

Written as Java writes it: compact, keys in alphabetical order, absent fields omitted. Read as Java
reads it: unknown keys are ignored, scalars among the ext fields become text, nulls are dropped;
spellings of clients in other languages are accepted as in bodies (`body_codec`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from rmq_spark.errors import HeaderError
from rmq_spark.wire.codes import LanguageCode, SerializeType
from rmq_spark.wire.remoting.framing import Buffer, encode_prefix
from rmq_spark.wire.remoting.header import (
    EXT_FIELDS_MAX,
    LANGUAGES,
    NO_EXT_FIELDS,
    Header,
    check_ext_count,
    check_ints,
    check_writable,
    encoding_error,
    is_text,
)
from rmq_spark.wire.remoting.java_numbers import int_from_json, plain_name
from rmq_spark.wire.remoting.json_nesting import check_nesting

_FOUR_INTS = struct.Struct(">4i")
_PREFIX = struct.Struct(">iI")
_LENGTH_BYTES = 4
_JSON = SerializeType.JSON.value
_NAMES = dict.fromkeys(("code", "extFields", "flag", "language", "opaque", "remark", "version"))
_PLAIN_NAMES = {plain_name(name): name for name in _NAMES}
_PLAIN_LANGUAGES = {plain_name(language.name): language for language in LanguageCode}
_OPAQUE_PLACEHOLDER = 1_234_567_890
_new_header: Callable[[type[Header], tuple[Any, ...]], Header] = tuple.__new__


def encode_header(header: Header) -> bytes:
    """Return the header as JSON text."""
    check_writable("JSON header", header)
    if not is_text(header.ext_fields.values()):
        raise encoding_error("JSON header", header)
    fields: dict[str, Any] = {"code": header.code}
    if header.ext_fields:
        fields["extFields"] = dict(header.ext_fields)
    fields["flag"] = header.flag
    fields["language"] = header.language.name
    fields["opaque"] = header.opaque
    if header.remark is not None:
        fields["remark"] = header.remark
    fields["serializeTypeCurrentRPC"] = "JSON"
    fields["version"] = header.version
    try:
        return orjson.dumps(fields)
    except (TypeError, ValueError) as error:
        raise encoding_error("JSON header", header) from error


def decode_header(data: Buffer) -> Header:
    """Decode a header from JSON text."""
    check_nesting(data, "JSON header", HeaderError)
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise _fault(error.pos, "JSON", bytes(data[error.pos : error.pos + 40])) from error
    try:
        return _strict_header(fields)
    except (AttributeError, KeyError, TypeError, ValueError, struct.error):
        return _lenient_header(fields)


def _strict_header(fields: Any) -> Header:
    """Return a header that has all fields, as a client's request does; raise if it does not."""
    ext_fields = fields["extFields"]
    code, version, opaque, flag = (
        fields["code"],
        fields["version"],
        fields["opaque"],
        fields["flag"],
    )
    _FOUR_INTS.pack(code, version, opaque, flag)
    "".join(ext_fields.values())  # raises TypeError if a value is not text
    if (
        not type(code) is type(version) is type(opaque) is type(flag) is int
        or len(ext_fields) > EXT_FIELDS_MAX
        or "remark" in fields
    ):
        raise ValueError
    language = LANGUAGES[fields["language"]]
    return _new_header(Header, (code, language, version, opaque, flag, None, ext_fields))


def _lenient_header(fields: Any) -> Header:
    if type(fields) is not dict:
        raise _fault(0, "an object", fields)
    if not fields.keys() <= _NAMES.keys():
        fields = {
            known: value
            for name, value in fields.items()
            if (known := name if name in _NAMES else _PLAIN_NAMES.get(plain_name(name))) is not None
            and (known == name or fields.get(known) is None)
        }
    get = fields.get
    remark = get("remark")
    if remark is not None:
        remark = _text("remark", remark)
    code: Any = _int("code", get("code"), None)  # Any until check_ints has checked it
    version, opaque, flag = (_int(name, get(name), 0) for name in ("version", "opaque", "flag"))
    check_ints(code, version, opaque, flag)
    language = _language(get("language"))
    return Header(code, language, version, opaque, flag, remark, _ext_fields(get("extFields")))


def _fault(at: int | str, needed: str, found: object) -> HeaderError:
    return HeaderError("JSON header", at=at, needed=needed, found=found)


def _int(name: str, value: Any, default: int | None) -> Any:
    if type(value) is int:
        return value
    try:
        number = int_from_json(value)
    except ValueError:
        raise _fault(name, "an integer", value) from None
    return default if number is None else number


def _language(value: Any) -> LanguageCode:
    if value is None:
        return LanguageCode.JAVA
    if isinstance(value, str):
        if value in LANGUAGES:
            return LANGUAGES[value]
        if not value.isdecimal():
            return _PLAIN_LANGUAGES.get(plain_name(value), LanguageCode.OTHER)
    return LANGUAGES.get(_int("language", value, None), LanguageCode.OTHER)


def _ext_fields(fields: object) -> Mapping[str, str]:
    if not fields or fields == "null":
        return NO_EXT_FIELDS
    if type(fields) is not dict:
        raise _fault("extFields", "an object", fields)
    check_ext_count(len(fields))
    if is_text(fields.values()):
        return fields
    return {
        key: _text(f"extFields.{key}", value) for key, value in fields.items() if value is not None
    }


def _text(field: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise _fault(field, "text", value)


class JsonResponseTemplate:
    """A template of responses that differ only in a few numbers, filled in without a codec.

    A broker sends tens of thousands of them a second. Varying text must not need escapes in JSON.
    """

    def __init__(self, header: Header, varying: Mapping[str, str]) -> None:
        """Prepare the fixed parts; ``varying`` has the formats of the ext fields that vary."""
        marks = {name: f"<{number}>" for number, name in enumerate(varying)}
        pattern = encode_header(
            header._replace(ext_fields={**header.ext_fields, **marks}, opaque=_OPAQUE_PLACEHOLDER)
        ).decode()
        pattern = pattern.replace("%", "%%").replace(
            f'"opaque":{_OPAQUE_PLACEHOLDER}', '"opaque":%d'
        )
        # JSON puts the ext fields before the opaque, in the order in which they are listed here.
        for name, mark in marks.items():
            pattern = pattern.replace(mark, varying[name])
        self._pattern = pattern

    def encode(self, opaque: int, *values: object, body_bytes: int = 0) -> bytes:
        """Return the frame up to its body; values are in the order of the formats."""
        header = (self._pattern % (*values, opaque)).encode()
        return encode_prefix(_JSON, header, body_bytes)

    def encode_all(self, rows: Iterable[tuple[object, ...]]) -> bytes:
        """Return the frames of many responses without bodies, given their values and opaques."""
        pattern, pack = self._pattern, _PREFIX.pack
        pieces: list[bytes] = []
        for row in rows:
            header = (pattern % row).encode()
            size = len(header)
            pieces += pack(_LENGTH_BYTES + size, _JSON << 24 | size), header
        return b"".join(pieces)
