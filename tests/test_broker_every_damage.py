"""Every file of a store x every kind of damage: a broker reports it, or returns all right messages.

A start either refuses with a line that names the file, or serves. Then each returned message is
right, those that are whole in the log are found by offset, tag, key and time, a hole in the log is
reported with its file, and no group has moved forward. Nothing hangs, and no traceback appears.

ROCKETPOLL_DAMAGE_ROUNDS flips more bits, and applies each damage to all four stores.
"""

from __future__ import annotations

import os
import random
import shutil
from typing import NamedTuple

import pytest
from support.brokers.in_process import run, small_broker, started
from support.disks.faulty_disk import usage_of_large_disk
from support.suite.selection import spread

from rmq_spark.errors import RocketPollError
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.message.record import decode_records
from rmq_spark.wire.message_queue import QueueKey
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.store.files.disk import LocalDisk

ROUNDS = int(os.environ.get("ROCKETPOLL_DAMAGE_ROUNDS", "1"))
LOG_FILE_BYTES = 1 << 14
SIZES = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": LOG_FILE_BYTES,
    "maxMessageSize": 4_000,
    "mappedFileSizeConsumeQueue": 200,
}
COUNT = 60
GROUP = "G"


class FillingDisk(LocalDisk):
    """A disk with a settable usage."""

    ratio = 0.1

    def usage(self, path):  # noqa: ARG002  # signature of the protocol
        return usage_of_large_disk(self.ratio)


class Message(NamedTuple):
    """An acknowledged message, and its position."""

    queue: QueueKey
    offset: int
    body: str
    tag: str
    key: str
    stored_ms: int
    place: int
    size: int


class GoodStore(NamedTuple):
    """An intact store, an older copy of it, and its messages."""

    root: object
    older: object
    messages: list[Message]
    committed: dict[QueueKey, int]


async def put_all(client, numbers):
    for number in numbers:
        properties = {"KEYS": f"k{number}", "TAGS": "ab"[number % 3 == 0]}
        await client.put(f"{number} " + "x" * 600, queue_id=number % 2, properties=properties)
    await client.put("later", topic="Delayed", properties={"DELAY": "18"})


async def commit(client, queue, offset):
    fields = {
        "consumerGroup": GROUP,
        "topic": queue[0],
        "queueId": queue[1],
        "commitOffset": offset,
    }
    await client.call(
        RemotingCommand(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            ext_fields={name: str(each) for name, each in fields.items()},
        )
    )


async def messages_in(broker):
    """Return all messages that can be pulled."""
    client, found = await broker.connect(), []
    for queue in (("T", 0), ("T", 1)):
        for offset, each in (await pulled(client, queue))[0].items():
            size = len(broker.store.record_at(each.physical_offset))
            found.append(
                Message(
                    queue,
                    offset,
                    each.body.decode(),
                    each.tags,
                    each.properties["KEYS"],
                    each.store_timestamp,
                    each.physical_offset,
                    size,
                )
            )
    return found


async def pulled(client, queue, tag="*"):
    """Follow a queue as a consumer; return the messages by offset, and the remark that
    stopped it."""
    topic, queue_id = queue
    found, at = {}, 0
    while True:
        answer = await client.pull(at, topic, queue_id, group="Reader", subscription=tag)
        found |= {each.queue_offset: each for each in answer.messages}
        if answer.code not in {0, 20, 21} or (answer.code == 21 and answer.next_offset <= at):
            return found, answer.remark if answer.code != 19 else None
        if answer.next_offset <= at:
            return found, None
        at = answer.next_offset


def whole(root, end):
    """Create a store of a stopped or killed broker whose first files may have expired, or whose
    topic was recreated since the older copy, with as many messages or more."""
    disk = FillingDisk()

    async def story():
        good = None
        async with started(small_broker(root / "store", **SIZES), disk) as broker:
            client = await broker.connect()
            await put_all(client, range(COUNT // 2))
            await commit(client, ("T", 0), 5)
            broker.controller.tables.save()
            broker.store.save_checkpoint()
            shutil.copytree(root / "store", root / "older")
            if end == "made again":
                await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": "T"})
                await put_all(client, range(COUNT // 2))
            await put_all(client, range(COUNT // 2, COUNT))
            for queue_id, offset in ((0, 25), (1, 30)):
                await commit(client, ("T", queue_id), offset)
            broker.controller.tables.save()
            broker.controller.schedule.save()
            if end == "expired":
                disk.ratio = 0.87
                broker.store.clean()
                disk.ratio = 0.1
                await put_all(client, range(COUNT, COUNT + 8))
            committed = {("T", 0): 25, ("T", 1): 30}
            good = GoodStore(root / end, root / "older", await messages_in(broker), committed)
            if end != "stopped":
                shutil.copytree(root / "store", root / end)
        if end == "stopped":
            shutil.copytree(root / "store", root / end)
        return good

    found = []

    async def keep():
        found.append(await story())

    run(keep())
    assert len(found[0].messages) > COUNT // 4
    return found[0]


ENDS = ("stopped", "killed", "expired", "made again")


@pytest.fixture(scope="module")
def good_stores(tmp_path_factory):
    return {end: whole(tmp_path_factory.mktemp(end), end) for end in ENDS}


# ---- kinds of damage: functions of a file, dice, and the path of an older copy


def keeping(change):
    def damage(path, dice, _older):
        path.write_bytes(change(path.read_bytes(), dice))

    return damage


def sized(change):
    """Apply a change to the content alone."""
    return keeping(lambda data, _dice: change(data))


def flipped(data, dice):
    written = [at for at, byte in enumerate(data) if byte] or [0]
    changed = bytearray(data or b"\0")
    changed[dice.choice(written)] ^= 1 << dice.randrange(8)
    return bytes(changed)


def in_place_of(make):
    def damage(path, _dice, _older):
        path.unlink()
        make(path)

    return damage


def missing(path, _dice, _older):
    path.unlink()


def older_copy(path, _dice, older):
    path.unlink()
    if older.exists():
        shutil.copy(older, path)


KINDS = {
    "missing": missing,
    "empty": sized(lambda data: data[:0]),
    "zeros": sized(lambda data: bytes(len(data))),
    "half": sized(lambda data: data[: len(data) // 2]),
    "half zeros": sized(lambda data: data[: len(data) // 2].ljust(len(data), b"\0")),
    "noise": keeping(lambda data, dice: dice.randbytes(len(data))),
    "grown": keeping(lambda data, dice: data + dice.randbytes(20)),
    "a pipe": in_place_of(os.mkfifo),
    "a directory": in_place_of(os.mkdir),
    "a link to nowhere": in_place_of(lambda path: path.symlink_to("nowhere")),
    "a link to a device": in_place_of(lambda path: path.symlink_to("/dev/zero")),
    "an older copy": older_copy,
    **{f"a bit, {number}": keeping(flipped) for number in range(3 * ROUNDS)},
}


def files_of(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


# ---- checks


async def found_faults(root, good, log_text):
    """Return the errors of a broker that starts on this store."""
    intact = {each for each in good.messages if is_intact(root, good.root, each)}
    faults = []
    async with started(small_broker(root, **SIZES), FillingDisk()) as broker:
        client = await broker.connect()
        for queue, committed in good.committed.items():
            own = {each.offset: each for each in good.messages if each.queue == queue}
            plain, remark = await pulled(client, queue)
            tagged, _ = await pulled(client, queue, "a")
            for offset, each in [*plain.items(), *tagged.items()]:
                if offset not in own or own[offset].body != each.body.decode():
                    faults.append(f"{queue} {offset} is {each.body[:10]}")
            for each in sorted(intact & set(own.values())):
                ways = not_found_by(each, plain, tagged, broker.store)
                faults += [f"{each.body[:4]} is not found by its {way}: {remark}" for way in ways]
            now = await client.committed(GROUP, *queue) or 0
            if now > committed:
                faults.append(f"{GROUP} is at {now} of {queue}")
    names = dict.fromkeys(name_of(each) for each in good.messages if each not in intact)
    return faults + [
        f"{name} has lost messages, and is not named" for name in names if name not in log_text()
    ]


def not_found_by(message, plain, tagged, store):
    """Return the lookups that do not find a message, although they should."""
    if message.offset not in plain:
        yield "offset"
    if message.tag == "a" and message.offset not in tagged:
        yield "tag"
    if not found_by_key(store, message):
        yield "key"
    if store.offset_by_time(*message.queue, message.stored_ms) > message.offset:
        yield "time"


def name_of(message):
    """Return the name of the log file that contains a message."""
    return f"commitlog/{message.place - message.place % LOG_FILE_BYTES:020d}"


def found_by_key(store, each):
    records = store.query_message(each.queue[0], each.key, 9, 0, 1 << 62)
    return any(
        found.body.decode() == each.body for data in records for found in decode_records(data)
    )


def is_intact(root, good, message):
    start = message.place % LOG_FILE_BYTES

    def record(of):
        path = of / name_of(message)
        return path.read_bytes()[start : start + message.size] if path.is_file() else None

    return record(root) == record(good)


def outcome(root, good, log_text):
    """Return the line of a refused start, or the errors of a broker that serves."""
    faults = []

    async def story():
        faults.extend(await found_faults(root, good, log_text))

    try:
        run(story())
    except (RocketPollError, OSError) as error:
        return str(error), []
    return None, faults


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", spread(4, KINDS))
def test_damage_to_any_file_is_reported_or_repaired(good_stores, tmp_path, caplog, kind):
    dice = random.Random(f"{kind} {os.environ.get('ROCKETPOLL_SEED', '1')}")
    wrong = []
    for number, name in enumerate(files_of(good_stores["killed"].root)):
        ends = ENDS if ROUNDS > 1 else [ENDS[(number + dice.randrange(len(ENDS))) % len(ENDS)]]
        for end in ends:
            good = good_stores[end]
            if not (good.root / name).is_file():
                continue
            store = shutil.copytree(good.root, tmp_path / f"{number}-{end}")
            KINDS[kind](store / name, dice, good.older / name)
            caplog.clear()
            refused, faults = outcome(store, good, lambda: caplog.text)
            if refused is not None and store.name not in refused:
                faults.append(f"refused without a name: {refused}")
            faults += [
                f"a traceback: {each.getMessage()}" for each in caplog.records if each.exc_info
            ]
            wrong += [f"{end}: {name}: {kind}: {fault}" for fault in faults[:3]]
            shutil.rmtree(store)
    assert not wrong, "\n".join(wrong)
