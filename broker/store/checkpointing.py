"""Checkpoints of a store: up to where log, consume queues and index are all on the disk, and what they hold.

    pause reput ── index catches up, spans of the queues are noted ── go on
    flush log ── queues ── index ── save manifest ── save checkpoint

What the manifest notes is true for one moment, that of the pause: what reput does meanwhile lies behind it
and comes again after a crash. It is saved when all of that is on the disk, and says by itself how far the log
had been dispatched then; the checkpoint behind it is for the log, and for RocketMQ.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from broker.store.checkpoint import CHECKPOINT, Checkpoint, save_checkpoint
from broker.store.errors import DamagedTable, StoreFailed
from broker.store.lacks import FlushFailed, is_lack
from broker.store.manifest import MANIFEST, Manifest
from broker.store.parts import CONFIG, StoreParts
from broker.store.tables import JsonTable


class Checkpointing:
    """Saves checkpoints, and what changes between them."""

    def __init__(self, parts: StoreParts) -> None:
        """Touches nothing on the disk."""
        root = parts.root
        self._parts = parts
        self._path = root / CHECKPOINT
        self._manifest = JsonTable(parts.disk, root / CONFIG / MANIFEST, Manifest)
        self.maintenance = threading.RLock()
        """Held by whoever changes what a checkpoint is about to note."""
        self.sealed_from = 0
        """From where on each record of the log has a checksum."""
        self.noted_offset = 0
        """Up to where the log had been dispatched at the last checkpoint that can be resumed."""

    def manifest(self) -> Manifest:
        """Load what was noted last.

        Raises:
            DamagedTable: It cannot be read.
        """
        return self._manifest.load(Manifest())

    def save(self) -> None:
        """Make log, queues and index durable, and note that they are.

        Raises:
            OSError, StoreFailed: The disk has failed.
        """
        parts = self._parts
        with self.maintenance:
            with parts.reput.caught_up():
                safe_offset = parts.reput.reput_from_offset
                spans = parts.queues.spans()
                deleted = parts.dispatcher.deleted_topics
                holes = parts.reput.holes
            parts.log.flush()
            parts.queues.flush()
            index_files = None
            if parts.index is not None:
                parts.index.flush()
                index_files = parts.index.file_names
            self._manifest.save(
                Manifest(
                    safe_offset=safe_offset,
                    log_min_offset=parts.log.min_offset,
                    spans=Manifest.spans_of(spans),
                    index_files=index_files,
                    entries_were_confirmed=parts.is_sync,
                    holes=holes,
                    deleted_topics=deleted,
                )
            )
            checkpoint = Checkpoint(safe_offset, parts.log.last_timestamp, self.sealed_from)
            save_checkpoint(parts.disk, self._path, checkpoint)
            self.noted_offset = safe_offset

    def forget_topic(self, topic: str, deleted_topics: Mapping[str, int]) -> None:
        """Note that a topic is about to be deleted, before it is.

        Raises:
            OSError: The disk says no, and it is not noted.
            StoreFailed: The disk says no, and not whether it is noted.
        """
        with self.maintenance:
            manifest = self.manifest().without_topic(topic, deleted_topics)
            try:
                self._manifest.save(manifest)
            except FlushFailed as error:
                raise StoreFailed("deleting a topic failed", error) from error
            except OSError as error:
                if self._has_noted(manifest, error):
                    return
                raise

    def _has_noted(self, manifest: Manifest, error: OSError) -> bool:
        """Whether a manifest is on the disk of which a save has failed, for good."""
        try:
            return self.manifest() == manifest
        except (OSError, DamagedTable) as second:
            if is_lack(second):  # then nothing was, or the next checkpoint takes its place
                return False
            raise StoreFailed(f"deleting a topic failed: {error}", second) from error
