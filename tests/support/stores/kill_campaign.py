"""A campaign that kills a store repeatedly, with checks after each kill: see
`store/test_starts_after_kills`.

A child process (`store/crash_writer`) writes. A ledger on disk records each acknowledgement that
the child reports, before anything else happens. The child is then killed with SIGKILL, at any
moment from the first line of its recovery on. The campaign opens the result: in half of the cycles
in place, so that the next child starts after a clean stop, otherwise as a copy, so that the next
child has to recover from the crash itself.

The kernel survives: written data is there, flushed or not. Lost flushes are tested by
`faulty_disk.power_loss_states`.
"""

from __future__ import annotations

import os
import random
import select
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from support.stores.derived_files import differences
from support.stores.small_store import STORE_HOST

from rmq_spark.wire.message.properties import encode_properties
from rmq_spark.wire.message.record import StoredMessage, body_crc_of, decode_record, decode_records
from rocketpoll.broker.store.components import CONSUME_QUEUE, INDEX
from rocketpoll.broker.store.config import FlushDiskType, StoreConfig
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.log.checkpoint_file import CHECKPOINT
from rocketpoll.broker.store.message_store import MessageStore
from rocketpoll.broker.store.queues.consume_queue import ENTRY_BYTES
from rocketpoll.broker.store.results import PutMessageStatus

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parents[2] / "store" / "crash_writer.py"
ACKNOWLEDGE_EARLY = "ack-early"

CYCLES_PER_DIRECTORY = 20
RECOVERY_SECONDS, WRITING_SECONDS = 0.06, 0.3
"""Seconds before a kill: every third kill comes during recovery; the others while
messages arrive."""

REOPEN_SECONDS_MAX = 5.0
SEQUENCES_PER_CYCLE = 1_000_000
HARNESS = 99
"""The writer number of the campaign itself, which checks that the store accepts messages."""

_ENTRIES_PER_FILE = 100
_LOG_FILE_BYTES = 256 << 10
_KEYS_LOOKED_UP = 5
_ALL = 1 << 30


def store_config(root: Path) -> StoreConfig:
    """Return a configuration with files so small that each cycle rolls all kinds over; recovery
    begins at the checkpoint."""
    return StoreConfig(
        store_path_root_dir=root,
        mapped_file_size_commit_log=_LOG_FILE_BYTES,
        mapped_file_size_consume_queue=_ENTRIES_PER_FILE * ENTRY_BYTES,
        max_hash_slot_num=64,
        max_index_num=400,
        flush_disk_type=FlushDiskType.SYNC_FLUSH,
        check_whole_log_bytes=0,
    )


def open_store(root: Path) -> MessageStore:
    """Open the store with the real clock."""
    return MessageStore(store_config(root), LocalDisk(), lambda: time.time_ns() // 1_000_000)


def body_of(writer: int, sequence: int, filling: bytes) -> bytes:
    """Return a body that names its writer."""
    return b"%d %d " % (writer, sequence) + filling


def key_of(writer: int, sequence: int) -> str:
    """Return a unique key."""
    return f"w{writer}-{sequence}"


def message_of(
    writer: int, sequence: int, topic: str, queue_id: int, filling: bytes
) -> StoredMessage:
    """Return a message with a key and a tag."""
    return StoredMessage(
        topic=topic,
        body=body_of(writer, sequence, filling),
        properties_text=encode_properties({"KEYS": key_of(writer, sequence), "TAGS": f"w{writer}"}),
        queue_id=queue_id,
        born_host=STORE_HOST,
        store_host=STORE_HOST,
    )


@dataclass(frozen=True)
class Acknowledged:
    """One acknowledged message."""

    writer: int
    sequence: int
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body_crc: int

    def line(self) -> bytes:
        """Return a ledger line, short enough for an atomic write to a pipe."""
        return " ".join(map(str, astuple(self))).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Acknowledged:
        writer, sequence, topic, *numbers = line.decode().split()
        return cls(int(writer), int(sequence), topic, *map(int, numbers))

    @property
    def name(self) -> str:
        return f"message {self.sequence} of writer {self.writer}"


class Found(NamedTuple):
    """A message found in a queue."""

    writer: int
    sequence: int
    queue_offset: int
    message: StoredMessage


class Campaign:
    """Kills writers, and collects errors in ``findings``."""

    def __init__(self, base: Path, dice: random.Random, fault: str | None = None) -> None:
        self._base = base
        self._dice = dice
        self._fault = fault
        self.findings: list[str] = []
        self.acknowledged_count = 0
        self.reopen_seconds_max = 0.0

    def run(self, cycles: int) -> None:
        """Run this number of kills, each followed by all checks."""
        ledger = Ledger(self._base / "ledger-0")
        root = self._base / "store-0"
        child = Child(self._base / "errors", self._fault)
        try:
            for cycle in range(cycles):
                if cycle and cycle % CYCLES_PER_DIRECTORY == 0:
                    shutil.rmtree(root, ignore_errors=True)
                    root = self._base / f"store-{cycle}"
                    ledger = Ledger(self._base / f"ledger-{cycle}")
                self._kill(child, root, cycle, ledger)
                # starts while this process checks
                child = Child(self._base / "errors", self._fault)
                self._check(root, cycle, ledger)
        finally:
            child.kill()
            child.complaints()

    def _kill(self, child: Child, root: Path, cycle: int, ledger: Ledger) -> None:
        is_early = self._dice.random() < 1 / 3
        seconds = RECOVERY_SECONDS if is_early else WRITING_SECONDS
        before = len(ledger.lines)
        child.go(root, cycle)
        ledger.follow(child.pipe, self._dice.uniform(0, seconds))
        child.kill()
        ledger.follow(child.pipe, None)
        self.acknowledged_count += len(ledger.lines) - before
        self._note(cycle, child.complaints())

    def _check(self, root: Path, cycle: int, ledger: Ledger) -> None:
        rebuilt_root = _copy(root, self._base / "rebuilt")
        for name in (CONSUME_QUEUE, INDEX):
            shutil.rmtree(rebuilt_root / name, ignore_errors=True)
        (rebuilt_root / CHECKPOINT).unlink(missing_ok=True)
        is_copy = self._dice.random() < 1 / 2
        opened_root = _copy(root, self._base / "copy") if is_copy else root
        started = time.perf_counter()
        with _opened(opened_root) as store:
            seconds = time.perf_counter() - started
            self.reopen_seconds_max = max(seconds, self.reopen_seconds_max)
            if seconds > REOPEN_SECONDS_MAX:
                self._note(cycle, [f"slow: opening took {seconds:.1f} s"])
            if store.state().holes:
                self._note(cycle, [f"quarantined: {store.state().holes}"])
            self._note(cycle, faults_of(store, opened_root, ledger.lines, self._dice))
            store.save_checkpoint()
            with _opened(rebuilt_root) as rebuilt:
                rebuilt.save_checkpoint()
                ours, theirs = (each.state().written_offset for each in (store, rebuilt))
                self._note(
                    cycle,
                    [] if ours == theirs else [f"the log ends at {ours}, rebuilt at {theirs}"],
                )
            self._note(cycle, differences(store_config(root), opened_root, rebuilt_root))
            served = self._serve(store, cycle)
        if not is_copy and served is not None:
            ledger.add([served])

    def _serve(self, store: MessageStore, cycle: int) -> Acknowledged | None:
        """Return whether the store accepts and returns messages."""
        sequence = cycle * SEQUENCES_PER_CYCLE
        message = message_of(HARNESS, sequence, "orders", 0, b"served again")
        result = store.wait_until_stored(store.put_message(message), timeout_seconds=60)
        if result.status is not PutMessageStatus.PUT_OK:
            self._note(cycle, [f"refused: a message after opening, {result}"])
            return None
        found = store.get_message("orders", 0, result.queue_offset)
        if b"".join(found.buffers) != bytes(store.record_at(result.physical_offset) or b"-"):
            self._note(cycle, [f"lost: a message that was put after opening, {result}"])
        crc = body_crc_of(message.body)
        return Acknowledged(
            HARNESS, sequence, "orders", 0, result.queue_offset, result.physical_offset, crc
        )

    def _note(self, cycle: int, findings: list[str]) -> None:
        self.findings += [f"cycle {cycle}: {finding}" for finding in findings]


def is_readable(pipe: int, seconds: float | None) -> bool:
    """Return whether data arrives in time; unlike `select`, for descriptors above 1023 as well."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(None if seconds is None else max(seconds, 0) * 1000))


class Child:
    """The writing process. After its imports, it waits for a directory."""

    def __init__(self, errors: Path, fault: str | None) -> None:
        self._errors = errors
        arguments = [f"--fault={fault}"] if fault else []
        search = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        with errors.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, PROGRAM, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "PYTHONPATH": search},
            )
        self.pipe = self._process.stdout.fileno()
        os.set_blocking(self.pipe, False)
        self._killed = False

    def go(self, root: Path, cycle: int) -> None:
        """Start the work once the child is ready, so that the time of the kill counts from its
        first line."""
        is_readable(self.pipe, None)
        os.read(self.pipe, len(b"ready\n"))
        with suppress(BrokenPipeError):  # it has ended with an error
            self._process.stdin.write(f"{cycle} {root}\n".encode())
            self._process.stdin.flush()

    def kill(self) -> None:
        self._killed = self._process.poll() is None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()

    def complaints(self) -> list[str]:
        """Return the errors before the kill; close the pipe."""
        self._process.stdout.close()
        found = [self._errors.read_text().strip()[-4000:]] if self._errors.stat().st_size else []
        return found if self._killed else [*found, f"the child ended: {self._process.returncode}"]


class Ledger:
    """The acknowledged messages; each is on disk before it counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rest = b""
        self.lines: list[Acknowledged] = []

    def follow(self, pipe: int, seconds: float | None) -> None:
        """Read reports for this long; without a time, until the other end is closed."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while deadline is None or time.monotonic() < deadline:
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            if not is_readable(pipe, left):
                continue
            data = os.read(pipe, 1 << 16)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self.add([Acknowledged.parse(line) for line in lines])
            if not data:
                break

    def add(self, lines: list[Acknowledged]) -> None:
        if lines:
            with self._path.open("ab") as file:
                file.write(b"".join(line.line() for line in lines))
                file.flush()
                os.fsync(file.fileno())
            self.lines += lines


def faults_of(
    store: MessageStore, root: Path, acknowledged: list[Acknowledged], dice: random.Random
) -> list[str]:
    """Return errors in the messages of a store that was just opened."""
    queues = {}
    for path in sorted(root.glob(f"{CONSUME_QUEUE}/*/*")):
        topic, queue_id = path.parent.name, int(path.name)
        queues[topic, queue_id] = list(_read(store, topic, queue_id))
    faults = []
    for (topic, queue_id), found in queues.items():
        low, high = store.queue_offsets(topic, queue_id)
        if low or [each.queue_offset for each in found] != list(range(high)):
            faults.append(
                f"hole: {topic}/{queue_id} has {low} to {high}, and in it {len(found)} messages"
            )
    everything = [each for found in queues.values() for each in found]
    return faults + _order_faults(everything) + _losses(store, everything, acknowledged, dice)


def _read(store: MessageStore, topic: str, queue_id: int) -> Iterator[Found]:
    offset, high = store.queue_offsets(topic, queue_id)
    while offset < high:
        result = store.get_message(
            topic, queue_id, offset, count_max=_ALL, bytes_max=_ALL, scan_max=_ALL
        )
        for message in decode_records(b"".join(result.buffers)):
            writer, sequence, _ = message.body.split(b" ", 2)
            yield Found(int(writer), int(sequence), message.queue_offset, message)
        offset = max(result.next_begin_offset, offset + 1)


def _order_faults(everything: list[Found]) -> list[str]:
    """Return violations of order: each writer's messages must follow each other in the log and in
    its queues, none twice.

    Recovery truncates only the end of the log, so none may be missing between others.
    """
    by_writer = defaultdict(list)
    for found in sorted(everything, key=lambda found: found.message.physical_offset):
        by_writer[found.writer].append(found.sequence)
    faults = []
    for writer, sequences in by_writer.items():
        for one, next_one in pairwise(sequences):
            is_next = next_one == one + 1
            if not is_next and not (next_one > one and next_one % SEQUENCES_PER_CYCLE == 0):
                faults.append(f"order: writer {writer} has {next_one} behind {one}")
    return faults[:10]


def _losses(
    store: MessageStore,
    everything: list[Found],
    acknowledged: list[Acknowledged],
    dice: random.Random,
) -> list[str]:
    by_name = {(found.writer, found.sequence): found.message for found in everything}
    faults = []
    for each in acknowledged:
        message = by_name.get((each.writer, each.sequence))
        if message is None:
            faults.append(f"lost: {each.name}, {each}")
            continue
        at = store.record_at(each.physical_offset)
        place = (message.topic, message.queue_id, message.queue_offset, message.physical_offset)
        if (
            at is None
            or decode_record(at) != message
            or place != (each.topic, each.queue_id, each.queue_offset, each.physical_offset)
            or body_crc_of(message.body) != each.body_crc
        ):
            faults.append(f"changed: {each.name}, {each} is now {message}"[:500])
    for each in dice.sample(acknowledged, min(_KEYS_LOOKED_UP, len(acknowledged))):
        if each.writer == HARNESS or (each.writer, each.sequence) not in by_name:
            continue
        keyed = store.query_message(each.topic, key_of(each.writer, each.sequence), 10, 0, 1 << 62)
        if [decode_record(record).physical_offset for record in keyed] != [each.physical_offset]:
            faults.append(f"index: {each.name} is found {len(keyed)} times by its key")
    return faults


def _copy(root: Path, into: Path) -> Path:
    shutil.rmtree(into, ignore_errors=True)
    if root.exists():
        return Path(shutil.copytree(root, into))
    return into


@contextmanager
def _opened(root: Path) -> Iterator[MessageStore]:
    store = open_store(root)
    try:
        yield store
    finally:
        store.shutdown()
