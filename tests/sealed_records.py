"""Records with a checksum over all of them, one by one: what the store does by the chunk."""

from __future__ import annotations

import dataclasses
from zlib import crc32

from rmq_spark.wire.record import StoredMessage, encode_record
from rmq_spark.wire.record_checksum import CHECKSUM_BYTES, encode_checksum, with_empty_checksum


def sealed(message: StoredMessage) -> bytes:
    """Return the record of a message as a store holds it."""
    text = with_empty_checksum(message.properties_text)
    return with_its_checksum(encode_record(dataclasses.replace(message, properties_text=text)))


def with_its_checksum(record: bytes) -> bytes:
    """Return a record with the checksum in the room at its end."""
    watched = record[:-CHECKSUM_BYTES]
    return watched + encode_checksum(crc32(watched))
