"""Opening a store whose log is in the page cache: after a stop or a crash, or from the log alone.

A log of up to `StoreConfig.check_whole_log_bytes` is checked from its start each time, a larger one
from its checkpoint. After the crash, the last tenth of the log follows the checkpoint: the index is
as it was then, the consume queues are as the kernel has kept them. The peer reads the log's bytes
once for their CRC, because every message has to be checked.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Case, Target
from benchmarks.store import samples
from benchmarks.store.workspace import Workspace, copy_sparse, open_store
from rocketpoll.broker.store.components import COMMIT_LOG, CONSUME_QUEUE, INDEX
from rocketpoll.broker.store.log.checkpoint_file import CHECKPOINT
from rocketpoll.broker.store.message_store import MessageStore
from rocketpoll.broker.store.queues.manifest import MANIFEST

_BYTES_PER_SECOND_MIN = (1 << 30) / 2
_PEER = "CRC of the log"
_QUEUES = 4
_TAIL = 10
_READ_BYTES = 8 << 20
_ABORT = "abort"


def cases(workspace: Workspace, log_bytes: int) -> list[Case]:
    """Return the cases, which all open the same log."""
    width = samples.record_bytes()
    messages = int(log_bytes / width) // _TAIL * _TAIL
    subject = f"open a store, log of {log_bytes / (1 << 30):g} GiB, 100 B bodies"
    opening = _Opening(workspace, messages)

    target = Target("bytes_per_second", _BYTES_PER_SECOND_MIN)

    def case(variant: str, prepare: Callable[[], object], target: Target | None) -> Case:
        is_peer = variant == _PEER
        return Case(
            subject,
            variant,
            opening.read if is_peer else opening.open,
            1,
            unit="start",
            peer=None if is_peer else _PEER,
            target=target,
            bytes_per_unit=messages * width,
            prepare=prepare,
        )

    return [
        case(_PEER, opening.prepare_clean, None),
        case("after a stop", opening.prepare_clean, target),
        case("after a crash", opening.prepare_crash, target),
        case("queues and index lost", opening.prepare_lost, None),
    ]


class _Opening:
    """One store's directory, prepared for a case."""

    def __init__(self, workspace: Workspace, messages: int) -> None:
        self._workspace = workspace
        self._messages = messages
        self._root = Path()
        self._store: MessageStore | None = None

    def prepare_clean(self) -> None:
        """Prepare a store as a stop leaves it."""
        self._root = self._workspace.kept("opened", self._make)
        self.shutdown()

    def prepare_crash(self) -> None:
        """Prepare a store with an old index and checkpoint, and the sign of a running broker."""
        self.prepare_clean()
        saved = self._saved
        copy_sparse(saved / INDEX, self._root / INDEX)
        shutil.copy(saved / CHECKPOINT, self._root / CHECKPOINT)
        shutil.copy(saved / MANIFEST, self._root / "config" / MANIFEST)
        (self._root / _ABORT).touch()

    def prepare_lost(self) -> None:
        """Prepare a store that has nothing but the log."""
        self.prepare_clean()
        for name in (CONSUME_QUEUE, INDEX):
            shutil.rmtree(self._root / name)
        (self._root / CHECKPOINT).unlink()

    def open(self) -> None:
        """Open the store: the work that is measured."""
        self._store = open_store(self._root)

    def shutdown(self) -> None:
        """Close what is open."""
        if self._store is not None:
            self._store.shutdown()
            self._store = None

    def read(self) -> None:
        """Read the bytes of the log and compute their CRC: the work of the peer."""
        left = int(self._messages * samples.record_bytes())
        for path in sorted((self._root / COMMIT_LOG).iterdir()):
            with path.open("rb") as file:
                while left > 0 and (data := file.read(min(_READ_BYTES, left))):
                    zlib.crc32(data)
                    left -= len(data)

    @property
    def _saved(self) -> Path:
        return self._root / "saved"

    def _make(self, root: Path) -> Path:
        """Create nine tenths of the log, index and checkpoint for these, and the last tenth."""
        self._workspace.mark_unflushed(self)
        self._root = root
        writer = samples.LogWriter(root, _QUEUES)
        writer.write(self._messages // _TAIL * (_TAIL - 1))
        open_store(root).shutdown()
        self._saved.mkdir()
        copy_sparse(root / INDEX, self._saved / INDEX)
        shutil.copy(root / CHECKPOINT, self._saved / CHECKPOINT)
        shutil.copy(root / "config" / MANIFEST, self._saved / MANIFEST)
        writer.write(self._messages // _TAIL)
        writer.log.close()
        open_store(root).shutdown()
        return root
