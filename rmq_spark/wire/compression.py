"""Bodies that producers compressed: ZLIB (RFC 1950), LZ4 and ZSTD in their frame formats.

Inflating is bounded: a body says nothing trustworthy about how large it will get. pyarrow brings LZ4
and ZSTD along, and is imported only when one of them turns up.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

from rmq_spark.errors import BodyError
from rmq_spark.wire.flags import MessageSysFlag
from rmq_spark.wire.framing import Buffer

PLAIN_BYTES_MAX = 16_777_216
"""Four times the largest message that a broker takes by default."""

DEFAULT_LEVEL = 5

_COMPRESSED = MessageSysFlag.COMPRESSED.value
_TYPE_MASK = MessageSysFlag.COMPRESSION_MASK.value
_TYPE_SHIFT = 8


def compress_body(body: Buffer, compression: MessageSysFlag, level: int = DEFAULT_LEVEL) -> bytes:
    """The body as a producer sends it under ``sysFlag`` COMPRESSED | ``compression``."""
    if compression == MessageSysFlag.COMPRESSION_ZLIB:
        return zlib.compress(body, level)
    codec = _CODEC_NAMES.get(compression.value)
    if codec is None:
        raise BodyError("compression", at="type", needed="COMPRESSION_ZLIB, _LZ4 or _ZSTD", found=compression)
    import pyarrow  # noqa: PLC0415  # heavy, and rarely needed

    # LZ4 frames have no levels in Arrow's binding beyond its default, as Java's encoder has none.
    codec_level = level if codec == "zstd" else None
    compressed: bytes = pyarrow.Codec(codec, compression_level=codec_level).compress(body, asbytes=True)
    return compressed


def uncompress_body(body: Buffer, sys_flag: int, bytes_max: int = PLAIN_BYTES_MAX) -> Buffer:
    """The body as its sender wrote it, by the flags of its message."""
    if not sys_flag & _COMPRESSED:
        return body
    inflate = _INFLATERS.get(sys_flag & _TYPE_MASK)
    if inflate is None:
        raise BodyError(
            "compressed body",
            at="sysFlag",
            needed="compression type 0 to 3",
            found=(sys_flag & _TYPE_MASK) >> _TYPE_SHIFT,
        )
    plain = inflate(body, bytes_max)
    if len(plain) > bytes_max:
        raise BodyError(
            "compressed body",
            at=f"{len(body)} bytes in",
            needed=f"at most {bytes_max} bytes inflated",
            found=f"more than {bytes_max}",
        )
    return plain


def _inflate_zlib(body: Buffer, bytes_max: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise _damaged("ZLIB", body) from error
    if len(plain) <= bytes_max and not inflater.eof:
        raise _damaged("ZLIB", body)
    return plain


def _inflate_with_arrow(codec: str) -> Callable[[Buffer, int], bytes]:
    def inflate(body: Buffer, bytes_max: int) -> bytes:
        import pyarrow  # noqa: PLC0415  # heavy, and rarely needed

        try:
            stream = pyarrow.CompressedInputStream(pyarrow.BufferReader(body), codec)
            plain: bytes = stream.read(bytes_max + 1)
        except (OSError, pyarrow.ArrowException) as error:
            raise _damaged(codec.upper(), body) from error
        if not body:  # to Arrow, no frame at all is a whole stream
            raise _damaged(codec.upper(), body)
        return plain

    return inflate


def _damaged(name: str, body: Buffer) -> BodyError:
    return BodyError("compressed body", at=0, needed=f"one whole {name} stream", found=body)


_CODEC_NAMES: Mapping[int, str] = {
    MessageSysFlag.COMPRESSION_LZ4: "lz4",
    MessageSysFlag.COMPRESSION_ZSTD: "zstd",
}
_INFLATERS: Mapping[int, Callable[[Buffer, int], bytes]] = {
    0: _inflate_zlib,  # producers before 4.9.4 knew no other type
    MessageSysFlag.COMPRESSION_ZLIB: _inflate_zlib,
    **{bits: _inflate_with_arrow(name) for bits, name in _CODEC_NAMES.items()},
}
