"""The MessagePack header codec, serialize type 2: our own, one array.

    [code, language, version, opaque, flag, remark or nil, {key: value, ...}]

No Java peer reads it: it is used only with a peer that has agreed to it (`extensions.py`).
"""

from __future__ import annotations

from rmq_spark.errors import HeaderError, Verbatim
from rmq_spark.wire.codes import LanguageCode
from rmq_spark.wire.remoting.framing import Buffer
from rmq_spark.wire.remoting.header import (
    EXT_FIELDS_MAX,
    LANGUAGES,
    Header,
    check_ints,
    check_writable,
    encoding_error,
    is_text,
)

# msgpack may be missing on a cluster that got rocketpoll as an archive: no peer agrees to it then.
try:
    import msgpack
except ImportError:
    msgpack = None

HAS_MSGPACK = msgpack is not None


def _fault(at: int | str, needed: str, found: object) -> HeaderError:
    return HeaderError("MessagePack header", at=at, needed=needed, found=found)


def encode_header(header: Header) -> bytes:
    """Return the header as MessagePack."""
    check_writable("MessagePack header", header)
    if not (is_text(header.ext_fields) and is_text(header.ext_fields.values())):
        raise encoding_error("MessagePack header", header)
    try:
        packed: bytes = msgpack.packb((*header[:6], dict(header.ext_fields)))
    except (TypeError, ValueError, OverflowError) as error:
        raise encoding_error("MessagePack header", header) from error
    return packed


def decode_header(data: Buffer) -> Header:
    """Decode a header from a MessagePack array."""
    if not HAS_MSGPACK:
        raise _fault(0, "pip install msgpack", data)
    try:
        # The limits permit only numbers, text, nil and one map as results.
        array = msgpack.unpackb(
            data, max_array_len=7, max_map_len=EXT_FIELDS_MAX, max_bin_len=0, max_ext_len=0
        )
    except msgpack.ExtraData as error:
        raise _fault(len(data) - len(error.extra), "the end", error.extra) from error
    except UnicodeDecodeError as error:
        raise _fault("a text", "UTF-8", error.object) from error
    except (ValueError, msgpack.UnpackException) as error:
        # msgpack's messages say what is wrong, but not where.
        raise _fault(
            0, "an array of seven", Verbatim(str(error) or type(error).__name__)
        ) from error
    if type(array) is not list or len(array) != 7:
        raise _fault(0, "an array of seven", array)
    code, language, version, opaque, flag, remark, ext_fields = array
    check_ints(code, version, opaque, flag)
    if remark is not None and type(remark) is not str:
        raise _fault("remark", "text or nil", remark)
    if type(language) is not int:
        raise _fault("language", "a number", language)
    if type(ext_fields) is not dict or not is_text(ext_fields.values()) or b"" in ext_fields:
        raise _fault("extFields", "a map of text to text", ext_fields)
    language = LANGUAGES.get(language, LanguageCode.OTHER)
    return Header(code, language, version, opaque, flag, remark, ext_fields)
