"""Compression of bodies by producers: ZLIB (RFC 1950), and the frame formats of LZ4 and ZSTD.

Decompression is bounded, because the size that a body states cannot be trusted. pyarrow could do
LZ4 and ZSTD as well, but leaks some kilobytes at each damaged stream; see docs/adr/0003.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from rmq_spark.errors import BodyError, BodyTooLarge, CodecMissing, Verbatim
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.isa_l import ZLIB_ERRORS, decompressobj, deflate
from rmq_spark.wire.remoting.framing import Buffer

PLAIN_BYTES_MAX = 16_777_216
"""The default maximum size of a decompressed body: that of a frame."""

PLAIN_BYTES_LIMIT_MAX = 1 << 30
"""The most bytes that a reader may allow: Arrow's columns of bytes have 32-bit offsets."""

DEFAULT_LEVEL = 5

_ANY_INT = range(-(1 << 31), 1 << 31)

LEVELS: Mapping[MessageSysFlag, range] = {
    MessageSysFlag.COMPRESSION_ZLIB: range(-1, 10),
    MessageSysFlag.COMPRESSION_LZ4: _ANY_INT,
    MessageSysFlag.COMPRESSION_ZSTD: range(-(1 << 17), 23),
}
"""The levels of each compression; LZ4 accepts any and ignores it."""

_ZSTD_MODULE = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"

_LIMIT = "the reader's limit: raise max_body_bytes, option maxBodyBytes or --max-body-bytes"
_FIRST_STEP_BYTES = 65_536
_EXPECTED_RATIO = 4

_COMPRESSED = MessageSysFlag.COMPRESSED.value
_TYPE_MASK = MessageSysFlag.COMPRESSION_MASK.value
_TYPE_SHIFT = 8
_ZLIB = MessageSysFlag.COMPRESSION_ZLIB.value
_LZ4 = MessageSysFlag.COMPRESSION_LZ4.value
_ZSTD = MessageSysFlag.COMPRESSION_ZSTD.value


def compress_body(body: Buffer, compression: MessageSysFlag, level: int = DEFAULT_LEVEL) -> bytes:
    """Return the body as sent with the ``sysFlag`` bits COMPRESSED | ``compression``."""
    compressed: bytes
    try:
        if compression.value == _ZLIB:
            compressed = deflate(body, level)
        elif compression.value == _LZ4:
            # RocketMQ's LZ4 has no levels either, and cannot read blocks that refer to earlier
            # ones.
            lz4 = _lz4()
            compressed = lz4.compress(
                body, block_linked=False, block_size=lz4.BLOCKSIZE_MAX4MB, store_size=False
            )
        elif compression.value == _ZSTD:
            compressed = _zstd().compress(body, level)
        else:
            raise BodyError(
                "compression",
                at="type",
                needed="COMPRESSION_ZLIB, _LZ4 or _ZSTD",
                found=compression,
            )
    except _codec_errors(ValueError, OverflowError) as error:
        raise BodyError(
            "compression", at="level", needed=f"one that {compression.name} has", found=level
        ) from error
    return compressed


def uncompress_body(body: Buffer, sys_flag: int, bytes_max: int = PLAIN_BYTES_MAX) -> Buffer:
    """Return the body as its sender wrote it, by the flags of its message.

    Raises:
        CodecMissing: A module that decompresses such bodies is not installed.
        BodyTooLarge: The body has more than ``bytes_max`` bytes when decompressed.
        BodyError: The body does not have the compression that its flags state.
    """
    if not sys_flag & _COMPRESSED:
        return body
    name, inflate = _INFLATERS.get(sys_flag & _TYPE_MASK, ("", None))
    if inflate is None:
        raise BodyError(
            "compressed body",
            at="sysFlag",
            needed="compression type 0 to 3",
            found=(sys_flag & _TYPE_MASK) >> _TYPE_SHIFT,
        )
    try:
        plain, is_whole = inflate(body, bytes_max + 1)
    except _codec_errors(RuntimeError) as error:  # lz4 raises RuntimeError
        raise _damaged_body(name, body) from error
    if len(plain) > bytes_max:
        raise BodyTooLarge(
            "compressed body",
            at="its inflated size",
            needed=f"at most {bytes_max} bytes inflated ({_LIMIT})",
            found=Verbatim("more"),
        )
    if not is_whole:
        raise _damaged_body(name, body)
    return plain


def _inflate_zlib(body: Buffer, bytes_max: int) -> tuple[bytes, bool]:
    inflater = decompressobj()
    return inflater.decompress(body, bytes_max), inflater.eof


def _inflate_in_steps(
    inflater_of: Callable[[], Any],
) -> Callable[[Buffer, int], tuple[bytes, bool]]:
    """Decompress in growing steps, because lz4 allocates all the memory it is allowed at once."""

    def inflate(body: Buffer, bytes_max: int) -> tuple[bytes, bool]:
        inflater = inflater_of()
        step = max(_FIRST_STEP_BYTES, _EXPECTED_RATIO * len(body))
        plain: bytes = inflater.decompress(body, min(step, bytes_max))
        while plain and len(plain) < bytes_max and not (inflater.eof or inflater.needs_input):
            step *= 2
            plain += inflater.decompress(b"", min(step, bytes_max - len(plain)))
        return plain, inflater.eof

    return inflate


def _damaged_body(name: str, body: Buffer) -> BodyError:
    return BodyError("compressed body", at=0, needed=f"one whole {name} stream", found=body)


# LZ4 and ZSTD are imported when the first body needs them: few messages are compressed by them.


def _lz4() -> Any:
    return _required_module("lz4.frame", "lz4")


def _zstd() -> Any:
    return _required_module(_ZSTD_MODULE, "backports.zstd")


def _required_module(name: str, distribution: str) -> Any:
    module = _optional_module(name)
    if module is None:
        raise CodecMissing(
            "compression",
            at=sys.executable,
            needed=f"pip install {distribution}",
            found=Verbatim("none"),
        )
    return module


@cache
def _optional_module(name: str) -> Any:
    """Return an optional module, or None if it is missing.

    It is installed with rocketpoll, but may be missing on a cluster that received rocketpoll as an
    archive. Messages that need it cannot be read there; all others can.
    """
    try:
        return import_module(name)
    except ImportError:
        return None


def _codec_errors(*more: type[Exception]) -> tuple[type[Exception], ...]:
    zstd = _optional_module(_ZSTD_MODULE)
    return (*ZLIB_ERRORS, *more) if zstd is None else (*ZLIB_ERRORS, zstd.ZstdError, *more)


_INFLATERS: Mapping[int, tuple[str, Callable[[Buffer, int], tuple[bytes, bool]]]] = {
    0: ("ZLIB", _inflate_zlib),  # producers before 4.9.4 knew no other type
    _ZLIB: ("ZLIB", _inflate_zlib),
    _LZ4: ("LZ4", _inflate_in_steps(lambda: _lz4().LZ4FrameDecompressor())),
    _ZSTD: ("ZSTD", _inflate_in_steps(lambda: _zstd().ZstdDecompressor())),
}
