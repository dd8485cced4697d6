"""Gets from the page cache, with logs of very different sizes.

Results are joined into one piece, as sending them would copy them once. The peer copies the same
number of adjacent bytes. The cost of a get must not depend on the size of the log: small gets have
the smallest log as their peer for that.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Case, Target
from benchmarks.store import samples
from benchmarks.store.workspace import Workspace, open_store
from rocketpoll.broker.store.components import COMMIT_LOG
from rocketpoll.broker.store.message_store import MessageStore
from rocketpoll.broker.store.results import GetMessageStatus, QueueOffset

_BYTES_PER_SECOND_MIN = 1.5e9
_RATIO_MIN = 0.8
_QUEUES = (1, 4, 64)
_SIZES = (1_000, 100_000)
_MANY_RUNS = 8

_FEW = 32
"""The number of messages that clients ask for in one pull by default."""

_FEW_RUNS = 2_000
_QUEUES_OF_FEW = 4


def cases(workspace: Workspace, messages: int, chunk_bytes: int) -> list[Case]:
    """Return the cases: large gets and small ones, from one queue and from many."""
    sizes = sorted({*(size for size in _SIZES if size < messages), messages})
    found: list[Case] = []
    for queues in _QUEUES:
        stores = {size: _store_of(workspace, size, queues) for size in sizes}
        found += _large_cases(stores, queues, chunk_bytes)
    few = {size: _store_of(workspace, size, _QUEUES_OF_FEW) for size in sizes}
    return found + _small_cases(few, _QUEUES_OF_FEW)


class _Filled(NamedTuple):
    """A store, and the first file of its log."""

    store: MessageStore
    log: mmap.mmap


Opener = Callable[[], _Filled]


def _store_of(workspace: Workspace, messages: int, queues: int) -> Opener:
    def make(root: Path) -> _Filled:
        writer = samples.LogWriter(root, queues)
        writer.write(messages)
        writer.log.close()
        store = open_store(root, with_index=False)
        workspace.mark_unflushed(store)
        with next((root / COMMIT_LOG).iterdir()).open("rb") as file:
            return _Filled(store, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))

    return lambda: workspace.kept(f"store-{messages}-{queues}", make)


def _large_cases(stores: dict[int, Opener], queues: int, chunk_bytes: int) -> list[Case]:
    subject = (
        f"get {samples.size_name(chunk_bytes)} of {queues} queue{'s' * (queues > 1)}, 100 B bodies"
    )
    width = samples.record_bytes()
    peer = "plain copy"
    found: list[Case] = []
    for size, store in stores.items():
        count = min(int(chunk_bytes / width), size) // queues
        get = _Getting(store, size, queues, count, _MANY_RUNS)
        target = Target("bytes_per_second", _BYTES_PER_SECOND_MIN) if size > min(stores) else None
        units = get.times * queues * count
        if size == max(stores):
            found.insert(
                0, Case(subject, peer, get.copy, units, bytes_per_unit=width, prepare=get.prepare)
            )
        found.append(
            Case(
                subject,
                f"log of {size:,}",
                get.run,
                units,
                peer=peer,
                target=target,
                bytes_per_unit=width,
                prepare=get.prepare,
            )
        )
    return found


def _small_cases(stores: dict[int, Opener], queues: int) -> list[Case]:
    subject = f"get {_FEW} messages of one of {queues} queues"
    smallest = min(stores)
    found: list[Case] = []
    for size, store in stores.items():
        count = min(_FEW, size // queues)
        get = _Getting(store, size, 1, count, _FEW_RUNS, stride=queues)
        found.append(
            Case(
                subject,
                f"log of {size:,}",
                get.run,
                get.times,
                unit="get",
                peer=None if size == smallest else f"log of {smallest:,}",
                target=None if size == smallest else Target("ratio", _RATIO_MIN),
                bytes_per_unit=samples.record_bytes() * count,
                prepare=get.prepare,
            )
        )
    return found


class _Getting:
    """Gets of some messages from each of some queues, repeated, from positions all over the log."""

    def __init__(
        self,
        store: Opener,
        size: int,
        queues: int,
        count: int,
        times: int,
        stride: int | None = None,
    ) -> None:
        self._open = store
        self._queues = queues
        self._count = count
        self.times = times
        room = size // (stride or queues) - count
        self._starts = [(number * 7919 * count) % (room + 1) for number in range(times)]
        self._width = samples.record_bytes()
        self._log_bytes = int(size * self._width)

    def prepare(self) -> None:
        """Run once, so that the store exists and its pages are mapped."""
        self.run()

    def run(self) -> None:
        """Get messages from each start and queue: the work that is measured."""
        store = self._open().store
        for start in self._starts:
            for queue_id in range(self._queues):
                self._get(store, queue_id, start)

    def _get(self, store: MessageStore, queue_id: int, start: int) -> None:
        """Get messages; the end of a consume queue file needs a second get."""
        got = 0
        while got < self._count:
            left = self._count - got
            found = store.get_message(
                samples.TOPIC,
                queue_id,
                QueueOffset(start + got),
                count_max=left,
                bytes_max=round(2 * left * self._width),
                scan_max=left,
            )
            if found.status is not GetMessageStatus.FOUND:
                raise RuntimeError(f"needed {left} messages of queue {queue_id}, found {found}")
            b"".join(found.buffers)
            got += found.message_count

    def copy(self) -> None:
        """Copy the same number of adjacent bytes: the work of the peer."""
        width = round(self._queues * self._count * self._width)
        log = memoryview(self._open().log)
        room = min(self._log_bytes, len(log)) - width
        for start in self._starts:
            at = min(round(start * self._queues * self._width), room)
            bytes(log[at : at + width])
