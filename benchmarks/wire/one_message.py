"""Single stored messages and batch bodies: the work that clients and brokers do per message.

`chunks` takes its peers from here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.harness import Case
from benchmarks.wire.samples import properties_text, stored_messages
from rmq_spark.wire.chunk import encode_chunk
from rmq_spark.wire.message.message_batch import BatchedMessage, decode_batch, encode_batch
from rmq_spark.wire.message.record import StoredMessage, decode_records, encode_record

_MESSAGES = 32
"""The number of messages that clients ask for in one pull by default."""

_BODY_BYTES = 100


def cases() -> list[Case]:
    """Return the cases: records and batches, read and written."""
    columns = stored_messages(_MESSAGES, _BODY_BYTES, with_properties=True)
    data = encode_chunk(columns).data.to_pybytes()
    messages = list(decode_records(data))
    batch = [BatchedMessage(message.body, properties_text()) for message in messages]
    batch_body = encode_batch(batch)

    def decode_with_properties() -> None:
        for message in decode_records(data):
            _ = message.properties

    subject = f"one record, {_BODY_BYTES} B body, 3 properties"
    batch_subject = f"batch of {_MESSAGES}, {_BODY_BYTES} B body, 3 properties"
    return [
        Case(subject, "decode", decoding_records(data), _MESSAGES),
        Case(
            subject,
            "decode, CRC unchecked",
            decoding_records(data, check_crc=False),
            _MESSAGES,
            peer="decode",
        ),
        Case(subject, "decode, properties too", decode_with_properties, _MESSAGES, peer="decode"),
        Case(subject, "encode", encoding_records(messages), _MESSAGES),
        Case(batch_subject, "decode", lambda: decode_batch(batch_body), _MESSAGES),
        Case(batch_subject, "encode", lambda: encode_batch(batch), _MESSAGES),
    ]


def decoding_records(data: bytes, *, check_crc: bool = True) -> Callable[[], None]:
    """Return a function that reads adjacent records and keeps none."""

    def run() -> None:
        for _ in decode_records(data, check_crc=check_crc):
            pass

    return run


def encoding_records(messages: Sequence[StoredMessage]) -> Callable[[], None]:
    """Return a function that writes these messages, CRCs included."""
    # A message that was read has its CRC, and would be written without computing it.
    unsummed = [replace(message, body_crc=None) for message in messages]

    def run() -> None:
        for message in unsummed:
            encode_record(message)

    return run
