"""RocketMQ's own classes read our stored messages: single ones, chunks, compressed bodies and
batches.

All messages of a test go to one JVM, and the values that Java read are compared with the originals.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from support.messages.stored_messages import sealed
from support.suite.selection import ends

from rmq_spark.wire.chunk import encode_chunk
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import compress_body
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.hosts import parse_host
from rmq_spark.wire.message.message_batch import BatchedMessage, encode_batch
from rmq_spark.wire.message.properties import KEYS, TAGS, encode_properties, tags_code
from rmq_spark.wire.message.record import StoredMessage, encode_record
from rmq_spark.wire.message.record_layout import CHECKSUM_BYTES, with_empty_checksum

pytestmark = pytest.mark.interop

NON_ASCII = "\u00fc \u5024 \U0001f680"
BYTES = bytes(range(256))

V4_HOSTS = ("10.0.0.1:5000", "192.168.255.254:65535", "0.0.0.0:0")
V6_HOSTS = ("[2001:db8::1]:5000", "[fe80::211:22ff:fe33:4455]:10911", "[::1]:65535")
BORN_V6, STORE_V6 = MessageSysFlag.BORN_HOST_V6, MessageSysFlag.STORE_HOST_V6
COMPRESSIONS = {
    "ZLIB": MessageSysFlag.COMPRESSION_ZLIB,
    "LZ4": MessageSysFlag.COMPRESSION_LZ4,
    "ZSTD": MessageSysFlag.COMPRESSION_ZSTD,
}
COMPRESSIBLE = b"compressible " * 40
TEXTS_OF_HOSTS = {"bornHost", "storeHost"}  # Java's texts of the host bytes


def test_java_reads_stored_messages(java):
    messages = stored_messages(java.version)
    read = java.read("record", {name: encode_record(message) for name, message in messages.items()})
    assert without_texts_of_hosts(read) == {
        name: as_fields(message) for name, message in messages.items()
    }


def test_java_reads_stored_messages_of_a_chunk(java):
    messages = stored_messages(java.version)
    # A chunk uses the magic for the topic's length, and ends every property with a separator.
    for not_in_chunks in (
        "short topic of the second magic",
        "properties without the last separator",
    ):
        messages.pop(not_in_chunks, None)
    read = java.read(
        "record", dict(zip(messages, chunk_records(list(messages.values())), strict=True))
    )
    assert without_texts_of_hosts(read) == {
        name: as_fields(message) for name, message in messages.items()
    }


def test_java_ignores_the_checksums_of_our_records(java):
    messages = stored_messages(java.version) | odd_messages()
    messages.pop("longest properties")
    records = {name: sealed(message) for name, message in messages.items()}
    read = without_texts_of_hosts(java.read("record", records))
    for name, message in messages.items():
        fields = as_fields(message)
        text = with_empty_checksum(message.properties_text).encode()
        data = text[:-CHECKSUM_BYTES] + records[name][-CHECKSUM_BYTES:]
        as_stored = {"totalSize": len(records[name]), "propertiesData": data.hex()}
        assert (name, read[name]) == (name, {**fields, **as_stored})


def odd_messages() -> dict[str, StoredMessage]:
    """Return messages with properties that RocketMQ interprets, and with invalid ones."""
    texts = [
        "",
        "__CRC32#\x010123456789",
        "__CRC32#\x01x\x02",
        "odd",
        "a\x01",
        "\x01b\x02",
        "7\x02" * 8,
        "a\x011\x02" * 8,
    ]
    return {f"properties {text!r}": StoredMessage("T", b"body", text) for text in texts}


def stored_messages(version: str) -> dict[str, StoredMessage]:
    """Return all kinds of messages."""
    several = {KEYS: "k1 k2", TAGS: "TagA"}
    messages = {
        "nothing but a topic": StoredMessage("T", b""),
        "one byte": StoredMessage("T", b"\0"),
        "all bytes": StoredMessage("T", BYTES * 100),
        "tags only": with_properties({TAGS: "TagA || TagB"}),
        "keys only": with_properties({KEYS: "k1 k2"}),
        "a producer's id": with_properties(
            {**several, "UNIQ_KEY": "0A0000010FA0000000000000000B0001"}
        ),
        "non-ASCII": with_properties(
            {TAGS: NON_ASCII, NON_ASCII: NON_ASCII}, topic=f"topic {NON_ASCII}"
        ),
        "separator in a value": with_properties({"a": "x\x01y", "b": "=\0\n"}),
        "many properties": with_properties(
            {f"property{number}": f"value{number}" for number in range(200)}
        ),
        "longest properties": with_properties({TAGS: "t" * (32_767 - len("TAGS\x01\x02"))}),
        "properties without the last separator": StoredMessage(
            "T", b"body", "TAGS\x01TagA\x02b\x012"
        ),
        "retry": with_properties(
            {"RETRY_TOPIC": "T", "DELAY": "3"}, topic="%RETRY%group", reconsume_times=7
        ),
        "longest topic of the first magic": with_properties(several, topic="t" * 127),
        "largest numbers": with_numbers((1 << 31) - 1, (1 << 63) - 1),
        "smallest numbers": with_numbers(-1 << 31, -1 << 63),
        "numbers beyond 32 bits": with_numbers(5, (1 << 41) + 12_345),
    }
    hosts = [(born, store) for born in V4_HOSTS + V6_HOSTS for store in V4_HOSTS + V6_HOSTS]
    for state in (0, 4, 8, 12):
        for born, store in hosts:
            messages[f"state {state} {born} {store}"] = with_hosts(born, store, state)
    for flag in (MessageSysFlag.MULTI_TAGS, MessageSysFlag.NEED_UNWRAP, MessageSysFlag.INNER_BATCH):
        messages[flag.name] = with_hosts(V4_HOSTS[0], V4_HOSTS[0], flag)
    for name, compression in (("no type", MessageSysFlag(0)), *COMPRESSIONS.items()):
        messages[f"{name}, not compressed"] = with_hosts(V4_HOSTS[0], V4_HOSTS[0], compression)
        for host in (V4_HOSTS[0], V6_HOSTS[0]):
            messages[f"{name} {host}"] = compressed(with_hosts(host, host, 0), compression)
    if version != "4.9.7":
        messages |= {
            f"topic of {length} bytes": with_properties(
                several, topic="%RETRY%".ljust(length, "g"), magic=layout.MAGIC_V2
            )
            for length in (128, 200, 255, 256, 32_767)
        }
        messages["short topic of the second magic"] = with_properties(
            several, magic=layout.MAGIC_V2
        )
        messages["long topic, IPv6, compressed"] = compressed(
            dataclasses.replace(
                with_hosts(*V6_HOSTS[:2], 0), topic="%RETRY%".ljust(200, "g"), magic=layout.MAGIC_V2
            ),
            MessageSysFlag.COMPRESSION_ZSTD,
        )
    return messages


def with_properties(
    properties: Mapping[str, str], *, topic: str = "T", **fields: Any
) -> StoredMessage:
    return StoredMessage(topic, b"body", encode_properties(properties), **fields)


def with_numbers(small: int, large: int) -> StoredMessage:
    return StoredMessage(
        "T",
        b"body",
        queue_id=small,
        flag=small,
        reconsume_times=small,
        queue_offset=large,
        physical_offset=large,
        born_timestamp=large,
        store_timestamp=large,
        prepared_transaction_offset=large,
    )


def with_hosts(born: str, store: str, sys_flag: int) -> StoredMessage:
    born_host, store_host = parse_host(born), parse_host(store)
    v6_bits = (BORN_V6 if born_host.is_v6 else 0) | (STORE_V6 if store_host.is_v6 else 0)
    return StoredMessage(
        "T",
        COMPRESSIBLE,
        encode_properties({KEYS: "k1", TAGS: "TagA", "a": "1"}),
        queue_id=3,
        flag=42,
        queue_offset=7,
        physical_offset=1_234_567,
        sys_flag=sys_flag | v6_bits,
        born_timestamp=1_700_000_000_000,
        born_host=born_host,
        store_timestamp=1_700_000_000_001,
        store_host=store_host,
        reconsume_times=1,
        prepared_transaction_offset=99,
    )


def compressed(message: StoredMessage, compression: MessageSysFlag) -> StoredMessage:
    """Return the message with a compressed body; without a type, by ZLIB."""
    return dataclasses.replace(
        message,
        body=compress_body(message.body, compression or MessageSysFlag.COMPRESSION_ZLIB),
        sys_flag=message.sys_flag | MessageSysFlag.COMPRESSED | compression,
    )


def as_fields(message: StoredMessage) -> dict[str, Any]:
    """Return the message in the form of the vectors."""
    fields = {
        "totalSize": len(encode_record(message)),
        "magic": message.magic,
        "bodyCrc": zlib.crc32(message.body) & layout.BODY_CRC_MASK,  # Java does not check it
        "queueId": message.queue_id,
        "flag": message.flag,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp,
        "bornHostBytes": message.born_host.encode().hex(),
        "storeTimestamp": message.store_timestamp,
        "storeHostBytes": message.store_host.encode().hex(),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "body": message.body.hex() or None,
        "topic": message.topic,
        "propertiesData": message.properties_text.encode().hex(),
        "properties": message.properties,
        "tagsCode": tags_code(message.tags),
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
    }
    is_compressed = message.sys_flag & MessageSysFlag.COMPRESSED
    return {**fields, "bodyPlain": message.plain_body().hex()} if is_compressed else fields


def without_texts_of_hosts(read: dict[str, Any]) -> dict[str, Any]:
    return {
        record: {name: value for name, value in fields.items() if name not in TEXTS_OF_HOSTS}
        if isinstance(fields, dict)
        else fields
        for record, fields in read.items()
    }


def chunk_records(messages: list[StoredMessage]) -> list[bytes]:
    """Return the records that the chunk encoder writes for these messages."""
    rest = [
        [item for item in each.properties.items() if item[0] not in (KEYS, TAGS)]
        for each in messages
    ]
    chunk = encode_chunk(
        {
            "topic": [each.topic for each in messages],
            "body": [each.plain_body() for each in messages],
            "keys": [each.keys for each in messages],
            "tags": [each.tags for each in messages],
            "properties": rest,
            "queueId": [each.queue_id for each in messages],
            "queueOffset": [each.queue_offset for each in messages],
            "commitLogOffset": [each.physical_offset for each in messages],
            "flag": [each.flag for each in messages],
            "sysFlag": [each.sys_flag for each in messages],
            "bornTimestamp": [each.born_timestamp for each in messages],
            "bornHost": [str(each.born_host) for each in messages],
            "storeTimestamp": [each.store_timestamp for each in messages],
            "storeHost": [str(each.store_host) for each in messages],
            "reconsumeTimes": [each.reconsume_times for each in messages],
            "preparedTransactionOffset": [each.prepared_transaction_offset for each in messages],
        }
    )
    data = chunk.data.to_pybytes()
    ends = chunk.sizes.cumsum().tolist()
    return [data[end - size : end] for end, size in zip(ends, chunk.sizes.tolist(), strict=True)]


# ---- bodies of messages


@pytest.mark.parametrize("codec", ends(COMPRESSIONS))
def test_java_inflates_our_compressed_bodies(java, codec):
    plains = {
        "nothing": b"",
        "one byte": b"x",
        "text": COMPRESSIBLE,
        "random": Random(5).randbytes(3000),
        "64 KiB": (COMPRESSIBLE * 127)[: 1 << 16],
        "more than 64 KiB": COMPRESSIBLE * 127,
        "random megabyte": Random(5).randbytes(1 << 20),
        "4 MiB and more": COMPRESSIBLE * 8100,
    }
    bodies = {
        f"{name} at level {level}": (plain, level)
        for name, plain in plains.items()
        for level in (1, 5, 9)
    }
    read = java.read(
        "compressed",
        {
            name: compress_body(plain, COMPRESSIONS[codec], level)
            for name, (plain, level) in bodies.items()
        },
        dict.fromkeys(bodies, codec),
    )
    # Digests, as pytest would show megabytes of hexadecimal digits.
    digests = {name: digest(plain) for name, (plain, _) in bodies.items()}
    assert {name: digest_of_hex(value) for name, value in read.items()} == digests


def digest(data: bytes) -> str:
    return f"{len(data)} bytes with CRC {zlib.crc32(data):08x}"


def digest_of_hex(value: str) -> str:
    return value if value.startswith("refused") else digest(bytes.fromhex(value))


def test_java_reads_our_batches(java):
    batches = {
        "none": [],
        "one": [BatchedMessage(b"body", encode_properties({"a": "1"}), 9)],
        "flags": [
            BatchedMessage(b"body", encode_properties({"a": "1"}), flag)
            for flag in (-1, -1 << 31, 7)
        ],
        "empty body": [
            BatchedMessage(b"", encode_properties({"a": "1"})),
            BatchedMessage(b"behind it", encode_properties({"a": "2"})),
        ],
        "all bytes": [
            BatchedMessage(BYTES * 100, encode_properties({KEYS: "k", "UNIQ_KEY": "id"}))
        ],
        "non-ASCII": [
            BatchedMessage(
                NON_ASCII.encode(), encode_properties({NON_ASCII: NON_ASCII, TAGS: NON_ASCII})
            )
        ],
        "without the last separator": [BatchedMessage(b"body", "a\x011\x02b\x012")],
        "longest properties": [BatchedMessage(b"body", encode_properties({"a": "v" * 32_764}))],
        "many": [
            BatchedMessage(b"%d" % number, encode_properties({"number": f"{number}"}), number)
            for number in range(1000)
        ],
    }
    read = java.read("batch", {name: encode_batch(messages) for name, messages in batches.items()})
    assert read == {
        name: [as_batched(each) for each in messages] for name, messages in batches.items()
    }


def as_batched(message: BatchedMessage) -> dict[str, Any]:
    """Return the message in the form of the vectors."""
    return {
        "flag": message.flag,
        "body": message.body.hex(),
        "propertiesData": message.properties_text,
        "properties": message.properties,
    }
