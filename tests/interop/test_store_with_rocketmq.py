"""A real RocketMQ broker serves the files of our store, and our store the files of that broker.

Both use one directory in turn. Everything that a Java client can query about each message, by
queue, offset, id, key and time, is compared with our store's data and with the sent message.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.remoting_clients import BrokerClients
from support.rocketmq.real_broker import Broker
from support.rocketmq.shared_store import (
    Place,
    Queues,
    all_queues,
    as_java_says,
    check_same,
    java_queues,
    now_ms,
)
from support.stores.small_store import message, messages_of, put_batch, read_all

from rmq_spark.wire.chunk import encode_chunk
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import compress_body
from rmq_spark.wire.message.hosts import Host, parse_host
from rmq_spark.wire.message.message_id import UniqueId
from rmq_spark.wire.message.record import StoredMessage, decode_record
from rmq_spark.wire.names import SCHEDULE_TOPIC
from rocketpoll.broker.store.errors import ForeignFile
from rocketpoll.broker.store.message_store import MessageStore
from rocketpoll.broker.store.results import GetMessageStatus, PutMessageResult, PutMessageStatus

pytestmark = pytest.mark.interop

TOPICS = {"Orders": 4, "Events": 2, "Late": 1, "Deals": 1, "Empty": 1}
QUEUES = [(topic, queue_id) for topic, queues in TOPICS.items() for queue_id in range(queues)]
SOON, IN_TWO_HOURS = 1, 18
DELAYED_QUEUES = [(SCHEDULE_TOPIC, level - 1) for level in (SOON, IN_TWO_HOURS)]
ALL_QUEUES = QUEUES + DELAYED_QUEUES

SINGLES, BATCHES, BATCH_MESSAGES, CHUNK_MESSAGES, DELAYED = 120, 5, 20, 300, 20
BODY_BYTES, CHUNK_BODY_BYTES = (1, 100, 1000, 20_000), 5000
STEP_MS = 7  # between two messages, so that a time identifies one
FOR_EVER = (1 << 63) - 1
V6_HOST = parse_host("[2001:db8::1]:5000")


@pytest.fixture
def place(rocketmq, tmp_path) -> Place:
    return Place(rocketmq, tmp_path.name, tmp_path / "store", TOPICS)


@pytest.mark.wide
def test_java_serves_what_our_store_wrote(place):
    clock = SteppingClock(now_ms() - 300_000)
    store = place.our_store(clock)
    put_all_kinds(store, clock, place.host, Random(1))
    ours = all_queues(store, ALL_QUEUES)
    store.shutdown()
    assert len(names_in(place.root / "commitlog")) >= 3

    with place.java_broker() as broker:
        delivered = broker.ask("message", topic="Late", queueId=0, queueOffset=DELAYED // 2 - 1)
        assert delivered["body"] == ours[SCHEDULE_TOPIC, SOON - 1]["messages"][-1]["body"]
        theirs = java_queues(broker, ALL_QUEUES)
        check_same(without_late(theirs), without_late(ours))
        check_java_finds(broker, ours, place.version)
        broker.kill()

    with (
        place.java_broker() as broker
    ):  # which now checks our files like those of a broker that crashed
        check_same(without_late(java_queues(broker, ALL_QUEUES)), without_late(ours))
        check_java_finds(broker, ours, place.version)
        broker.kill()

    store = place.our_store()
    assert store.state().holes == ()
    again = all_queues(store, ALL_QUEUES)
    check_same(without_late(again), without_late(ours))
    assert again["Late", 0]["messages"][: DELAYED // 2] == theirs["Late", 0]["messages"]
    check_our_store_finds(store, without_late(ours))
    store.shutdown()


@pytest.mark.wide
@pytest.mark.parametrize("ending", [pytest.param("stopped", marks=pytest.mark.wide), "killed"])
def test_our_store_serves_what_java_wrote_and_java_what_we_add(place, ending):
    with place.java_broker() as broker:
        sent = send_all_kinds(broker, Random(2))
        theirs = java_queues(broker, ALL_QUEUES)
        check_sent(theirs, sent)
        if ending == "stopped":
            broker.stop()
        else:
            broker.kill()
    assert ("abort" in names_in(place.root)) == (ending == "killed")
    consume_queues = written_bytes(place.root / "consumequeue")
    index = [*written_bytes(place.root / "index").values()]

    store = place.our_store()
    assert store.state().recovered_from_crash == (ending == "killed")
    assert store.state().holes == ()
    assert written_bytes(place.root / "consumequeue") == consume_queues
    if place.version == "4.9.7":  # 5.5 also has the tags in its index
        assert [*written_bytes(place.root / "index").values()] == index
    check_same(all_queues(store, ALL_QUEUES), theirs)
    check_our_store_finds(store, theirs)
    put_all_kinds(store, SteppingClock(now_ms()), place.host, Random(3))
    ours = all_queues(store, ALL_QUEUES)
    store.shutdown()
    for queue, before in theirs.items():
        assert ours[queue]["messages"][: len(before["messages"])] == before["messages"]

    with place.java_broker() as broker:
        late = broker.ask(
            "message", topic="Late", queueId=0, queueOffset=ours["Late", 0]["maxOffset"]
        )
        check_same(without_late(java_queues(broker, ALL_QUEUES)), without_late(ours))
        check_java_finds(broker, without_late(ours), place.version)
        one_more = broker.ask("send", topic="Orders", queueId=0, messages=[to_send(b"one more")])
        assert one_more["queueOffset"] == ours["Orders", 0]["maxOffset"]
        broker.kill()

    store = place.our_store()  # Java has kept our checkpoint, and written into it
    assert store.state().holes == ()
    found = all_queues(store, ALL_QUEUES)
    store.shutdown()
    assert found["Orders", 0]["messages"].pop()["messageId"] == one_more["messageIds"][0]
    found["Orders", 0]["maxOffset"] -= 1
    check_same(without_late(found), without_late(ours))
    assert late in found["Late", 0]["messages"]


OTHER_SIZES = {
    "files of the log": {"mapped_file_size_commit_log": 1 << 21},
    "files of queues": {"mapped_file_size_consume_queue": 300 * 20},
    "slots of the index": {"max_hash_slot_num": 200},
    "entries of the index": {"max_index_num": 400},
}


@pytest.mark.wide
@pytest.mark.parametrize("sizes", OTHER_SIZES.values(), ids=OTHER_SIZES)
def test_java_store_with_other_file_sizes_is_refused_unchanged(place, sizes):
    with place.java_broker() as broker:
        sent = [to_send(b"x" * 50_000, keys=f"k{number}") for number in range(30)]
        for number, each in enumerate(sent):
            broker.ask("send", topic="Orders", queueId=number % 4, messages=[each])
        theirs = java_queues(broker, QUEUES)
        broker.stop()
    before = written_bytes(place.root)
    given = place.config
    place.config = dataclasses.replace(given, **sizes)
    with pytest.raises(ForeignFile, match="start with the"):
        place.our_store()
    assert written_bytes(place.root) == before
    place.config = given
    store = place.our_store()
    check_same(all_queues(store, QUEUES), theirs)
    assert [len(store.query_message("Orders", f"k{n}", 9, 0, FOR_EVER)) for n in range(30)] == [
        1
    ] * 30
    store.shutdown()


@pytest.mark.wide
@pytest.mark.parametrize("what", ["files of the log", "files of queues"])
def test_java_refuses_our_files_of_another_size_and_leaves_them_unchanged(place, what):
    """Java chooses the size of index files itself."""
    clock = SteppingClock(now_ms() - 300_000)
    store = place.our_store(clock)
    put_all_kinds(store, clock, place.host, Random(1))
    ours = all_queues(store, ALL_QUEUES)
    store.shutdown()
    given = place.config
    place.config = dataclasses.replace(given, **OTHER_SIZES[what])
    with pytest.raises(AssertionError, match="BrokerStartup has ended with 253"):
        place.java_broker().__enter__()
    place.config = given
    store = place.our_store()
    assert not store.state().recovered_from_crash
    check_same(all_queues(store, ALL_QUEUES), ours)
    store.shutdown()


def test_light_queues_are_complete_after_rocketmq_returns(place):
    if place.version == "4.9.7":
        pytest.skip("4.9 has no light queues")
    light = "%LMQ%a"
    settings = {"enableMultiDispatch": "true", "enableLmq": "true"}

    async def light_bodies() -> list[str]:
        found: list[str] = []
        async with BrokerClients(place.port) as clients:
            client = await clients.connect()
            while (pulled := await client.pull(len(found), light)).bodies:
                found += pulled.bodies
        return found

    async def send() -> None:
        async with BrokerClients(place.port) as clients:
            client = await clients.connect()
            for number in range(6):
                also = {"INNER_MULTI_DISPATCH": light} if number % 2 else {}
                await client.put(f"m{number}", topic="Orders", properties=also)

    with place.java_broker(**settings) as broker:
        asyncio.run(send())
        wait_until("the light queue", lambda: len(asyncio.run(light_bodies())) == 3)
        broker.stop()
    store = place.our_store()
    assert [each.body for each in read_all(store, "Orders", 0)] == [b"m%d" % n for n in range(6)]
    assert store.queue_nums() == {"Orders": 1}
    stored(store.put_message(message("ours", "Orders")))
    store.shutdown()
    with place.java_broker(**settings):
        assert asyncio.run(light_bodies()) == ["m1", "m3", "m5"]


def without_late(queues: Queues) -> Queues:
    """Return all queues but that of delayed messages, which Java delivers again after a crash."""
    return {queue: held for queue, held in queues.items() if queue[0] != "Late"}


def names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def written_bytes(directory: Path) -> dict[str, bytes]:
    """Return all files up to their last non-zero byte; Java preallocates the next file."""
    contents = {
        str(path.relative_to(directory)): path.read_bytes().rstrip(b"\0")
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    return {name: content for name, content in contents.items() if content}


# ---- writing with our store


class SteppingClock:
    """A clock that moves whenever it is read."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        self.now_ms += STEP_MS
        return self.now_ms


def put_all_kinds(store: MessageStore, clock: SteppingClock, host: Host, dice: Random) -> None:
    """Put messages singly, in batches and in chunks: plain, compressed, delayed and committed."""
    unique_keys = unique_ids(clock.now_ms)

    def a_message(topic: str, queue_id: int, **more: Any) -> StoredMessage:
        body = dice.randbytes(dice.choice(BODY_BYTES))
        named = {
            "UNIQ_KEY": next(unique_keys),
            "keys": some_keys(dice),
            "tags": dice.choice([None, "A", "B"]),
        }
        made = message(body, topic, queue_id, **named, **{"place": "\u00fc \u5024", **more})
        return dataclasses.replace(
            made, born_timestamp=clock.now_ms - 5, store_host=host, flag=dice.randrange(1 << 31)
        )

    for number in range(SINGLES):
        each = a_message(
            *dice.choice([("Orders", queue_id) for queue_id in range(4)] + [("Events", 0)])
        )
        if number % 10 == 3:
            body = compress_body(b"again and again " * 100, MessageSysFlag.COMPRESSION_ZLIB)
            compressed = MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB
            each = dataclasses.replace(each, body=body, sys_flag=compressed.value)
        if number % 10 == 5:
            each = dataclasses.replace(
                each, born_host=V6_HOST, sys_flag=MessageSysFlag.BORN_HOST_V6.value
            )
        if number % 10 == 7:
            each = dataclasses.replace(each, reconsume_times=3)
        if (
            number % 10 == 9
        ):  # a client's own checksum, a piece that is no property, no separator at the end
            text = each.properties_text + "__CRC32#\x010123456789\x02odd"
            each = dataclasses.replace(each, properties_text=text)
        stored(store.put_message(each))
    for number in range(BATCHES):
        batch = [a_message("Orders", number % 4) for _ in range(BATCH_MESSAGES)]
        assert stored(put_batch(store, *batch)).message_count == BATCH_MESSAGES
    chunk = encode_chunk(
        {
            "topic": "Events",
            "queueId": 1,
            "body": [dice.randbytes(CHUNK_BODY_BYTES) for _ in range(CHUNK_MESSAGES)],
            "tags": [dice.choice([None, "A", "B"]) for _ in range(CHUNK_MESSAGES)],
            "keys": [f"c{dice.randrange(1 << 30)}" for _ in range(CHUNK_MESSAGES)],
            "properties": [
                {"UNIQ_KEY": next(unique_keys), "n": str(n)} for n in range(CHUNK_MESSAGES)
            ],
            "bornTimestamp": clock.now_ms,
            "bornHost": "127.0.0.1:4711",
            "storeHost": str(host),
        }
    )
    assert stored(store.put_chunk(chunk.data, chunk.sizes.tolist())).message_count == CHUNK_MESSAGES
    committed = a_message(
        "Deals", 0, TRAN_MSG="true", PGROUP="peers_producer", REAL_TOPIC="Deals", REAL_QID="0"
    )
    stored(
        store.put_message(
            dataclasses.replace(
                committed,
                sys_flag=MessageSysFlag.TRANSACTION_COMMIT.value,
                prepared_transaction_offset=4711,
            )
        )
    )
    for number in range(DELAYED):
        # Java keeps properties in a HashMap, and writes them in another order: hence the many
        # names.
        level = IN_TWO_HOURS if number % 2 else SOON
        real = {"REAL_TOPIC": "Late", "REAL_QID": "0", "DELAY": str(level), f"p{number}": "x"}
        stored(store.put_message(a_message(SCHEDULE_TOPIC, level - 1, **real)))
    store.wait_until_stored(stored(store.put_message(a_message("Orders", 0))))


def some_keys(dice: Random) -> str | None:
    """Return no key, a unique one, or two keys, one of which other messages share."""
    own = f"k{dice.randrange(1 << 30)}"
    return dice.choice([None, own, f"{own} shared{dice.randrange(20)}"])


def unique_ids(now_ms: int) -> Iterator[str]:
    """Yield ids like those of Java's producers, with the time of sending in them."""
    now = datetime.fromtimestamp(now_ms / 1000, timezone.utc).astimezone()
    month = datetime(now.year, now.month, 1).astimezone()
    month_ms = now_ms - int(month.timestamp() * 1000)
    for number in range(1 << 16):
        yield UniqueId(bytes([127, 0, 0, 1]), 4711, now_ms % (1 << 32), month_ms, number).encode()


def stored(result: PutMessageResult) -> PutMessageResult:
    assert result.status is PutMessageStatus.PUT_OK, result
    return result


# ---- writing with a Java producer


def send_all_kinds(broker: Broker, dice: Random) -> list[dict[str, Any]]:
    """Send the same kinds through a producer; return the messages with the acknowledged
    positions."""
    sent = []

    def send(topic: str, queue_id: int, messages: list[dict[str, Any]]) -> None:
        result = broker.ask("send", topic=topic, queueId=queue_id, messages=messages)
        assert result["status"] == "SEND_OK"
        assert len(result["messageIds"]) == len(result["offsetMessageIds"]) == len(messages)
        ids = zip(messages, result["messageIds"], result["offsetMessageIds"], strict=True)
        for number, (each, unique_key, offset_id) in enumerate(ids):
            place = {
                "topic": topic,
                "queueId": queue_id,
                "queueOffset": result["queueOffset"] + number,
            }
            if each["delayLevel"]:
                place["topic"], place["queueId"] = SCHEDULE_TOPIC, each["delayLevel"] - 1
            sent.append({**each, **place, "messageId": unique_key, "offsetMessageId": offset_id})

    def some(count: int) -> list[dict[str, Any]]:
        return [
            to_send(
                dice.randbytes(dice.choice(BODY_BYTES)),  # the longest are compressed
                keys=some_keys(dice),
                tags=dice.choice([None, "A", "B"]),
                flag=dice.randrange(1 << 31),
                properties={"place": "\u00fc \u5024"},
            )
            for _ in range(count)
        ]

    for _ in range(SINGLES):
        send(
            *dice.choice([*((("Orders", queue_id)) for queue_id in range(4)), ("Events", 0)]),
            some(1),
        )
    for number in range(BATCHES):
        send("Events", number % 2, some(BATCH_MESSAGES))
    send("Orders", 3, [to_send(b"passed on", properties={"__CRC32#": "1234567890", "p": "x"})])
    for level in (SOON, IN_TWO_HOURS):
        send("Late", 0, [to_send(dice.randbytes(10), delayLevel=level)])
    for commit in (True, False, True):
        body = to_send(b"rolled back" if not commit else b"committed")
        broker.ask("send in a transaction", topic="Deals", commit=commit, message=body)
    broker.ask("message", topic="Deals", queueId=0, queueOffset=1)
    broker.ask("message", topic="Late", queueId=0, queueOffset=0)
    return sent


def to_send(body: bytes, **fields: Any) -> dict[str, Any]:
    """Return the description of a message for the Java client."""
    empty = {"keys": None, "tags": None, "flag": 0, "delayLevel": 0, "properties": {}}
    return {"body": body.hex(), **empty, **fields}


def check_sent(theirs: Queues, sent: list[dict[str, Any]]) -> None:
    """Check the acknowledgements that Java got."""
    for each in sent:
        found = theirs[each["topic"], each["queueId"]]["messages"][each["queueOffset"]]
        for name in (
            "body",
            "flag",
            "messageId",
            "offsetMessageId",
            "queueOffset",
            "queueId",
            "topic",
        ):
            assert found[name] == each[name]
        assert (found.get("keys"), found.get("tags")) == (each["keys"], each["tags"])
        assert each["properties"].items() <= found["properties"].items()
    deals = [bytes.fromhex(each["body"]) for each in theirs["Deals", 0]["messages"]]
    assert deals == [b"committed"] * 2


# ---- reading


def check_java_finds(broker: Broker, queues: Queues, version: str) -> None:
    """Check that Java finds each message by its two ids, its keys and its time."""
    by_key = messages_by_key(queues)
    for each in every_message(queues):
        topic, unique_key = each["topic"], each["messageId"]
        assert broker.ask("view", topic=topic, id=each["offsetMessageId"]) == each
        assert broker.ask("unique key", topic=topic, key=unique_key) == each
    for (topic, key), expected in by_key.items():
        found = broker.ask("key", topic=topic, key=key, begin=0, end=FOR_EVER)
        assert in_order(found) == expected
    for (topic, queue_id), held in queues.items():
        for timestamp, expected in offsets_by_time(held, exactly=version == "4.9.7"):
            found = broker.ask("time", topic=topic, queueId=queue_id, timestamp=timestamp)
            assert found == expected, (topic, queue_id, timestamp)


def check_our_store_finds(store: MessageStore, queues: Queues) -> None:
    """Check that our store finds the same."""

    def found_by(topic: str, key: str) -> list[dict[str, Any]]:
        records = store.query_message(topic, key, 64, 0, FOR_EVER)
        return [as_java_says(decode_record(record), store) for record in records]

    for each in every_message(queues):
        result = store.get_message(each["topic"], each["queueId"], each["queueOffset"], count_max=1)
        assert result.status is GetMessageStatus.FOUND
        assert [as_java_says(found, store) for found in messages_of(result)] == [each]
        assert each in found_by(each["topic"], each["messageId"])
    for (topic, key), expected in messages_by_key(queues).items():
        assert in_order(found_by(topic, key)) == expected
    for (topic, queue_id), held in queues.items():
        for timestamp, expected in offsets_by_time(held):
            assert store.offset_by_time(topic, queue_id, timestamp) == expected


def every_message(queues: Queues) -> Iterator[dict[str, Any]]:
    for held in queues.values():
        yield from held["messages"]


def messages_by_key(queues: Queues) -> Mapping[tuple[str, str], list[dict[str, Any]]]:
    by_key: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in every_message(queues):
        for key in each.get("keys", "").split():
            by_key.setdefault((each["topic"], key), []).append(each)
    return {key: in_order(messages) for key, messages in by_key.items()}


def in_order(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(messages, key=lambda each: each["physicalOffset"])


def offsets_by_time(held: Mapping[str, Any], *, exactly: bool = False) -> Iterator[tuple[int, int]]:
    """Yield times, and the first offset of a queue that was stored then or later. Only times of a
    single message are used: for others, 4.9 answers with the nearest offset, or any of several."""
    offsets: dict[int, list[int]] = {}
    for each in held["messages"]:
        offsets.setdefault(each["storeTimestamp"], []).append(each["queueOffset"])
    for timestamp, found in offsets.items():
        if len(found) == 1 or not exactly:
            yield timestamp, found[0]
        if timestamp - 1 not in offsets and not exactly:
            yield timestamp - 1, found[0]
    if offsets and not exactly:
        yield max(offsets) + 1, held["maxOffset"]
