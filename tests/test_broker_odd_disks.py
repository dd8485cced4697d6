"""Brokers on limited file systems lose no acknowledged message, and report unsupported
operations."""

import asyncio
import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from support.brokers.in_process import SMALL, BrokerThread
from support.brokers.processes import BrokerProcess, run_broker
from support.clients.remoting_clients import BrokerClients, send_request
from support.disks.fuse_disk import ODDITIES
from support.servers.fake_servers import Peer
from support.suite.selection import spread
from test_broker_bad_stores import MOUNTING, found_in, mounted, needs_mounts, put_some

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.remoting.command import RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import FrameReader
from rocketpoll import (
    ConsumeFromWhere,
    LitePullConsumer,
    LitePullSettings,
    Message,
    Producer,
    read_table,
)
from rocketpoll.broker.settings.settings import config_of

FUSE_DISK = Path(__file__).with_name("support") / "disks" / "fuse_disk.py"
QUICK = {
    "flushDiskType": "SYNC_FLUSH",
    "checkpointIntervalMills": "200",
    "mappedFileSizeCommitLog": str(1 << 16),
    "maxMessageSize": "30000",
}


def fuse(oddity, backing, mount_point):
    """Return a command that mounts a FUSE disk with an oddity, and becomes another command."""
    return [*MOUNTING, sys.executable, str(FUSE_DISK), oddity, str(backing), str(mount_point)]


def can_mount_fuse():
    command = [*fuse("none", FUSE_DISK.parent, "/mnt"), "ls", "/mnt"]
    return (
        Path("/dev/fuse").exists()
        and not subprocess.run(command, capture_output=True, check=False, timeout=20).returncode
    )


needs_fuse = pytest.mark.skipif(not can_mount_fuse(), reason="nobody may mount a FUSE here")


@pytest.fixture
def disk(tmp_path):
    """Return a directory, and the path at which it is mounted as a broker's store."""
    places = tmp_path / "backing", tmp_path / "store"
    for place in places:
        place.mkdir()
    return places


def live_three_times(tmp_path, by):
    """Run a broker three times: send and kill it, then twice send and stop; check the acknowledged
    messages each time."""
    sent = []

    def send(broker, count):
        texts = [f"{len(sent) + number} " + "x" * 4_000 for number in range(count)]
        asyncio.run(put_some(broker, *texts))
        sent.extend(texts)

    with BrokerProcess(tmp_path, by=by, **QUICK) as broker:
        send(broker, 30)
        assert found_in(broker) == sent
        said = broker.said()
        broker.kill()
    with BrokerProcess(tmp_path, by=by, **QUICK) as broker:
        assert found_in(broker) == sent
        send(broker, 20)
        said += broker.said()
        assert broker.stop() == 0
    with BrokerProcess(tmp_path, by=by, **QUICK) as broker:
        assert found_in(broker) == sent
        assert broker.stop() == 0
        said += broker.said()
    assert not any("Traceback" in line for line in said)
    return "\n".join(said)


SAID = {
    "inodes change": "changes the inode numbers of files",
    "directories are not flushed": "cannot flush directories",
}


@needs_fuse
@pytest.mark.parametrize("oddity", spread(2, (each for each in ODDITIES if each != "no locks")))
def test_acknowledged_messages_survive_on_odd_file_systems(disk, tmp_path, oddity):
    said = live_three_times(tmp_path, fuse(oddity, *disk))
    assert [what for what in SAID.values() if what in said] == [
        what for name, what in SAID.items() if name == oddity
    ]


async def put_in(port, *topics):
    """Send a message to each topic in turn, three times."""
    async with BrokerClients(port) as clients:
        client = await clients.connect()
        for number in range(3):
            for topic in topics:
                await client.put(f"{topic} {number}", topic=topic)


async def found_of(port, topic, count):
    async with BrokerClients(port) as clients:
        client = await clients.connect()
        return (await client.pull(0, topic, count=count)).bodies


@needs_fuse
@pytest.mark.parametrize("end", [BrokerProcess.kill, BrokerProcess.stop])
def test_topics_differing_in_case_are_separate_on_case_insensitive_disks(disk, tmp_path, end):
    """The limit of open files is so low that each file is opened again by name."""
    by, topics = fuse("names without case", *disk), ("Orders", "orders")
    for life in range(1, 4):
        with BrokerProcess(tmp_path, by=by, maxOpenFiles="2", **QUICK) as broker:
            asyncio.run(put_in(broker.port, *topics))
            for topic in topics:
                found = asyncio.run(found_of(broker.port, topic, 32))
                assert found == [f"{topic} {number}" for number in range(3)] * life
            end(broker)


@needs_fuse
def test_file_system_without_locks_is_refused_with_the_reason(disk):
    code, _, said = run_broker(
        f"storePathRootDir={disk[1]}", "listenPort=0", by=fuse("no locks", *disk)
    )
    assert code == 1
    assert "the file system does not support the lock that keeps a second broker out" in said
    assert str(disk[1] / "lock") in said


@needs_mounts
def test_store_in_an_overlay_lower_layer_continues_in_the_upper(tmp_path):
    """For example a store in an image; the layers are on two disks."""
    store, lower, upper = (tmp_path / name for name in ("store", "lower", "upper"))
    for directory in (lower, upper):
        directory.mkdir()
    with BrokerProcess(tmp_path, **QUICK) as broker:
        asyncio.run(put_some(broker, "below"))
        broker.kill()
    by = mounted(
        f"mount -t tmpfs none {lower}",
        f"mount -t tmpfs none {upper}",
        f"cp -r {store} {lower}/store",
        f"mkdir {upper}/upper {upper}/work",
        f"mount -t overlay none -o lowerdir={lower}/store,upperdir={upper}/upper,"
        f"workdir={upper}/work,xino=off {store}",
    )
    with BrokerProcess(tmp_path, by=by, **QUICK) as broker:
        asyncio.run(put_some(broker, *map(str, range(50))))
        assert found_in(broker) == ["below", *map(str, range(50))]
        assert broker.stop() == 0
        assert not broker.log()[1:]


# ---- a file system on a loop device

MKFS, LOSETUP = shutil.which("mkfs.ext4"), shutil.which("losetup")
SHUT_DOWN = """
import fcntl, os, struct, sys
EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
"""
"""A program that shuts an ext4 file system down, so that unflushed data is lost.

A flush during the failure may report success nevertheless, as with any program on ext4.
"""


def loop(image, store):
    """Return a command that mounts an image as its store, and becomes another command."""
    return mounted(f"mount -o loop,errors=remount-ro {image} {store}")


def can_mount_loop(directory):
    image, place = directory / "tried", directory / "place"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(8 << 20)
    tries = ([MKFS, "-q", str(image)], [*loop(image, place), "true"])
    found = [
        not subprocess.run(each, capture_output=True, check=False).returncode for each in tries
    ]
    return all(found)


@pytest.fixture(scope="module")
def _loops(tmp_path_factory):
    tools = MKFS, LOSETUP, shutil.which("nsenter")
    if not all(tools) or not can_mount_loop(tmp_path_factory.mktemp("loop")):
        pytest.skip("nobody may mount an image of ext4 here")


@pytest.fixture
def image(_loops, tmp_path):
    """Return an empty ext4 image of 16 MiB."""
    path = tmp_path / "image"
    with path.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run([MKFS, "-q", str(path)], check=True)
    (tmp_path / "store").mkdir()
    return path


def until_unmounted(image):
    """Wait for the unmount after a process ended, before the next mount."""
    while subprocess.run([LOSETUP, "-j", image], capture_output=True, check=True).stdout:
        pass


async def sent_while_it_takes(port, prefix, until):
    """Send until a send is refused, and a little longer; return the acknowledged messages and the
    errors."""
    taken, refused = [], []
    async with BrokerClients(port) as clients:
        client = await clients.connect()
        while len(refused) < until:
            body = f"{prefix} {len(taken) + len(refused)} " + "x" * 3_000
            answer = await client.call(send_request(body))
            (refused if answer.code else taken).append(answer.remark if answer.code else body)
    return taken, refused


@pytest.mark.deep
def test_acknowledged_messages_survive_detaching_a_real_disk(tmp_path, image):
    store, kept, dice = tmp_path / "store", [], random.Random(1)
    for life in range(3):
        with BrokerProcess(tmp_path, by=loop(image, store), **QUICK) as broker:
            asyncio.run(put_some(broker, f"life {life}"))
            found = found_in(broker)
            assert [each for each in found if each in kept] == kept
            assert len(found) == len(set(found))
            sending = threading.Timer(
                dice.uniform(0.05, 0.5),
                broker.in_its_mounts,
                [sys.executable, "-c", SHUT_DOWN, str(store)],
            )
            sending.start()
            taken, refused = asyncio.run(sent_while_it_takes(broker.port, f"life {life}:", 2))
            sending.join()
            assert taken
            assert "Input/output error" in refused[-1]
            kept = found + taken[:-1]
            broker.kill()
        until_unmounted(image)
    with BrokerProcess(tmp_path, by=loop(image, store), **QUICK) as broker:
        assert [each for each in found_in(broker) if each in kept] == kept
        assert broker.stop() == 0


@pytest.mark.deep
def test_real_full_disk_refuses_sends_and_recovers(tmp_path, image):
    store = tmp_path / "store"
    keeping = {**QUICK, "cleanResourceInterval": "3600000", "diskMaxUsedSpaceRatio": "99"}
    with BrokerProcess(tmp_path, by=loop(image, store), **keeping) as broker:
        filler = broker.as_it_sees(store) / "filler"
        asyncio.run(put_some(broker, "first"))
        filler.write_bytes(bytes(1))
        with filler.open("wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 12))
        taken, refused = asyncio.run(sent_while_it_takes(broker.port, "full", 3))
        assert all("No space left" in each or "disk" in each for each in refused)
        filler.unlink()
        while True:
            more, refused = asyncio.run(sent_while_it_takes(broker.port, "room", 1))
            if more:
                break
        assert found_in(broker) == ["first", *taken, *more]
        broker.kill()
    until_unmounted(image)
    with BrokerProcess(tmp_path, by=loop(image, store), **keeping) as broker:
        assert found_in(broker) == ["first", *taken, *more]


@pytest.mark.deep
def test_disk_turning_read_only_is_named_by_each_refusal_and_at_stop(tmp_path, image):
    store = tmp_path / "store"
    with BrokerProcess(tmp_path, by=loop(image, store), **QUICK) as broker:
        asyncio.run(put_some(broker, "before"))
        device = subprocess.run([LOSETUP, "-j", image], capture_output=True, check=True, text=True)
        name = Path(device.stdout.partition(":")[0]).name
        Path(f"/sys/fs/ext4/{name}/trigger_fs_error").write_text("as if the device had failed")
        taken, refused = asyncio.run(sent_while_it_takes(broker.port, "after", 2))
        assert not taken
        assert all("the disk is read-only: [Errno 30]" in each for each in refused)
        assert all(str(store / "commitlog") in each for each in refused)
        assert found_in(broker) == ["before"]
        assert broker.stop() == 1
        *_, last = broker.said()
    assert last.startswith("the broker did not stop cleanly: ")
    assert "the disk is read-only" in last
    until_unmounted(image)
    with BrokerProcess(tmp_path, by=loop(image, store), **QUICK) as broker:
        assert found_in(broker) == ["before"]


# ---- odd directory names

ODD_NAMES = {
    "another encoding": b"gr\xf6sse",
    "an encoding of Japan": "\u30c7\u30fc\u30bf".encode("euc-jp"),
    "a tab and quotes": b"a\tb\"c'd%s",
    "letters of all kinds": "größe \N{SNOWMAN} \U0001f40d".encode(),
    "a long name": b"d" * 250,
    "a dash": b"-rf",
}
FROM_FIRST = LitePullSettings(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
ADMIN_REQUESTS = {
    RequestCode.GET_BROKER_CONFIG: {},
    RequestCode.GET_BROKER_RUNTIME_INFO: {},
    RequestCode.GET_NAMESRV_CONFIG: {},
    RequestCode.EXTENSIONS: {"names": "pull-chunk,proven-files", "nonce": "0" * 32},
}


@pytest.mark.parametrize("name", ODD_NAMES.values(), ids=ODD_NAMES)
def test_store_in_a_directory_with_an_unusual_name_serves_all_clients(tmp_path, name):
    root = tmp_path / os.fsdecode(name)
    config = config_of(
        {**SMALL, "storePathRootDir": str(root), "listenPort": "0", "metricsPort": "0"}
    )
    for life in (1, 2):
        with BrokerThread(config) as broker:
            address = f"127.0.0.1:{broker.port}"
            with Producer("P", address) as producer:
                producer.send(Message("T", b"one"))
                producer.send_table(pa.table({"body": [b"two"]}), topic="T")
            assert read_table("T", address).num_rows == 2 * life
            with LitePullConsumer("G", address, settings=FROM_FIRST) as consumer:
                consumer.subscribe("T")
                while not consumer.poll(timeout_ms=5_000):
                    pass
            with closing(socket.create_connection(("127.0.0.1", broker.port))) as sock:
                peer = Peer(sock)
                for code, fields in ADMIN_REQUESTS.items():
                    peer.send(RemotingCommand(code, opaque=code, ext_fields=fields))
                    assert (peer.receive().code, code) == (0, code)
            metrics = f"http://127.0.0.1:{broker.controller.metrics_port}/metrics"
            with urllib.request.urlopen(metrics) as answer:  # our own port
                assert b"rocketpoll_" in answer.read()


def test_response_remark_escapes_a_file_name_that_is_not_utf_8():
    request = RemotingCommand(1, opaque=1)
    remark = f"the disk is full: {os.fsdecode(ODD_NAMES['another encoding'])}"
    reader = FrameReader()
    reader.feed(request.respond(1, remark).encode())
    answer = decode_command(reader.next_frame())
    assert answer.remark == r"the disk is full: gr\udcf6sse"
