"""Staged commit: makes a batch that tasks have staged visible, and then stores its manifests.

    reports of the tasks that count ──> COMMIT_BATCH, again until it is answered
                                          │  from here on every client has all rows
                                          └──> a manifest for each topic, of the spans in the answer

The order ensures that a reader of manifests never waits for rows that may not come. If the driver
is killed in between, it commits again, receives the same spans, and stores the manifests.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from itertools import chain
from typing import Final

from rmq_spark.client.arguments import check_topic
from rmq_spark.client.errors import ClientError, MessageIllegal, MessageRejected
from rmq_spark.client.manifest import CommittedSpan, ManifestId, commits_topic_name
from rmq_spark.client.producer.tables.arrow_sender import CHUNK_TIMEOUT_MS
from rmq_spark.spark.errors import OptionError, WriteError
from rmq_spark.spark.exactly_once.commit_order import (
    CONCURRENT_DRIVERS_ADVICE,
    duplicate_write_error,
    effective_manifest,
    is_from_other_driver,
    log_changed_rows,
)
from rmq_spark.spark.exactly_once.manifest_commit import (
    commit,
    create_commits_topic,
    has_commits_topic,
    latest_manifests,
)
from rmq_spark.spark.exactly_once.staging import (
    APPLICATION_OWNER_PREFIX,
    BATCH_WRITES_OWNER,
    STAGING_REMEDIES,
    abort_attempts,
    check_order,
    check_supports_staging,
    require_single_broker,
)
from rmq_spark.spark.options.options import WriteOptions
from rmq_spark.spark.write.rows import StagedReport
from rmq_spark.spark.write.sender import SendRetries, producer_of
from rmq_spark.spark.write.spans import RowSums
from rmq_spark.wire.bodies.staged_batches import CommittedBatch
from rmq_spark.wire.headers.staging import BatchRequestHeader
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)

_RANDOM_BITS: Final = 20
"""The bits of a batch write's number below its milliseconds: no two writes have the same one."""

_COPIED_BYTES_PER_MS: Final = 10_000
"""The speed, on a slow disk, at which a broker is expected to copy what is staged."""


def commit_staged(
    options: WriteOptions,
    manifest_id: ManifestId,
    reports: Sequence[StagedReport],
    *,
    origin: str = "",
) -> None:
    """Make all rows that tasks report visible, and return when their manifests are stored.

    ``origin`` is the checkpoint's location, by which a copy of it is recognized.
    """
    some = [report for report in reports if report.broker_name is not None]
    if not some:
        return
    name = require_single_broker(str(report.broker_name) for report in some)
    (batch,) = {report.batch for report in some}
    committed = _commit_batch(options, manifest_id, name, batch, some)
    spans: dict[str, list[CommittedSpan]] = {}
    for span in committed.spans:
        queue = MessageQueue(span.topic, name, span.queue_id)
        spans.setdefault(span.topic, []).append(
            CommittedSpan(queue, span.queue_offset, span.count, span.crc, span.body_bytes)
        )
    topics = [topic for topic in spans if _ensure_commits_topic(options, topic)]
    if manifest_id.query_key and not _has_same_rows(some, [*chain(*spans.values())]):
        for topic in topics:
            _reject_changed_rows(options, manifest_id, batch, topic, origin)
        log_changed_rows(manifest_id, f"sink {batch.sink}")
    for topic in topics:
        commit(options, manifest_id, spans[topic], topic=topic, origin=origin, is_visible=True)


def abort_staged(options: WriteOptions, reports: Sequence[StagedReport]) -> None:
    """Have the broker delete what these tasks have staged; rows of others are kept."""
    by_broker: dict[str, list[StagedReport]] = {}
    for report in reports:
        if report.broker_name is not None and report.attempt is not None:
            by_broker.setdefault(report.broker_name, []).append(report)
    for name, some in by_broker.items():
        attempts = [report.attempt.attempt for report in some if report.attempt is not None]
        producer = producer_of(options)
        try:
            producer.publish_queues(str(some[0].topic))  # so that the broker's address is known
            abort_attempts(producer, name, some[0].batch, attempts)
        except ClientError as error:
            _log.warning("%s keeps what was staged until the next commit: %s", name, error)


def check_stageable(options: WriteOptions) -> str | None:
    """Check that batches can be published as a whole; return the address of the topic's broker.

    If rows name their topics, tasks check each, and this returns None.

    Raises:
        ClientError: No broker could be asked.
    """
    if options.topic is None:
        return None
    producer = producer_of(options)
    queues = producer.publish_queues(options.topic)
    try:
        return check_supports_staging(
            producer, require_single_broker(queue.broker_name for queue in queues)
        )
    except WriteError as error:
        raise OptionError("visibleTo", str(error)) from error


def next_batch_header(options: WriteOptions) -> BatchRequestHeader:
    """Return the identity of a batch write outside a query: a number that was never used before.

    Or the one that the user gives, as with Delta: the writer's name, and the number of its batch.

    Raises:
        OptionError, ClientError: As `check_stageable` does.
    """
    address = check_stageable(options)
    if options.transaction is not None:
        application, version = options.transaction
        return BatchRequestHeader(
            str(options.sink_name), version, f"{APPLICATION_OWNER_PREFIX}{application}"
        )
    sink = f"{options.sink_name}.writes"
    chance = uuid.uuid4().int >> (128 - _RANDOM_BITS)
    number = (int(time.time() * 1000) << _RANDOM_BITS) + chance
    if address is not None:
        last = producer_of(options).instance.api.staging.last_batch(address, sink)
        if last is not None and last.batch_id >= number:  # by a machine whose clock is ahead
            number = last.batch_id + 1 + chance
    return BatchRequestHeader(sink, number, BATCH_WRITES_OWNER)


def _commit_batch(
    options: WriteOptions,
    manifest_id: ManifestId,
    name: str,
    batch: BatchRequestHeader,
    reports: Sequence[StagedReport],
) -> CommittedBatch:
    """Commit a batch; return where the rows are that count in it."""
    topic = str(reports[0].topic)
    producer = producer_of(options)
    where = f"it is not known whether {manifest_id} counts"
    retries = SendRetries(options.access, producer, where, remedies=STAGING_REMEDIES)
    api, routes = producer.instance.api, producer.instance.routes
    attempts = [report.attempt for report in reports if report.attempt is not None]
    timeout_ms = max(CHUNK_TIMEOUT_MS, options.access.request_timeout_ms)
    timeout_ms += sum(report.staged_bytes for report in reports) // _COPIED_BYTES_PER_MS
    is_known = any(report.is_committed for report in reports)
    while True:
        try:
            producer.publish_queues(topic)  # so that the broker's address is known
            address = routes.master_address(name)
            if is_known:  # tasks have left rows out: what they have staged is not all
                last = api.staging.last_batch(address, batch.sink)
            else:
                last = api.staging.commit_batch(address, batch, attempts, timeout_ms)
        except MessageIllegal as error:  # noqa: PERF203  # no other answer is asked again
            with suppress(ClientError):  # the order of the sink's batches may be the reason
                last = api.staging.last_batch(address, batch.sink)
                if last is not None:
                    check_order(batch, last)
            raise WriteError(
                f"{manifest_id} does not count, and nobody sees a row of it: {error}. Run again, "
                "it is staged again"
            ) from error
        except ClientError as error:
            retries.wait_or_raise(error, topic)
        else:
            retries.reset()
            break
    if last is not None:
        check_order(batch, last)
    if last is None or last.batch_id != batch.batch_id:
        raise WriteError(
            f"{name} told tasks that {manifest_id} is committed, and knows nothing of it now: was "
            "its store put back from an older copy? Nothing more of this batch was made visible; "
            "run it again"
        )
    return last


def _has_same_rows(reports: Sequence[StagedReport], committed: Sequence[CommittedSpan]) -> bool:
    """Return whether the rows that a broker has committed are those that tasks report.

    Only the number of staged rows is known here, and nothing of a batch that was committed while
    its tasks ran.
    """
    sums = [report.sums for report in reports if report.sums is not None]
    each = (RowSums(span.message_count, span.body_bytes, span.crc) for span in committed)
    there = reduce(RowSums.add, each, RowSums())
    if len(sums) == len(reports):
        return reduce(RowSums.add, sums, RowSums()) == there
    staged = [report.attempt.rows for report in reports if report.attempt is not None]
    return len(staged) < len(reports) or sum(staged) == there.rows


def _reject_changed_rows(
    options: WriteOptions,
    manifest_id: ManifestId,
    batch: BatchRequestHeader,
    topic: str,
    origin: str,
) -> None:
    """Refuse rows of a batch that has others, unless they may belong to a retried batch.

    They do not if this is a second write of the batch under the same sink, or if another driver
    runs on a copy of the checkpoint. If the index does not tell, nothing is refused.
    """
    own = latest_manifests(options, manifest_id, topic)
    if any(each.id == manifest_id for each in own):
        if options.transaction is not None:
            raise WriteError(
                f"sink {batch.sink} has written other rows of {manifest_id} already, and those "
                "count. If this is the same version, written again, it counts already: leave it "
                "out, or have it write the same rows. If it is another write, give it a "
                "txnVersion, or a sinkName, of its own"
            )
        raise WriteError(duplicate_write_error(manifest_id, f"sink {batch.sink}", "sinkName"))
    first = effective_manifest(manifest_id, own)
    if first is not None and is_from_other_driver(first, manifest_id, origin, own):
        raise WriteError(
            f"{manifest_id} does not count: sink {batch.sink} has committed it already, with other "
            f"rows. {CONCURRENT_DRIVERS_ADVICE}"
        )


def _ensure_commits_topic(options: WriteOptions, topic: str) -> bool:
    """Return whether a topic can have a commits topic, and create it if it does not exist."""
    try:
        check_topic(commits_topic_name(topic))
    except MessageRejected as error:
        _log.warning("%s has no manifests, as it has no commits topic: %s", topic, error)
        return False
    if not has_commits_topic(options, topic):
        create_commits_topic(options, topic)
    return True
