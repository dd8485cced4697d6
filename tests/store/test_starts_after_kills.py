"""After a kill, the next start finds nothing damaged: no written message is lost.

Messages, checkpoints, deletions of topics, and queues without disk space may be in progress. The
directory is copied before each of some disk operations, as a kill would leave it.
"""

import errno
import os
import random
import shutil
import threading

import pytest
from support.disks.faulty_disk import FaultIn, FaultyDisk
from support.stores.kill_campaign import ACKNOWLEDGE_EARLY, Campaign
from support.stores.small_store import bodies, components_of, crash, message, open_store
from support.suite.log_records import lines_of
from support.suite.selection import spread

from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.files.disk import LocalDisk

TOPICS = ("T", "U", "V")
STEPS = 60
COPIES_MAX, CHANCE = 12, 0.05
SMALL_INDEX = {"max_hash_slot_num": 3000, "max_index_num": 40}
"""Slots on several pages, and few entries in a file."""


def check_start(root, caplog, **settings):
    """Open a killed store; check that nothing is rebuilt, and that everything is right."""
    caplog.clear()
    store = open_store(root, **settings)
    assert lines_of(caplog, "rocketpoll.broker.store") == []
    for queue_id in range(2):
        for topic in TOPICS:
            offsets = store.queue_offsets(topic, queue_id)
            assert len(bodies(store, topic, queue_id)) == offsets.next - offsets.first
    return store


def test_checkpoint_beside_a_full_queue_file_is_consistent_after_a_kill(tmp_path, caplog):
    """Queues with space are ahead of the position up to which the whole log was dispatched."""
    no_room = FaultIn(0, True, frozenset({"create"}), errno.ENOSPC, directory="U")
    disk = FaultyDisk(LocalDisk(), [no_room])
    store = open_store(tmp_path, disk, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    store.put_message(message("first"))
    for topic in ("U", "T", "T"):
        store.put_message(message("x", topic, keys="k"))
    components_of(store).log.flush()  # so that one run of reput gets all of them
    store.reput()
    assert store.is_reput_degraded
    store.put_message(message("last"))
    store.save_checkpoint()
    crash(store)
    store = check_start(tmp_path, caplog)
    assert bodies(store) == ["first", "x", "x", "last"]
    assert bodies(store, "U") == ["x"]
    store.shutdown()


class Hooked(FaultyDisk):
    """Calls ``before`` at each operation that changes something."""

    def __init__(self):
        super().__init__(LocalDisk())
        self.before = lambda _call: None

    def _run(self, call):
        self.before(call)
        return super()._run(call)


def test_checkpoint_beside_a_topic_deletion_is_consistent_after_a_kill(tmp_path, caplog):
    """Messages put into the topic during its deletion are dispatched again, and other queues are
    ahead."""
    disk = Hooked()
    store = open_store(tmp_path, disk)
    store.put_message(message("old"))

    def put_meanwhile(call):
        if call.kind == "write_whole":
            disk.before = lambda _call: None
            for topic in ("T", "U", "U"):
                store.put_message(message("new", topic))

    disk.before = put_meanwhile
    store._wake_reput = lambda: None  # the checkpoint comes first
    put = store._wake_after_append
    store._wake_after_append = lambda result: (put(result), store.reput())[0]
    store.delete_topic("T")
    store.save_checkpoint()
    crash(store)
    store = check_start(tmp_path, caplog)
    assert (bodies(store), bodies(store, "U")) == (["new"], ["new", "new"])
    store.shutdown()


def test_kill_during_an_index_flush_takes_no_index_file(tmp_path, caplog):
    disk = Hooked()
    root = tmp_path / "store"
    store = open_store(root, disk, **SMALL_INDEX)
    for number in range(30):
        store.put_message(message(number, keys=f"k{number}"))
    assert store.save_checkpoint()
    noted = sorted(path.name for path in (root / "index").iterdir())
    for number in range(30, 60):
        store.put_message(message(number, keys=f"k{number}"))
    copies = []

    def copy(call):
        if "index" in call.path.parts:
            copies.append(shutil.copytree(root, tmp_path / str(len(copies))))

    disk.before = copy
    store.shutdown()
    assert len(copies) > 4
    for each in copies:
        after = check_start(each, caplog, **SMALL_INDEX)
        assert {path.name for path in (each / "index").iterdir()} >= set(noted)
        for number in range(60):
            assert len(after.query_message("T", f"k{number}", 9, 0, 1 << 62)) == 1
        after.shutdown()


@pytest.mark.parametrize("seed", spread(3, range(16)))
def test_start_after_a_kill_at_any_operation_reports_no_damage(tmp_path, caplog, seed):
    dice = random.Random(seed)
    disk = Hooked()
    root = tmp_path / "store"
    is_sync = dice.random() < 0.5
    settings = {
        **SMALL_INDEX,
        "flush_disk_type": FlushDiskType.SYNC_FLUSH if is_sync else FlushDiskType.ASYNC_FLUSH,
    }
    store = open_store(root, disk, **settings)
    copies, own_thread = [], threading.get_ident()

    def before(call):
        if threading.get_ident() != own_thread:  # it flushes concurrently, which a copy may miss
            return
        if len(copies) < COPIES_MAX and dice.random() < CHANCE:
            copies.append(root.with_name(str(len(copies))))
            shutil.copytree(root, copies[-1])

    disk.before = before

    def full(topic):
        where = FaultIn(0, True, frozenset({"create"}), errno.ENOSPC, directory=topic)
        disk.plan = () if disk.plan else (where,)

    steps = {
        store.delete_topic: 8,
        lambda _topic: store.save_checkpoint(): 12,
        full: 6,
        lambda _topic: store.reput(): 4,
    }
    for number in range(STEPS):
        topic = dice.choice(TOPICS)
        (step,) = dice.choices([*steps, None], [*steps.values(), 60])
        if step is None:
            for _ in range(dice.randrange(1, 4)):
                put = message(
                    "x" * dice.choice((5, 300)), topic, dice.randrange(2), keys=f"{number}"
                )
                store.put_message(put)
                if is_sync and dice.random() < 0.5:
                    components_of(store).log.flush()
                    store.reput()
        else:
            step(topic)
    disk.before = lambda _call: None
    disk.plan = ()
    store.shutdown()
    for each in copies:
        check_start(each, caplog, **settings).shutdown()


# ---- kill -9 at any moment: no acknowledged message is lost or moves, and the store starts


# Longer campaigns: ROCKETPOLL_KILL_CYCLES=1000
CYCLES = int(os.environ.get("ROCKETPOLL_KILL_CYCLES", "20"))
FAULTY_CYCLES = 6


@pytest.mark.wide
def test_killed_store_loses_no_acknowledged_message(tmp_path, dice):
    campaign = Campaign(tmp_path, dice)
    campaign.run(CYCLES)
    assert campaign.findings == []
    assert (
        campaign.acknowledged_count > 10 * CYCLES
    )  # otherwise the children were too slow to report anything


@pytest.mark.wide
def test_store_that_acknowledges_before_writing_fails_the_kill_campaign(tmp_path, dice):
    campaign = Campaign(tmp_path, dice, fault=ACKNOWLEDGE_EARLY)
    campaign.run(FAULTY_CYCLES)
    assert any("lost: message" in finding for finding in campaign.findings)
