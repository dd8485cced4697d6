"""Header: the content of a frame's header, independent of its codec.

Each of the three codecs (`header_json`, `header_rocketmq`, `header_msgpack`) converts bytes to a
`Header` and back. They share the checks here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from rmq_spark.errors import HeaderError
from rmq_spark.wire.codes import LanguageCode

EXT_FIELDS_MAX = 128
NO_EXT_FIELDS: Mapping[str, str] = MappingProxyType({})

_FOUR_INTS = struct.Struct(">4i")
INT16 = (-(1 << 15), (1 << 15) - 1)
INT32 = (-(1 << 31), (1 << 31) - 1)

LANGUAGES: Mapping[object, LanguageCode] = {
    **{language.value: language for language in LanguageCode},
    **{language.name: language for language in LanguageCode},
}
"""Languages by number or name; unknown ones read as OTHER, because RocketMQ keeps adding some."""


class Header(NamedTuple):
    """The header of a frame; a tuple, because a broker makes some ten thousand of them a second."""

    code: int
    language: LanguageCode
    version: int
    opaque: int
    flag: int
    remark: str | None
    ext_fields: Mapping[str, str]


def check_ints(code: Any, version: Any, opaque: Any, flag: Any) -> None:
    """Refuse numbers that are not 32-bit integers, by one call into C for all four."""
    try:
        _FOUR_INTS.pack(code, version, opaque, flag)
    except struct.error:
        pass
    else:
        # bool can be packed, too. Decoded values are always int; values to encode may be enum
        # members.
        if type(code) is type(version) is type(opaque) is type(flag) is int:
            return
        if bool not in (type(code), type(version), type(opaque), type(flag)):
            return
    check_int(code, "code")
    check_int(version, "version")
    check_int(opaque, "opaque")
    check_int(flag, "flag")


def check_writable(subject: str, header: Header) -> None:
    """Refuse a header that no reader would accept, whichever codec is to write it."""
    code, language, version, opaque, flag, remark, ext_fields = header
    check_ints(code, version, opaque, flag)
    check_ext_count(len(ext_fields))
    if type(language) is not LanguageCode:
        raise HeaderError(subject, at="language", needed="a LanguageCode", found=language)
    if remark is not None and not isinstance(remark, str):
        raise HeaderError(subject, at="remark", needed="text", found=remark)


def is_text(texts: Iterable[object]) -> bool:
    """Return whether all are text; `join` checks that at the speed of C."""
    try:
        "".join(texts)  # type: ignore[arg-type]  # that is what the call finds out
    except TypeError:
        return False
    return True


def check_int(value: object, field: str, bounds: tuple[int, int] = INT32) -> int:
    """Return the value if it is an integer or an enum member that fits the field's width."""
    if not isinstance(value, int) or isinstance(value, bool) or not bounds[0] <= value <= bounds[1]:
        raise HeaderError(
            "header", at=field, needed=f"an integer from {bounds[0]} to {bounds[1]}", found=value
        )
    return value


def check_ext_count(count: int) -> None:
    """Refuse a header of thousands of tiny fields before anything is built from them."""
    if count > EXT_FIELDS_MAX:
        raise HeaderError(
            "header", at="extFields", needed=f"at most {EXT_FIELDS_MAX} fields", found=count
        )


def encoding_error(subject: str, header: Header, bounds: tuple[int, int] = INT32) -> HeaderError:
    """Return an error that names the field that prevented the header from being written."""
    try:
        check_int(header.code, "code", bounds)
        check_int(header.version, "version", bounds)
    except HeaderError as error:
        return error
    fields: dict[Any, Any] = {"remark": header.remark or "", **header.ext_fields}
    for key, value in fields.items():
        for text in (key, value):
            if not _is_utf8(text):
                return HeaderError(
                    subject, at=str(key), needed="text that UTF-8 can encode", found=text
                )
    return HeaderError(subject, at="extFields", needed="keys to 32767 bytes", found=header)


def _is_utf8(text: Any) -> bool:
    try:
        text.encode()
    except (AttributeError, UnicodeEncodeError):
        return False
    return True
