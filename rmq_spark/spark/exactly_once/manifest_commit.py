"""Manifest commit: stores the manifest that commits the rows of a batch, in the commits topic.

    tasks    first batch: the commits topic is created, unless it exists ──> rows are sent
    driver   reports of successful tasks ──> manifest, in parts if it is large ──> stored

A commits topic has one queue: its messages are ordered, and a reader's position is one number. The
queue is on the first of the topic's brokers, by name. The other brokers have the topic without
permission to read or write, so that name servers know it while that broker is away, and no client
creates it elsewhere.

A manifest is sent until a broker confirms that it is stored; readers ignore a repeat. `commit`
returns after readers can see it, because the next commit looks up earlier manifests. Spark decides
which attempt of a task is valid, and readers take the first manifest of a batch. `CommitOrder`
refuses commits that readers would silently ignore, and a query that starts over:

    a batch of a query ──> what has the query committed?
                             ├─ a later batch ──> refused: the checkpoint was set back
                             ├─ this one, with other rows ──> does another driver use a copy of the
                             │       │                        checkpoint?
                             │       ├─ yes ──> refused
                             │       └─ no ──> continues with a warning: it is a retried batch, or
                             │                 the checkpoint was set back
                             ├─ this one, or earlier ones ──> continues
                             └─ nothing ──> has another query of the same origin committed?
                                              ├─ no ──> it is new, and continues
                                              └─ yes ──> refused: batch numbers start over
    a named write      ──> are other rows stored under its name? ──> refused; within foreachBatch
                           only if the same call of the function has written them

A query gets its id from its checkpoint. After the checkpoint is deleted, the query starts over with
another id, and the rows that it reads again would be committed again. Its origin stays the same:
the checkpoint's location, or in foreachBatch the write's name.

All lookups use the index of the commits topic's broker. They wait for that broker, because the
manifest has to wait for it anyway. If the broker has no index, nothing is refused.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final

from rmq_spark.client.admin.lookups import FOREVER_MS, QUERY_MESSAGES_MAX
from rmq_spark.client.concurrency.retry_timer import TRANSIENT_ERRORS, RetryTimer
from rmq_spark.client.errors import ClientError, ManifestError, RouteNotFound
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.manifest import (
    MANIFEST_BYTES_MAX,
    CommitManifest,
    CommittedSpan,
    ManifestId,
    add_crc,
    commits_topic_name,
    decode_manifest,
)
from rmq_spark.client.message import Message, decode_messages
from rmq_spark.errors import WireError
from rmq_spark.spark.brokers.fan_out import instance_for
from rmq_spark.spark.errors import WriteError
from rmq_spark.spark.options.options import WriteOptions
from rmq_spark.spark.write.sender import producer_of, send_message
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.headers.operators import QueryMessageRequestHeader
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import DEFAULT_TOPIC

# ---- the order of commits

_log = logging.getLogger(__name__)

_DUPLICATE_WRITE_ADVICE: Final = (
    "If this is the same write, repeated, it is committed already: skip it, or write the same "
    "rows. If it is another write, set option writeName to another name. In Spark Connect and in "
    "your own threads, a write of foreachBatch does not know its batch: put the number of the "
    "batch into the name"
)
CONCURRENT_DRIVERS_ADVICE: Final = (
    "Another driver uses this checkpoint, or a copy of it. Stop one of the two, and restart the "
    "other. To let both write, give one a new checkpoint; rows that it reads again become "
    "duplicates. If the checkpoint was only moved, run the query once from its old location"
)
_ROWS_CHANGED: Final = (
    "%s was committed to %s with other rows than it has now; the first stay. If the query "
    "repeats its rows, an old checkpoint was restored: use the latest or a new one"
)
_LATEST_MANIFESTS: Final = 8
"""The number of latest manifests that are checked, because some may be repeats. In foreachBatch,
where a batch has one for each write, all that the broker returns are checked."""
_PAUSE_SECONDS: Final = 0.1
_CHECKPOINT_PREFIX: Final = "checkpoint:"
_DIGEST_CHARS: Final = 24


def origin_of_checkpoint(location: str) -> str:
    """Return the origin of a stream: a hash, because the checkpoint's location may hold secrets."""
    path = location.strip().rstrip("/")
    return _CHECKPOINT_PREFIX + hashlib.sha256(path.encode()).hexdigest()[:_DIGEST_CHARS]


def origin_of_write(name: str) -> str:
    """Return the origin of a write within foreachBatch."""
    return f"write:{name}"


def effective_manifest(
    batch: ManifestId, manifests: Iterable[CommitManifest]
) -> CommitManifest | None:
    """Return the first manifest of a batch, which is the one that readers use; None without one."""
    return next(
        (each for each in manifests if each.id._replace(run_id=batch.run_id) == batch), None
    )


def log_changed_rows(batch: ManifestId, target: str) -> None:
    """Log that a retried batch has other rows than were committed.

    A query whose checkpoint was set back by one batch looks like a query that repeats its last
    batch.
    """
    _log.warning(_ROWS_CHANGED, batch, target)


def is_from_other_driver(
    first: CommitManifest, batch: ManifestId, origin: str, manifests: Iterable[CommitManifest]
) -> bool:
    """Return whether a driver that runs on a copy of the checkpoint has committed a batch.

    A different driver id alone proves nothing: a driver that restarts repeats the last batch of its
    checkpoint, which its predecessor may have committed. There are two copies if the checkpoints
    have different locations, or if this driver has committed an earlier batch: then this batch is
    not the one that a restart repeats.
    """
    if first.id.driver_id == batch.driver_id:
        return False
    has_other_location = bool(origin and first.origin) and first.origin != origin
    return has_other_location or any(
        each.id.driver_id == batch.driver_id and each.id.batch_id < batch.batch_id
        for each in manifests
    )


def duplicate_write_error(batch: ManifestId, target: str, option: str) -> str:
    """Return the error for a write whose name another write of the same call has used."""
    return (
        f"this call of the foreachBatch function has already committed other rows of {batch} to "
        f"{target}. If this is another write, set its option {option} to another name, and keep "
        "the name of the first write: under a new name its rows would become duplicates. If the "
        "function repeats the same write, write the same rows, for example after rows.persist()"
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
        """Refuse a batch if its query has committed a later one, or if the query starts over.

        Returns the latest manifests of the query.
        """
        own = self.latest_manifests(
            batch, QUERY_MESSAGES_MAX if batch.write_name else _LATEST_MANIFESTS
        )
        if own:
            self._refuse_earlier(batch, max(each.id.batch_id for each in own))
        elif origin:
            self._refuse_restarted(batch, origin)
        return own

    def check_manifest(self, manifest: CommitManifest, *, is_visible: bool = False) -> None:
        """Refuse as `check_batch` does, and if the batch was committed with other rows.

        Rows that are visible are committed in any case, because a broker has published them.
        """
        own = self.check_batch(manifest.id, "" if is_visible else manifest.origin)
        if not is_visible:
            self._refuse_changed_rows(manifest, own)

    def latest_manifests(
        self, batch: ManifestId, manifests_max: int = _LATEST_MANIFESTS
    ) -> list[CommitManifest]:
        """Return the latest manifests of a batch's query, oldest first; none if unknown."""
        found = self._find_manifests(batch, batch.query_key, manifests_max)
        return [each for each in found if each.id.query_id == batch.query_id]

    def check_write(self, manifest: CommitManifest) -> None:
        """Refuse a write if another write of the same call has its name and other rows.

        Readers would take its manifest for a repeat, and ignore its rows. Another call of
        a foreachBatch function runs the batch again: then `check_manifest` reports other rows.
        """
        found = self._find_manifests(manifest.id, manifest.id.key, QUERY_MESSAGES_MAX)
        for other in found:
            if other.id != manifest.id:
                continue
            if not _has_same_rows(other, manifest):
                raise WriteError(
                    duplicate_write_error(manifest.id, manifest.topic, "writeName")
                    if other.id.query_id
                    else f"{manifest.id} has already committed other rows to {manifest.topic}. "
                    f"{_DUPLICATE_WRITE_ADVICE}"
                )

    def _refuse_earlier(self, batch: ManifestId, last: int) -> None:
        if batch.batch_id < last:
            raise WriteError(
                f"{batch} is not committed: batch {last} of the query is in {self._queue.topic} "
                "already. The checkpoint is an older copy, or another driver has continued from "
                "it. Restore the latest checkpoint. Or set a new checkpointLocation; rows that "
                "the query reads again become duplicates"
            )

    def _refuse_changed_rows(
        self, manifest: CommitManifest, manifests: Sequence[CommitManifest]
    ) -> None:
        first = effective_manifest(manifest.id, manifests)
        if first is None or _has_same_rows(first, manifest):
            return
        if is_from_other_driver(first, manifest.id, manifest.origin, manifests):
            raise WriteError(
                f"{manifest.id} is not committed: it is in {self._queue.topic} already, with "
                f"other rows. {CONCURRENT_DRIVERS_ADVICE}"
            )
        if first.id != manifest.id:
            log_changed_rows(manifest.id, self._queue.topic)

    def _refuse_restarted(self, batch: ManifestId, origin: str) -> None:
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
            f"{batch} is not committed: query {last.query_id} with {same} has committed batch "
            f"{last.batch_id} to {self._queue.topic}, so batch numbers start over. If the "
            "checkpoint was deleted, restore it. If both queries write, give each its own "
            f"{another}. To start over on purpose, set another {another}; the written rows stay, "
            "and rows that the query reads again become duplicates"
        )

    def _find_manifests(
        self, batch: ManifestId, key: str, manifests_max: int
    ) -> list[CommitManifest]:
        """Return the newest manifests with a key, oldest first; wait for a broker that is away."""
        while True:
            try:
                found = self._query_manifests(key, manifests_max)
            except TRANSIENT_ERRORS as error:  # noqa: PERF203  # the loop retries
                if not self._retry_timer.sleep_or_expire(error):
                    raise WriteError(
                        f"whether {batch} is committed is unknown: earlier commits cannot be read "
                        f"from {self._queue.topic}: {error}. Check that the broker runs, or raise "
                        "option retryTimeoutMs"
                    ) from error
            except ClientError as error:
                _log.info("cannot look up the commits before %s, continuing: %s", batch, error)
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
            except ManifestError as error:  # readers report it; the others are still used
                _log.info("offset %d of %s: %s", message.queue_offset, topic, error)
        return [manifest for manifest in found if manifest is not None]


def _has_same_rows(stored: CommitManifest, manifest: CommitManifest) -> bool:
    """Return whether two manifests have the same rows, stored in any order.

    Of a manifest in parts only the number of rows is compared, so that the parts need not be read.
    """
    if stored.parts:
        return stored.stated[0] == manifest.row_count
    return _manifest_sums(stored) == _manifest_sums(manifest)


def _manifest_sums(manifest: CommitManifest) -> tuple[int, int, int]:
    crc = reduce(add_crc, (span.crc for span in manifest.spans), 0)
    return manifest.row_count, manifest.body_bytes, crc


# ---- the commits topic, and the manifests in it

_CREATE_HINT: Final = (
    "create it with one queue on one broker, for example with mqadmin updateTopic -n ADDRESS -b "
    "BROKER:PORT -t {0} -r 1 -w 1"
)
_FIRST_PAUSE_SECONDS: Final = 0.001
"""The first pause until a manifest is visible: RocketMQ shows messages some ms after storing
them."""
_NO_ACCESS: Final = 0
"""The permission of a topic that may neither be read nor written."""


def create_commits_topic(options: WriteOptions, topic: str | None = None) -> None:
    """Create the commits topic of a topic, by default the sink's, unless it exists.

    Raises:
        RouteNotFound: The topic itself does not exist, and is not created.
    """
    instance = instance_for(options.access)
    try:
        _create_topic(options, instance, *_topic_names(options, topic))
    finally:
        instance.shutdown()


def check_first_batch(options: WriteOptions, manifest_id: ManifestId, origin: str) -> None:
    """Refuse a query's first batch if the query starts over, before a row of it is sent."""
    queue = _commits_queue(options, _topic_names(options, None)[1])
    CommitOrder(options, queue).check_batch(manifest_id, origin)


def latest_manifests(options: WriteOptions, batch: ManifestId, topic: str) -> list[CommitManifest]:
    """Return the latest manifests of a batch's query in a topic; none if they are unknown."""
    order = CommitOrder(options, _commits_queue(options, commits_topic_name(topic)))
    return order.latest_manifests(batch, QUERY_MESSAGES_MAX)


def has_commits_topic(options: WriteOptions, topic: str) -> bool:
    """Return whether a topic's commits topic exists; True if that is unknown at the moment."""
    try:
        return (
            _find_commits_queues(producer_of(options).instance, commits_topic_name(topic))
            is not None
        )
    except ClientError:
        return True


def _create_topic(
    options: WriteOptions, instance: ClientInstance, topic: str, commits: str
) -> None:
    if _find_commits_queues(instance, commits) is not None:
        return
    queues = instance.routes.sendable_queues(topic, DEFAULT_TOPIC, 1)
    name, *others = sorted({queue.broker_name for queue in queues})
    config = TopicConfig(topic_name=commits, read_queue_nums=1, write_queue_nums=1)
    try:
        instance.api.admin.create_topic(instance.routes.master_address(name), config)
    except ClientError as error:
        raise WriteError(
            f"topic {commits}, which stores the commits, does not exist, and {name} does not "
            f"create it: {error}; {_CREATE_HINT.format(commits)}"
        ) from error
    for other in others:
        try:
            address = instance.routes.master_address(other)
            instance.api.admin.create_topic(address, replace(config, perm=_NO_ACCESS))
        except ClientError as error:  # noqa: PERF203  # the other brokers still get the topic
            _log.warning("%s does not know topic %s: %s", other, commits, error)
    timer = _lookup_timer(options, commits)
    while not _find_commits_queues(instance, commits):
        if not timer.sleep_or_expire():
            raise WriteError(f"topic {commits} was created on {name}, but no name server knows it")
    _log.info("topic %s was created on %s", commits, name)


def commit(
    options: WriteOptions,
    manifest_id: ManifestId,
    spans: Iterable[CommittedSpan],
    topic: str | None = None,
    *,
    origin: str = "",
    is_visible: bool = False,
) -> None:
    """Commit rows: store their manifest, and return when readers see it; do nothing without rows.

    The rows are of one topic, by default the sink's. ``origin`` shows whether a query starts over.
    That is not checked without an ``origin``, nor for rows that are visible already: the broker
    checked it when it published them.
    """
    topic, commits = _topic_names(options, topic)
    manifest = CommitManifest(topic, manifest_id, tuple(spans), origin=origin)
    if not manifest.spans:
        return
    queue = _commits_queue(options, commits)
    order = CommitOrder(options, queue)
    if manifest_id.query_key:
        order.check_manifest(manifest, is_visible=is_visible)
    if options.write_name is not None:
        order.check_write(manifest)
    early, last = manifest.encode_parts(min(options.max_message_bytes, MANIFEST_BYTES_MAX))

    def sent(body: bytes, *more_keys: str) -> int:
        keys = " ".join(filter(None, (manifest_id.key, *more_keys)))
        try:
            result = send_message(options, Message(commits, body, keys=keys), queue)
        except WriteError as error:
            raise WriteError(
                f"whether {manifest_id} is committed is unknown: its manifest could not be sent "
                f"to {error}"
            ) from error
        return result.queue_offset

    body = manifest.encode_final_message(last, [sent(body) for body in early])
    if len(body) > options.max_message_bytes:
        raise WriteError(
            f"{manifest_id} is not committed: the last message of its manifest, which names "
            f"{len(early)} parts, has {len(body)} bytes, over the {options.max_message_bytes} of "
            "option maxMessageBytes. Raise it to the brokers' maxMessageSize"
        )
    stored_at = sent(body, manifest_id.query_key, CommitManifest.origin_key(origin))
    _wait_until_visible(options, manifest, queue, stored_at)


def _wait_until_visible(
    options: WriteOptions, manifest: CommitManifest, queue: MessageQueue, queue_offset: int
) -> None:
    """Return when readers can see a stored manifest, or if that cannot be determined.

    While a broker commits a staged batch of any sink, it hides messages stored meanwhile. The index
    does not have them either, and a query that starts over would not be noticed. An acknowledged
    manifest is valid, unless its broker then reports that it is not there.
    """
    instance = producer_of(options).instance
    timer = RetryTimer(
        f"lookup of the manifest of {manifest.id}",
        options.access.retry_timeout_ms,
        pause_seconds=_FIRST_PAUSE_SECONDS,
        pause_seconds_max=_PAUSE_SECONDS,
    )
    try:
        address = instance.routes.master_address(queue.broker_name)
        while instance.api.max_offset(address, queue) <= queue_offset:
            if not timer.sleep_or_expire():
                raise _not_visible_error(options, manifest, queue, queue_offset)
    except ClientError as error:
        _log.info("cannot check whether %s is visible yet, continuing: %s", manifest.id, error)


def _not_visible_error(
    options: WriteOptions, manifest: CommitManifest, queue: MessageQueue, queue_offset: int
) -> WriteError:
    if not has_commits_topic(options, manifest.topic):
        return WriteError(
            f"{manifest.id} is not visible with isolation=committed: topic {queue.topic} was "
            f"deleted after its manifest was stored; {_CREATE_HINT.format(queue.topic)}, and "
            "start the query again"
        )
    return WriteError(
        f"whether {manifest.id} is committed is unknown: its manifest was stored at offset "
        f"{queue_offset} of topic {queue.topic}, but cannot be read there. {queue.broker_name} "
        "has lost it, or is busy with batches of other sinks for longer than retryTimeoutMs, or "
        "the topic was recreated. Restart the query, or repeat the write under the same name: it "
        "is committed only once"
    )


def _commits_queue(options: WriteOptions, commits: str) -> MessageQueue:
    """Return the queue of the commits topic, which must be the only one.

    A topic that no longer exists is not created again: its broker may be away.
    """
    instance = producer_of(options).instance
    timer = _lookup_timer(options, commits)
    while True:
        try:
            queues = _find_commits_queues(instance, commits)
        except ClientError as error:
            if not timer.sleep_or_expire(error):
                raise WriteError(f"topic {commits} cannot be looked up: {error}") from error
            continue
        if queues:
            timer.reset()
            return queues[0]
        if not timer.sleep_or_expire("no name server knows its queue"):
            raise WriteError(
                f"no name server knows the queue of topic {commits}: check that its broker runs; "
                "if the topic was deleted, or this query has not written exactly once before, "
                f"{_CREATE_HINT.format(commits)}"
            )


def _lookup_timer(options: WriteOptions, commits: str) -> RetryTimer:
    what, timeout_ms = f"lookup of topic {commits}", options.access.retry_timeout_ms
    return RetryTimer(what, timeout_ms, pause_seconds=_PAUSE_SECONDS)


def _find_commits_queues(instance: ClientInstance, commits: str) -> tuple[MessageQueue, ...] | None:
    """Return the queues of a commits topic; empty while its broker is away, None without topic."""
    try:
        queues = instance.routes.refresh(commits).publish_queues
    except RouteNotFound:
        return None
    if len(queues) > 1:
        listed = ", ".join(f"{queue.queue_id} on {queue.broker_name}" for queue in queues)
        raise WriteError(
            f"topic {commits} has the queues {listed}: batches are ordered within one queue only. "
            f"Delete it if nothing reads it yet, and {_CREATE_HINT.format(commits)}"
        )
    return queues


def _topic_names(options: WriteOptions, topic: str | None) -> tuple[str, str]:
    topic = topic or options.topic
    if topic is None:
        raise AssertionError("options of a sink with manifests name a topic")
    return topic, commits_topic_name(topic)
