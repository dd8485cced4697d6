"""Appending, compared with what the disk allows: the same bytes by plain pwrite.

The peers write to a file whose blocks are allocated, without queues, checks or numbering. The
store's target is to come close to them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Case, Target
from benchmarks.store import samples
from benchmarks.store.workspace import Workspace, open_store
from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.message_store import MessageStore
from rocketpoll.broker.store.results import PhysicalOffset, PutMessageResult, PutMessageStatus

_CHUNK_PER_SECOND_MIN = 1e6
_CHUNKS = 8
_MESSAGES = 4_000
_MESSAGES_SYNC = 1_000
_IN_FLIGHT = 64

Run = Callable[[], object]


def cases(workspace: Workspace, chunk_bytes: int) -> list[Case]:
    """Return the cases: one message and one chunk, flushed later and flushed at once."""
    return [
        *_message_cases(workspace),
        *_message_cases_sync(workspace),
        *_chunk_cases(workspace, chunk_bytes),
        *_chunk_cases_sync(workspace, chunk_bytes),
    ]


class _Peer:
    """A file with room for all that a run writes."""

    def __init__(
        self, workspace: Workspace, piece: bytes, count: int, flush_every: int = 0
    ) -> None:
        self._workspace = workspace
        self._piece = piece
        self._count = count
        self._flush_every = flush_every
        self._descriptor = -1

    def prepare(self) -> None:
        path: Path = self._workspace.fresh() / "plain"
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(self._descriptor, 0, len(self._piece) * self._count)
        self._workspace.closing(self)

    def run(self) -> None:
        position = 0
        for number in range(1, self._count + 1):
            position += os.pwrite(self._descriptor, self._piece, position)
            if self._flush_every and number % self._flush_every == 0:
                os.fdatasync(self._descriptor)

    def shutdown(self) -> None:
        os.close(self._descriptor)


class _Store:
    """A new store that has already stored one piece."""

    def __init__(
        self,
        workspace: Workspace,
        put: Callable[[MessageStore], object],
        flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH,
        *,
        with_index: bool = True,
        is_dispatched: bool = True,
    ) -> None:
        self._workspace = workspace
        self._put = put
        self._flush_disk_type = flush_disk_type
        self._with_index = with_index
        self._wake_reput = None if is_dispatched else _nothing
        self._store: MessageStore | None = None

    def prepare(self) -> None:
        self._store = open_store(
            self._workspace.fresh(),
            self._flush_disk_type,
            with_index=self._with_index,
            wake_reput=self._wake_reput,
        )
        self._workspace.closing(self._store)
        _must(self._store.put_message(samples.message(0)))

    def run(self) -> None:
        if self._store is None:
            raise RuntimeError("not prepared")
        self._put(self._store)


def _message_cases(workspace: Workspace) -> list[Case]:
    piece, message = bytes(round(samples.record_bytes())), samples.message(0)

    def put(store: MessageStore) -> None:
        for _ in range(_MESSAGES):
            _must(store.put_message(message))

    subject = "append one message of 100 B, flush later"
    peer = _Peer(workspace, piece, _MESSAGES)
    alone = _Store(workspace, put, is_dispatched=False)
    whole = _Store(workspace, put)
    return [
        _case(subject, "pwrite", peer, _MESSAGES, None),
        _case(subject, "put_message", alone, _MESSAGES, "pwrite"),
        _case(subject, "put_message, dispatched too", whole, _MESSAGES, "pwrite"),
    ]


def _message_cases_sync(workspace: Workspace) -> list[Case]:
    piece, message = bytes(round(samples.record_bytes())), samples.message(0)

    def put_one(store: MessageStore) -> None:
        for _ in range(_MESSAGES_SYNC):
            _must(store.wait_until_stored(store.put_message(message)))

    def put_many(store: MessageStore) -> None:
        for _ in range(0, _MESSAGES_SYNC, _IN_FLIGHT):
            stored = [
                store.flush_future(_must(store.put_message(message))) for _ in range(_IN_FLIGHT)
            ]
            for each in stored:
                each.result()

    subject = "append one message of 100 B, flush before the answer"
    peer = "pwrite, fdatasync"
    many_peer = f"pwrite x {_IN_FLIGHT}, fdatasync"
    count = _MESSAGES_SYNC + -_MESSAGES_SYNC % _IN_FLIGHT
    sync = FlushDiskType.SYNC_FLUSH
    return [
        _case(subject, peer, _Peer(workspace, piece, _MESSAGES_SYNC, 1), _MESSAGES_SYNC, None),
        _case(subject, "put_message, wait", _Store(workspace, put_one, sync), _MESSAGES_SYNC, peer),
        _case(subject, many_peer, _Peer(workspace, piece, count, _IN_FLIGHT), count, None),
        _case(
            subject,
            f"put_message x {_IN_FLIGHT}, wait",
            _Store(workspace, put_many, sync),
            count,
            many_peer,
        ),
    ]


def _chunk_cases(workspace: Workspace, chunk_bytes: int) -> list[Case]:
    piece, count, put = _chunks(chunk_bytes)
    subject = f"append a chunk of {samples.size_name(chunk_bytes)}, 100 B bodies, flush later"
    target = Target("per_second", _CHUNK_PER_SECOND_MIN)
    found = [_case(subject, "pwrite", _Peer(workspace, piece, _CHUNKS), count, None)]
    for variant, is_dispatched, with_index in (
        ("put_chunk", False, True),
        ("put_chunk, dispatched too", True, False),
        ("put_chunk, dispatched and indexed too", True, True),
    ):
        store = _Store(workspace, put, with_index=with_index, is_dispatched=is_dispatched)
        found.append(
            _case(subject, variant, store, count, "pwrite", None if is_dispatched else target)
        )
    return found


def _chunk_cases_sync(workspace: Workspace, chunk_bytes: int) -> list[Case]:
    piece, count, put = _chunks(chunk_bytes)
    subject = (
        f"append a chunk of {samples.size_name(chunk_bytes)}, 100 B bodies, flush before the answer"
    )
    peer = "pwrite, fdatasync"
    found = [_case(subject, peer, _Peer(workspace, piece, _CHUNKS, 1), count, None)]
    for variant, with_index in (
        ("put_chunk, dispatched too", False),
        ("dispatched and indexed too", True),
    ):
        store = _Store(workspace, put, FlushDiskType.SYNC_FLUSH, with_index=with_index)
        found.append(_case(subject, variant, store, count, peer))
    return found


def _chunks(chunk_bytes: int) -> tuple[bytes, int, Callable[[MessageStore], None]]:
    """Return a chunk's bytes, how many messages a run has, and the run."""
    per_chunk = int(chunk_bytes / samples.record_bytes())
    chunks = [
        samples.encoded(first, per_chunk) for first in range(0, _CHUNKS * per_chunk, per_chunk)
    ]
    pieces = [(chunk.data.to_pybytes(), chunk.sizes.tolist()) for chunk in chunks]

    def put(store: MessageStore) -> None:
        for data, sizes in pieces:
            _must(store.wait_until_stored(store.put_chunk(data, sizes)))

    return samples.stored(chunks[0]).data.tobytes(), _CHUNKS * per_chunk, put


def _case(
    subject: str,
    variant: str,
    what: _Peer | _Store,
    count: int,
    peer: str | None,
    target: Target | None = None,
) -> Case:
    return Case(
        subject,
        variant,
        what.run,
        count,
        peer=peer,
        target=target,
        bytes_per_unit=samples.record_bytes(),
        prepare=what.prepare,
    )


def _must(result: PutMessageResult) -> PhysicalOffset:
    """Return the end offset of a put; raise an error if it was refused."""
    if result.status is not PutMessageStatus.PUT_OK:
        raise RuntimeError(f"the store did not take it: {result}")
    return result.end_offset


def _nothing() -> None:
    """Do nothing: dispatching is not measured here."""
