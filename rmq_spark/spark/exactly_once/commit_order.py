"""CommitOrder: refuses commits that readers would silently ignore, before they are stored.

    a batch of a query ──> what has the query committed?
                             ├─ a later batch ──> refused: the checkpoint was set back
                             ├─ this one, with other rows, from another driver
                             │       ──> refused: there are two copies of the checkpoint
                             ├─ this one, with other rows, from no other driver ──> continues with a
                             │         warning: a retried batch, or a checkpoint that was set back
                             ├─ this one, or earlier ones ──> continues
                             └─ nothing ──> has another query its checkpoint, or its write's name?
                                              ├─ no ──> it is new, and continues
                                              └─ yes ──> refused: batch numbers start over
    a named write      ──> are other rows stored under its name? ──> refused; within foreachBatch
                           only if the same call of the function has written them

A query gets its id from its checkpoint: after that is deleted, the query starts over with another
id, and the rows that it reads again would count again. The origin is what stays the same: the
checkpoint's location, or in foreachBatch the write's name.

All questions go to the index of the commits topic's broker, which is waited for, as the manifest
has to wait for it anyway. If the broker has no index, nothing is refused.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Final

from rmq_spark.client.admin.lookups import FOREVER_MS, QUERY_MESSAGES_MAX
from rmq_spark.client.errors import ClientError, ManifestError
from rmq_spark.client.manifest import CommitManifest, ManifestId, add_crc, decode_manifest
from rmq_spark.client.message import decode_messages
from rmq_spark.errors import WireError
from rmq_spark.spark.brokers.retry_timer import TRANSIENT_ERRORS, RetryTimer
from rmq_spark.spark.errors import WriteError
from rmq_spark.spark.options.options import WriteOptions
from rmq_spark.spark.write.sender import producer_of
from rmq_spark.wire.headers.operators import QueryMessageRequestHeader
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)

_DUPLICATE_WRITE_ADVICE: Final = (
    "If this is the same write, run again, it counts already: leave it out, or have it write the "
    "same rows. If it is another write, set option writeName to a name of its own. Spark Connect, "
    "and a thread of your own, do not tell a write of foreachBatch which batch it is part of: have "
    "the number of the batch in its name"
)
CONCURRENT_DRIVERS_ADVICE: Final = (
    "Another driver goes on with this checkpoint, or with a copy of it: end one of the two, and "
    "start the other one's program again. To have both write, give one a new checkpoint: what that "
    "query reads again counts again. If the checkpoint was only moved, start the query once where "
    "it was"
)
_ROWS_CHANGED: Final = (
    "%s counts in %s with the rows that it had first, and has others now: these are in no batch. "
    "That is right if the query gives other rows whenever it runs a batch again. If not, an older "
    "copy of its checkpoint was put back: put the latest back. With another checkpointLocation the "
    "query is another one, and what it reads again counts again"
)
_LATEST_MANIFESTS: Final = 8
"""Manifests of a stream that are looked at: some may be repeats. In foreachBatch a batch has one
for each of its writes, and as many are looked at as brokers give."""
_PAUSE_SECONDS: Final = 0.1
_CHECKPOINT_PREFIX: Final = "checkpoint:"
_DIGEST_CHARS: Final = 24


def origin_of_checkpoint(location: str) -> str:
    """Return the origin of a stream: of its checkpoint's location, which may hold secrets."""
    place = location.strip().rstrip("/")
    return _CHECKPOINT_PREFIX + hashlib.sha256(place.encode()).hexdigest()[:_DIGEST_CHARS]


def origin_of_write(name: str) -> str:
    """Return the origin of a write within foreachBatch."""
    return f"write:{name}"


def effective_manifest(
    batch: ManifestId, manifests: Iterable[CommitManifest]
) -> CommitManifest | None:
    """Return the manifest that counts for a batch, which is the first; None if there is none."""
    return next(
        (each for each in manifests if each.id._replace(run_id=batch.run_id) == batch), None
    )


def log_changed_rows(batch: ManifestId, target: str) -> None:
    """Log that a retried batch has other rows than those that count.

    A query whose checkpoint is one batch older looks like one that repeats its last batch.
    """
    _log.warning(_ROWS_CHANGED, batch, target)


def is_from_other_driver(
    first: CommitManifest, batch: ManifestId, origin: str, manifests: Iterable[CommitManifest]
) -> bool:
    """Return whether a driver other than the asking one has committed a batch.

    A driver that restarts repeats the batch that it finds in its checkpoint; so the one that
    committed it may be dead. Another driver runs on a copy of the checkpoint if that has another
    location, or if this driver has committed an earlier batch: then it does not repeat one.
    """
    if first.id.driver_id == batch.driver_id:
        return False
    lies_elsewhere = bool(origin and first.origin) and first.origin != origin
    return lies_elsewhere or any(
        each.id.driver_id == batch.driver_id and each.id.batch_id < batch.batch_id
        for each in manifests
    )


def duplicate_write_error(batch: ManifestId, target: str, option: str) -> str:
    """Return the error for a write whose name another write of the same call has used."""
    return (
        f"this call of the foreachBatch function has written other rows of {batch} to {target} "
        f"already, and those count. If this is another write, set option {option} to a name of its "
        "own, and leave the first write its name: under a new name its rows would count again. If "
        "the function has tried the same write again, have it write the same rows, as after "
        "rows.persist()"
    )


class CommitOrder:
    """The commits so far in a commits topic, according to its broker's index."""

    def __init__(self, options: WriteOptions, queue: MessageQueue) -> None:
        """Take the queue of the commits topic, whose route must be known."""
        self._queue = queue
        self._instance = producer_of(options).instance
        self._retry_timer = RetryTimer(
            f"lookup of manifests in {queue.topic}",
            options.access.retry_timeout_ms,
            pause_seconds=_PAUSE_SECONDS,
        )

    def check_batch(self, batch: ManifestId, origin: str) -> list[CommitManifest]:
        """Refuse a query's batch that comes after a later one, and one of a query that starts over.

        Returns the latest manifests of the query.
        """
        own = self.latest_manifests(
            batch, QUERY_MESSAGES_MAX if batch.write_name else _LATEST_MANIFESTS
        )
        if own:
            self._reject_earlier(batch, max(each.id.batch_id for each in own))
        elif origin:
            self._reject_restarted(batch, origin)
        return own

    def check_manifest(self, manifest: CommitManifest, *, is_visible: bool = False) -> None:
        """Refuse what `check_batch` refuses, and rows of a batch for which others count already.

        Rows that a broker has made visible count, even if a query starts over or had other rows.
        """
        own = self.check_batch(manifest.id, "" if is_visible else manifest.origin)
        if not is_visible:
            self._reject_changed_rows(manifest, own)

    def latest_manifests(
        self, batch: ManifestId, manifests_max: int = _LATEST_MANIFESTS
    ) -> list[CommitManifest]:
        """Return the latest manifests of a batch's query, oldest first; none if unknown."""
        found = self._find_manifests(batch, batch.query_key, manifests_max)
        return [each for each in found if each.id.query_id == batch.query_id]

    def check_write(self, manifest: CommitManifest) -> None:
        """Refuse a write if another one of the same call has its name, and other rows.

        It would be taken for a repeat, and its rows would not count. Another call of a foreachBatch
        function runs the batch again: then `check_manifest` reports that it has other rows.
        """
        found = self._find_manifests(manifest.id, manifest.id.key, QUERY_MESSAGES_MAX)
        for other in found:
            if other.id != manifest.id:
                continue
            if not _has_same_rows(other, manifest):
                raise WriteError(
                    duplicate_write_error(manifest.id, manifest.topic, "writeName")
                    if other.id.query_id
                    else f"{manifest.id} has written other rows to {manifest.topic} already, and "
                    f"those count. {_DUPLICATE_WRITE_ADVICE}"
                )

    def _reject_earlier(self, batch: ManifestId, last: int) -> None:
        if batch.batch_id < last:
            raise WriteError(
                f"{batch} does not count: batch {last} of the query is in {self._queue.topic} "
                "already. The checkpoint is an older copy, or another driver has gone on from it. "
                "Put the latest checkpoint back. With another checkpointLocation the query is "
                "another one, and what it reads again counts again"
            )

    def _reject_changed_rows(
        self, manifest: CommitManifest, manifests: Sequence[CommitManifest]
    ) -> None:
        first = effective_manifest(manifest.id, manifests)
        if first is None or _has_same_rows(first, manifest):
            return
        if is_from_other_driver(first, manifest.id, manifest.origin, manifests):
            raise WriteError(
                f"{manifest.id} does not count: it is in {self._queue.topic} already, with other "
                f"rows. {CONCURRENT_DRIVERS_ADVICE}"
            )
        if first.id != manifest.id:
            log_changed_rows(manifest.id, self._queue.topic)

    def _reject_restarted(self, batch: ManifestId, origin: str) -> None:
        found = self._find_manifests(batch, CommitManifest.origin_key(origin), _LATEST_MANIFESTS)
        others = [
            each.id
            for each in found
            if each.origin == origin and each.id.query_id not in (None, batch.query_id)
        ]
        if not others:
            return
        last = max(others, key=lambda each: each.batch_id)
        same, another = "the same checkpointLocation", "checkpointLocation"
        if batch.write_name:
            same, another = "a write of the same name", "writeName"
        raise WriteError(
            f"{batch} does not count: query {last.query_id} with {same} has committed batch "
            f"{last.batch_id} to {self._queue.topic}, so that batches seem to begin again. "
            "If the checkpoint was deleted, put it back. If both queries are to write, give each a "
            f"{another} of its own. To begin again on purpose, set another {another}: what was "
            "written stays, and what the query reads again counts again"
        )

    def _find_manifests(
        self, batch: ManifestId, key: str, manifests_max: int
    ) -> list[CommitManifest]:
        """Return the newest manifests with a key, oldest first; wait for a broker that is away."""
        while True:
            try:
                found = self._query_manifests(key, manifests_max)
            except TRANSIENT_ERRORS as error:  # noqa: PERF203  # asked again
                if not self._retry_timer.sleep_or_expire(error):
                    raise WriteError(
                        f"it is not known whether {batch} counts: it cannot be seen in "
                        f"{self._queue.topic} what was committed before: {error}; see that the "
                        "broker runs, or raise option retryTimeoutMs"
                    ) from error
            except ClientError as error:
                _log.info("nobody says what was committed before %s: %s", batch, error)
                return []
            else:
                self._retry_timer.reset()
                return found

    def _query_manifests(self, key: str, messages_max: int) -> list[CommitManifest]:
        topic, name = self._queue.topic, self._queue.broker_name
        header = QueryMessageRequestHeader(
            topic=topic,
            key=key,
            max_num=messages_max,
            begin_timestamp=0,
            end_timestamp=FOREVER_MS,
            unique_key_query=False,
        )
        address = self._instance.routes.master_address(name)
        records = self._instance.api.admin.query_message(address, header)
        try:
            messages = [*decode_messages(records, name)]
        except WireError as error:
            raise ManifestError(f"{topic} cannot be read at {name}: {error}") from error
        found = []
        for message in sorted(messages, key=lambda each: each.queue_offset):
            if message.topic != topic or key not in message.keys:
                continue
            try:
                found.append(decode_manifest(bytes(message.body)))
            except ManifestError as error:  # readers are told; the others still say what counts
                _log.info("offset %d of %s: %s", message.queue_offset, topic, error)
        return [manifest for manifest in found if manifest is not None]


def _has_same_rows(stored: CommitManifest, manifest: CommitManifest) -> bool:
    """Return whether two manifests have the same rows, in whatever order these are stored.

    Of a manifest in parts only the number of rows is compared, so that the parts need not be read.
    """
    if stored.parts:
        return stored.stated[0] == manifest.row_count
    return _manifest_sums(stored) == _manifest_sums(manifest)


def _manifest_sums(manifest: CommitManifest) -> tuple[int, int, int]:
    crc = reduce(add_crc, (span.crc for span in manifest.spans), 0)
    return manifest.row_count, manifest.body_bytes, crc
