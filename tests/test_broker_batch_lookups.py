"""Batches of any shape: lookups by key, id, tag and time return the sent messages.

Batches are sent as messages and as tables. Their index and queues are made while they are stored,
and again from the log. `tests/store/test_even_keys.py` compares the keys of recent writes.
"""

import random
import shutil
from collections import defaultdict

import pyarrow as pa
import pytest
from support.suite.selection import count, spread

from rocketpoll import Admin, EmbeddedBroker, Message, Producer, read_table, wait_until
from rocketpoll.errors import NotFound

SEEDS = spread(2, range(count("ROCKETPOLL_BATCH_SHAPES", 12, wide=60)))
FOUND_MAX = 64
WORDS = ("a", "0", "KEYS", "UNIQ_KEY", "A.B", "order-17", "Ünï", "日本", "😀", "e\u0301", "k" * 40)


class Shapes:
    """Messages in a random shape for each batch: bodies, keys, tags and properties."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def word(self):
        number = self.random.randrange(30) if self.random.random() < 0.4 else ""
        return f"{self.random.choice(WORDS)}{number}"

    def batch(self, topic):
        """Return messages of one size, or in a third of the batches of any size."""
        make = self.random.choice((self._fixed_size(), self._fixed_size(), self._anything))
        return [make(topic) for _ in range(self.random.choice((1, 10, 15, 16, 17, 60, 100, 400)))]

    def _fixed_size(self):
        chosen = self.random
        keys, width, body = chosen.randrange(4), chosen.choice((1, 3, 7)), chosen.randrange(1, 300)

        def make(topic):
            digits = [f"{chosen.randrange(10**width):0{width}}" for _ in range(keys)]
            properties = {"p": f"{chosen.randrange(1000):03}"}
            return Message(topic, chosen.randbytes(body), "red", digits, properties)

        return make

    def _anything(self, topic):
        chosen = self.random
        body = chosen.randbytes(chosen.choice((1, 2, 100, 100, 10_000)))
        keys = [self.word() for _ in range(chosen.choice((0, 1, 1, 3, 20)))]
        properties = {f"{self.word()}p": self.word() for _ in range(chosen.randrange(3))}
        tag = self.word() if chosen.random() < 0.5 else None
        return Message(topic, body, tag, keys, properties, flag=chosen.choice((0, -5, 2**31 - 1)))

    def send(self, producer, messages):
        """Send a batch in one of the possible ways."""
        if self.random.random() < 0.5:
            producer.send_batch(messages)
            return
        columns = {
            "body": pa.array([each.body for each in messages], pa.binary()),
            "keys": pa.array([each.keys for each in messages], pa.list_(pa.string())),
            "tags": pa.array([each.tags for each in messages], pa.string()),
            "flag": pa.array([each.flag for each in messages], pa.int32()),
            "properties": pa.array([own_properties(each) for each in messages], MAPS),
        }
        producer.send_table(pa.table(columns), messages[0].topic)


MAPS = pa.map_(pa.string(), pa.string())
OF_BROKERS_AND_CLIENTS = frozenset(
    ("KEYS", "TAGS", "UNIQ_KEY", "WAIT", "CLUSTER", "MSG_REGION", "TRACE_ON", "INNER_NUM")
)


def own_properties(message):
    return sorted(
        (name, value)
        for name, value in message.properties.items()
        if name not in OF_BROKERS_AND_CLIENTS
    )


def content(message):
    keys, properties = tuple(message.keys), own_properties(message)
    return repr((message.body, message.tags or None, keys, message.flag, properties))


def place(message):
    return message.queue.queue_id, message.queue_offset


class Lookups:
    """All lookups in a topic, compared with its messages."""

    def __init__(self, broker, topic, chosen):
        self._broker, self._topic, self._random = broker, topic, chosen
        self.messages = broker.messages(topic)
        self._by_key, self._by_tag = defaultdict(set), defaultdict(set)
        for each in self.messages:
            self._by_tag[each.tags].add(place(each))
            for key in each.keys:
                self._by_key[key].add(place(each))

    def some(self, values, most):
        values = list(values)
        return self._random.sample(values, min(most, len(values)))

    def check(self):
        with Admin(self._broker.address) as admin:
            rare = [key for key, found in self._by_key.items() if len(found) < FOUND_MAX]
            for key in self.some(rare, 20):
                # the index lags behind the queues
                wait_until(lambda key=key: self._places_of(admin, key) == self._by_key[key])
            for each in self.some(self.messages, 10):
                if each.message_id != each.offset_message_id:
                    by_id = admin.messages_by_unique_id(self._topic, each.message_id)
                    assert [place(found) for found in by_id] == [place(each)]
                if each.store_host == self._broker.address:  # the id contains the host
                    assert place(admin.message_by_offset_id(each.offset_message_id)) == place(each)
        for tag in self.some(filter(None, self._by_tag), 3):
            assert self._read(tags=tag) == self._by_tag[tag], tag
        start = self._random.choice(self.messages).store_timestamp
        later = {place(each) for each in self.messages if each.store_timestamp >= start}
        assert self._read(start=start) == later

    def _places_of(self, admin, key):
        try:
            found = admin.messages_by_key(self._topic, key, messages_max=FOUND_MAX)
        except NotFound:
            return set()
        return {place(each) for each in found}

    def _read(self, **wanted):
        columns = ["queueId", "queueOffset"]
        table = read_table(self._topic, self._broker.address, columns=columns, **wanted)
        return {tuple(row.values()) for row in table.to_pylist()}


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_of_any_shape_are_found_by_key_id_tag_and_time_also_after_a_rebuild(seed, tmp_path):
    shapes = Shapes(seed)
    flush = ("ASYNC_FLUSH", "SYNC_FLUSH")[seed % 2]
    settings = {"mappedFileSizeCommitLog": 8 << 20, "maxIndexNum": 2_000, "maxHashSlotNum": 500}
    sent = []
    with EmbeddedBroker(tmp_path, flushDiskType=flush, **settings) as broker:
        broker.create_topic("T", queues=shapes.random.choice((1, 3)))
        with Producer("p", broker.address) as producer:
            for _ in range(15):
                messages = shapes.batch("T")
                shapes.send(producer, messages)
                sent += messages
        lookups = Lookups(broker, "T", shapes.random)
        assert sorted(map(content, lookups.messages)) == sorted(map(content, sent))
        lookups.check()
        broker.restart() if flush == "ASYNC_FLUSH" else broker.lose_power()
        lookups.check()
    shutil.rmtree(tmp_path / "index")
    shutil.rmtree(tmp_path / "consumequeue")
    with EmbeddedBroker(tmp_path, flushDiskType=flush, **settings) as broker:
        rebuilt = Lookups(broker, "T", shapes.random)
        assert [*map(content, rebuilt.messages)] == [*map(content, lookups.messages)]
        rebuilt.check()
