"""A topic with every kind of message that a foreign client or a failing disk can leave in it.

A good message precedes and follows each, to detect readers that give up or skip too much. Messages
of `UNREADABLE` cannot be read; those of `ODD` look strange but can.
"""

from __future__ import annotations

import os
import zlib
from contextlib import contextmanager

from support.suite.selection import some

from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.manifest import commits_topic_name
from rmq_spark.client.producer.prepared_message import now_ms
from rmq_spark.wire.codes import MessageSysFlag as Flag
from rmq_spark.wire.compression import PLAIN_BYTES_MAX, compress_body
from rmq_spark.wire.headers.members import SendMessageRequestHeader
from rmq_spark.wire.message.message_batch import BatchedMessage, encode_batch
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import Admin, EmbeddedBroker

ZLIB, LZ4, ZSTD = (
    int(Flag.COMPRESSED | kind)
    for kind in (Flag.COMPRESSION_ZLIB, Flag.COMPRESSION_LZ4, Flag.COMPRESSION_ZSTD)
)
KEY = "every"
"""A key of all these messages."""


def properties(**given):
    return "".join(f"{name}\x01{value}\x02" for name, value in given.items())


UNREADABLE = {
    "garbage as zlib": (b"this is no stream", ZLIB),
    "garbage as lz4": (b"this is no stream", LZ4),
    "garbage as zstd": (b"this is no stream", ZSTD),
    "garbage of an old client": (b"this is no stream", int(Flag.COMPRESSED)),
    "half a zlib stream": (zlib.compress(b"x" * 1_000)[:9], ZLIB),
    "half an lz4 stream": (compress_body(b"x" * 1_000, Flag.COMPRESSION_LZ4)[:-9], LZ4),
    "half a zstd stream": (compress_body(b"x" * 1_000, Flag.COMPRESSION_ZSTD)[:-3], ZSTD),
    "compression of type 4": (b"this is no stream", int(Flag.COMPRESSED) | 4 << 8),
    "compression of type 7": (b"this is no stream", int(Flag.COMPRESSED) | 7 << 8),
    "over the limit": (zlib.compress(bytes(PLAIN_BYTES_MAX + 1)), ZLIB),
}
"""Body and sysFlag of messages that brokers accept and no client can read."""

DAMAGED = {
    "a changed body": ("body", 0, b"?"),
    "no magic": ("record", 4, b"\xa7\xa7"),
    "a body length without sense": ("body", -4, b"\x7f"),
}
"""Damage to good records in the log: the part, the offset in it, and the bytes written."""

ODD = {
    "no properties": ("", 0),
    "properties without separators": ("garbage", 0),
    "a name without a value": ("a\x01\x02b\x02\x01c\x02", 0),
    "a property twice": ("a\x011\x02a\x012\x02", 0),
    "an id of blanks": (properties(UNIQ_KEY="a b"), 0),
    "a delay of 5,000 digits": (properties(DELAY="9" * 5_000), 0),
    "a negative delay": (properties(DELAY="-1"), 0),
    "a delay in words": (properties(DELAY="soon"), 0),
    "controls in a tag": (properties(TAGS="a\nb\x9b"), 0),
    "wide blanks in keys": (properties(KEYS="東京\u3000大阪"), 0),
    "numbers in words": (properties(RECONSUME_TIME="x", CONSUME_START_TIME="y"), 0),
    "foreign flags": ("", 0x10000 | 0x40 | 0x80),
    "an IPv6 flag alone": ("", int(Flag.MULTI_TAGS)),
}
"""Properties and sysFlag of messages that look strange but can be read."""


class BadTopic:
    """A topic with all of these messages in one queue, and the expected results of readers."""

    def __init__(self, broker, directory, topic="T"):
        self.broker, self.topic = broker, topic
        self.queue = MessageQueue(topic, "broker-a", 0)
        self.sound: dict[int, bytes] = {}
        """Bodies of the readable messages, by offset."""
        self.bad: dict[int, str] = {}
        """Names of the unreadable messages, by offset."""
        broker.create_topic(topic, 1)
        with ClientInstance(broker.address) as instance:
            self._api = instance.api
            for name, (body, flags) in UNREADABLE.items():
                self._put_sound()
                self.bad[self._put(body, properties(KEYS=KEY), flags)] = name
            for name, (text, flags) in ODD.items():
                self._put_sound()
                self.sound[self._put(name.encode(), text, flags)] = name.encode()
            self._put_batch()
            for name in DAMAGED:
                self._put_sound()
                self.bad[self._put(f"damaged: {name}".encode(), properties(KEYS=KEY), 0)] = name
            self._put_sound()
        count = len(self.sound) + len(self.bad)
        # otherwise the broker's own dispatch would find the damage
        broker.wait_until_arrived(topic, count)
        for name, damage in DAMAGED.items():
            _damage(directory, f"damaged: {name}".encode(), *damage)

    def read_as_commits(self):
        """Read the committed rows of a topic whose commits topic has a manifest that lists these
        messages."""
        topic = f"{self.topic}-committed"
        commits = commits_topic_name(topic)
        self.broker.create_topic(topic, 1)
        self.broker.create_topic(commits, 1)
        with ClientInstance(self.broker.address) as instance:
            for body, flags in ((b"this is no stream", ZLIB), (b"not a manifest", 0)):
                header = SendMessageRequestHeader(
                    *("a foreign client", commits, "TBW102", 4, 0, flags, now_ms(), 0, "")
                )
                instance.api.send(self.broker.address, header, body, "")
        with Admin(self.broker.address) as admin:
            admin.read_committed(topic)

    def _put(self, body, text, flags, *, is_batch=False):
        header = SendMessageRequestHeader(
            *("a foreign client", self.topic, "TBW102", 4, 0, flags, now_ms(), 7, text),
            batch=is_batch,
        )
        return self._api.send(self.broker.address, header, body, "").queue_offset

    def _put_sound(self):
        body = f"sound {len(self.sound)}".encode()
        self.sound[self._put(body, properties(KEYS=KEY, TAGS="t"), 0)] = body

    def _put_batch(self):
        """Put a batch in which one message's properties are invalid UTF-8, and one has none."""
        entries = [
            BatchedMessage(b"batched 0", properties(KEYS=KEY), 0),
            BatchedMessage(b"batched 1", properties(color="\u00e9\u00e9"), 0),
            BatchedMessage(b"batched 2", "", 0),
        ]
        body = encode_batch(entries).replace("\u00e9".encode(), b"\xff\xfe")
        first = self._put(body, "", 0, is_batch=True)
        self.sound |= {first + at: entry.body for at, entry in enumerate(entries)}


def _damage(directory, body, part, distance, noise):
    [path] = (directory / "commitlog").iterdir()
    with path.open("r+b") as log:
        data = log.read(1 << 20)
        body_at = data.index(body)
        record_at = data.rindex(b"\xda\xa3\x20\xa7", 0, body_at) - 4
        os.pwrite(log.fileno(), noise, (body_at if part == "body" else record_at) + distance)


@contextmanager
def bad_topic(directory):
    """Yield a broker with the bad topic."""
    with EmbeddedBroker(directory) as broker:
        yield BadTopic(broker, directory)


_MAGIC = b"\xda\xa3\x20\xa7"


def changed_bytes(store, text, number=24):
    """Change each byte in turn of the record whose body contains a text; yield its position.

    All bytes are restored at the end.
    """
    [path] = (store / "commitlog").iterdir()
    with path.open("r+b") as log:
        data = log.read(1 << 20)
        start = data.rindex(_MAGIC, 0, data.index(text)) - 4
        size = int.from_bytes(data[start : start + 4], "big")
        for at in some(range(size), "ROCKETPOLL_CHANGED_BYTES", number):
            os.pwrite(log.fileno(), bytes([data[start + at] ^ 0xFF]), start + at)
            yield at
            os.pwrite(log.fileno(), data[start + at : start + at + 1], start + at)
