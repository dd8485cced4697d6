"""Manifest commit: stores the one message by which the rows of a batch count, in the commits topic.

    tasks    first batch: does the commits topic exist? else it is created ──> rows are sent
    driver   reports of the tasks that count ──> manifest, in parts if need be ──> stored

A commits topic has one queue: its messages are ordered, and a reader's position is one number. The
queue is on the first of the topic's brokers, by name. The others have the topic as well, without
permission to read or write: so name servers know it while that broker is away, and nobody creates
another.

A manifest is sent until a broker confirms that it is stored; stored twice, it counts once. `commit`
returns after readers can see it, because the next commit looks up earlier ones there. Spark decides
which tasks count, the readers which manifest. Commits that readers would silently ignore are
refused before, and so is a query that starts over (`commit_order`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from rmq_spark.client.admin.lookups import QUERY_MESSAGES_MAX
from rmq_spark.client.errors import ClientError, RouteNotFound
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.manifest import (
    MANIFEST_BYTES_MAX,
    CommitManifest,
    CommittedSpan,
    ManifestId,
    commits_topic_name,
)
from rmq_spark.client.message import Message
from rmq_spark.spark.brokers.addresses import instance_for
from rmq_spark.spark.brokers.retry_timer import RetryTimer
from rmq_spark.spark.errors import WriteError
from rmq_spark.spark.exactly_once.commit_order import CommitOrder
from rmq_spark.spark.options.options import WriteOptions
from rmq_spark.spark.write.sender import producer_of, send_message
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import DEFAULT_TOPIC

_log = logging.getLogger(__name__)

_CREATE_HINT: Final = (
    "make it with one queue on one broker, as with "
    "mqadmin updateTopic -n ADDRESS -b BROKER:PORT -t {0} -r 1 -w 1"
)
_PAUSE_SECONDS: Final = 0.1
_FIRST_PAUSE_SECONDS: Final = 0.001
"""The first pause for a manifest to be seen: RocketMQ shows what is stored some ms later."""
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
    """Return whether a topic's commits topic exists; True if that cannot be found out now."""
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
            f"topic {commits}, by whose messages batches count, is not there, and {name} does not "
            f"make it: {error}; {_CREATE_HINT.format(commits)}"
        ) from error
    for other in others:
        try:
            address = instance.routes.master_address(other)
            instance.api.admin.create_topic(address, replace(config, perm=_NO_ACCESS))
        except ClientError as error:  # noqa: PERF203  # it helps if the others have it
            _log.warning("%s does not know of topic %s: %s", other, commits, error)
    timer = _lookup_timer(options, commits)
    while not _find_commits_queues(instance, commits):
        if not timer.sleep_or_expire():
            raise WriteError(f"topic {commits} was made on {name}, and no name server knows it")
    _log.info("topic %s was made on %s", commits, name)


def commit(
    options: WriteOptions,
    manifest_id: ManifestId,
    spans: Iterable[CommittedSpan],
    topic: str | None = None,
    *,
    origin: str = "",
    is_visible: bool = False,
) -> None:
    """Commit rows: store their manifest, and return when readers see it; no rows need none.

    The rows are of one topic, by default the sink's. ``origin`` identifies a query that starts
    over; without it, that is not checked. Nor is it for rows that are visible already: the broker
    that published them has checked it.
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
                f"it is not known whether {manifest_id} counts: its manifest could not be sent to "
                f"{error}"
            ) from error
        return result.queue_offset

    body = manifest.encode_final_message(last, [sent(body) for body in early])
    if len(body) > options.max_message_bytes:
        raise WriteError(
            f"{manifest_id} does not count: the last message of its manifest, which names "
            f"{len(early)} parts, has {len(body)} bytes, and option maxMessageBytes allows "
            f"{options.max_message_bytes}: raise it to the brokers' maxMessageSize"
        )
    stored_at = sent(body, manifest_id.query_key, CommitManifest.origin_key(origin))
    _wait_until_visible(options, manifest, queue, stored_at)


def _wait_until_visible(
    options: WriteOptions, manifest: CommitManifest, queue: MessageQueue, queue_offset: int
) -> None:
    """Return when readers see a stored manifest, or if it cannot be found out whether they do.

    A broker that commits a staged batch, of whatever sink, hides what is stored meanwhile. Until
    then the index does not have it either, and a query that starts over would not be noticed. An
    acknowledged manifest counts, unless its broker then reports that it is not there.
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
        _log.info("nobody says whether %s is seen yet: %s", manifest.id, error)


def _not_visible_error(
    options: WriteOptions, manifest: CommitManifest, queue: MessageQueue, queue_offset: int
) -> WriteError:
    if not has_commits_topic(options, manifest.topic):
        return WriteError(
            f"{manifest.id} does not count for isolation=committed: topic {queue.topic} was "
            f"deleted behind its manifest; {_CREATE_HINT.format(queue.topic)}, and start the "
            "query again"
        )
    return WriteError(
        f"it is not known whether {manifest.id} counts: its manifest was stored at offset "
        f"{queue_offset} of topic {queue.topic}, and is not seen there. {queue.broker_name} has "
        "lost it, or is busy with batches of other sinks for longer than option retryTimeoutMs "
        "says, or the topic was made again. A query that is started again, and a write of the same "
        "name, counts once"
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
                raise WriteError(f"topic {commits} cannot be looked for: {error}") from error
            continue
        if queues:
            timer.reset()
            return queues[0]
        if not timer.sleep_or_expire("no name server knows its queue"):
            raise WriteError(
                f"no name server knows the queue of topic {commits}: see that its broker runs; if "
                "the topic was deleted, or this query has not written exactly once before, "
                f"{_CREATE_HINT.format(commits)}"
            )


def _lookup_timer(options: WriteOptions, commits: str) -> RetryTimer:
    what, timeout_ms = f"lookup of topic {commits}", options.access.retry_timeout_ms
    return RetryTimer(what, timeout_ms, pause_seconds=_PAUSE_SECONDS)


def _find_commits_queues(instance: ClientInstance, commits: str) -> tuple[MessageQueue, ...] | None:
    """Return the queues of a commits topic: none if it is away, None if no such topic exists."""
    try:
        queues = instance.routes.refresh(commits).publish_queues
    except RouteNotFound:
        return None
    if len(queues) > 1:
        there = ", ".join(f"{queue.queue_id} on {queue.broker_name}" for queue in queues)
        raise WriteError(
            f"topic {commits} has the queues {there}: batches are in order in one queue only. "
            f"Delete it if nothing reads it yet, and {_CREATE_HINT.format(commits)}"
        )
    return queues


def _topic_names(options: WriteOptions, topic: str | None) -> tuple[str, str]:
    topic = topic or options.topic
    if topic is None:
        raise AssertionError("options of manifests alone name a topic")
    return topic, commits_topic_name(topic)
