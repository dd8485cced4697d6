"""Records: where the records of TLS end in a stream of bytes.

    u8   content type
    u16  version
    u16  length         of the bytes that follow; at most 2^14 and some for encryption

A connection gives OpenSSL whole records only. So it knows how many bytes wait for the rest of their
record, which OpenSSL would keep without saying.
"""

from __future__ import annotations

from typing import Final

from rmq_spark.wire.framing import Buffer

HANDSHAKE_BYTE: Final = 0x16
"""The first byte of a connection with TLS: a handshake record. A frame of RocketMQ's protocol that
begins with it would have 369 MB."""
HEADER_BYTES: Final = 5
RECORD_BYTES_MAX: Final = HEADER_BYTES + (1 << 14) + 2_048
"""The largest record of any version; only TLS 1.2 may need all of it."""


def whole_records_bytes(data: Buffer, bytes_min: int) -> int:
    """Return the length of the whole records at the start of ``data``.

    It stops at the first record that ends at ``bytes_min`` or beyond. A record longer than any may
    be counts as whole, with all that follows: it is for OpenSSL to refuse.
    """
    size = len(data)
    end = 0
    while end < bytes_min and end + HEADER_BYTES <= size:
        record_bytes = HEADER_BYTES + (data[end + 3] << 8 | data[end + 4])
        if record_bytes > RECORD_BYTES_MAX:
            return size
        if end + record_bytes > size:
            break
        end += record_bytes
    return end
