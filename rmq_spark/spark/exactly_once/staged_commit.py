"""Staged commits: a batch that tasks have staged becomes visible, and then its manifest is stored.

    reports of the tasks that count ──> COMMIT_BATCH, again until it is answered
                                          │  from here on every client has all rows
                                          └──> a manifest for each topic, of the spans in the answer

In this order: a reader of what manifests name never waits for rows that may not come. Killed in
between, the driver commits again, hears the same spans, and stores the manifest. This module must
not know how rows are staged.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import reduce
from itertools import chain
from typing import Final

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.arguments import check_topic
from rmq_spark.client.errors import ClientError, MessageIllegal, MessageRejected
from rmq_spark.client.manifest import CommittedSpan, ManifestId, commits_topic
from rmq_spark.client.producer.tables.arrow_sends import CHUNK_TIMEOUT_MS
from rmq_spark.spark.errors import OptionError, WriteError
from rmq_spark.spark.exactly_once.commit_order import (
    TWO_COPIES,
    another_write,
    counting,
    is_of_another_driver,
    tell_of_others,
)
from rmq_spark.spark.exactly_once.manifest_commit import (
    commit,
    has_commits_topic,
    latest_manifests,
    make_commits_topic,
)
from rmq_spark.spark.exactly_once.staging import (
    OF_APPLICATION,
    OF_WRITES,
    STAGING_REMEDIES,
    check_knows,
    check_order,
    one_of,
    take_back,
)
from rmq_spark.spark.options.options import WriteOptions
from rmq_spark.spark.write.rows import TaskStaged
from rmq_spark.spark.write.sender import SendTries, producer_of
from rmq_spark.spark.write.spans import Sums
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
    reports: Sequence[TaskStaged],
    *,
    origin: str = "",
) -> None:
    """Make all rows that tasks report visible, and return when their manifests are stored.

    ``origin`` is where the query's checkpoint lies, by which a copy of it is known.

    Raises:
        WriteError: It is not known whether they are; or they are not, and the error says why.
    """
    some = [report for report in reports if report.broker_name is not None]
    if not some:
        return
    name = one_of(str(report.broker_name) for report in some)
    (batch,) = {report.batch for report in some}
    committed = _committed(options, manifest_id, name, batch, some)
    spans: dict[str, list[CommittedSpan]] = {}
    for span in committed.spans:
        queue = MessageQueue(span.topic, name, span.queue_id)
        spans.setdefault(span.topic, []).append(
            CommittedSpan(queue, span.queue_offset, span.count, span.crc, span.body_bytes)
        )
    topics = [topic for topic in spans if _has_commits(options, topic)]
    if manifest_id.query_key and not _are_rows_of(some, [*chain(*spans.values())]):
        for topic in topics:
            _refuse_others(options, manifest_id, batch, topic, origin)
        tell_of_others(manifest_id, f"sink {batch.sink}")
    for topic in topics:
        commit(options, manifest_id, spans[topic], topic=topic, origin=origin, is_visible=True)


def abort_staged(options: WriteOptions, reports: Sequence[TaskStaged]) -> None:
    """Have the broker delete what tasks have staged; what others have staged is left alone."""
    by_broker: dict[str, list[TaskStaged]] = {}
    for report in reports:
        if report.broker_name is not None and report.attempt is not None:
            by_broker.setdefault(report.broker_name, []).append(report)
    for name, some in by_broker.items():
        attempts = [report.attempt.attempt for report in some if report.attempt is not None]
        producer = producer_of(options)
        try:
            producer.publish_queues(str(some[0].topic))  # so that the broker's address is known
            take_back(producer, name, some[0].batch, attempts)
        except ClientError as error:
            _log.warning("%s keeps what was staged until the next commit: %s", name, error)


def check_stageable(options: WriteOptions) -> str | None:
    """Check that batches can be made visible to all; return the address of the topic's broker.

    Where rows name their topics, tasks check each, and this returns None.

    Raises:
        OptionError: The topic is on several brokers, or its broker knows no staged batches.
        ClientError: No broker could be asked.
    """
    if options.topic is None:
        return None
    producer = producer_of(options)
    queues = producer.publish_queues(options.topic)
    try:
        return check_knows(producer, one_of(queue.broker_name for queue in queues))
    except WriteError as error:
        raise OptionError("visibleTo", str(error)) from error


def next_write(options: WriteOptions) -> BatchRequestHeader:
    """Return what a batch write that is no query's part is known by: a number never used before.

    Or what its user says, as to Delta: who writes, and which of their batches.

    Raises:
        OptionError, ClientError: As `check_stageable` does.
    """
    address = check_stageable(options)
    if options.transaction is not None:
        application, version = options.transaction
        return BatchRequestHeader(str(options.sink_name), version, f"{OF_APPLICATION}{application}")
    sink = f"{options.sink_name}.writes"
    chance = uuid.uuid4().int >> (128 - _RANDOM_BITS)
    number = (int(time.time() * 1000) << _RANDOM_BITS) + chance
    if address is not None:
        last = producer_of(options).instance.api.staging.last_batch(address, sink)
        if last is not None and last.batch_id >= number:  # by a machine whose clock is ahead
            number = last.batch_id + 1 + chance
    return BatchRequestHeader(sink, number, OF_WRITES)


def _committed(
    options: WriteOptions,
    manifest_id: ManifestId,
    name: str,
    batch: BatchRequestHeader,
    reports: Sequence[TaskStaged],
) -> CommittedBatch:
    """Commit a batch; return where the rows are that count in it."""
    topic = str(reports[0].topic)
    producer = producer_of(options)
    where = f"it is not known whether {manifest_id} counts"
    tries = SendTries(options.access, producer, where, time.monotonic, time.sleep, STAGING_REMEDIES)
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
            _explain(api, address, batch)
            raise WriteError(
                f"{manifest_id} does not count, and nobody sees a row of it: {error}. Run again, "
                "it is staged again"
            ) from error
        except ClientError as error:
            tries.wait_after(error, topic)
        else:
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


def _explain(api: BrokerApi, address: str, batch: BatchRequestHeader) -> None:
    """Raise why a commit was refused, if it is the order of the sink's batches."""
    with suppress(ClientError):
        last = api.staging.last_batch(address, batch.sink)
        if last is not None:
            check_order(batch, last)


def _are_rows_of(reports: Sequence[TaskStaged], committed: Sequence[CommittedSpan]) -> bool:
    """Return whether the rows that a broker has committed are those that tasks report.

    Of rows that were staged only the number is known here, and of a batch that was committed amid
    its tasks nothing.
    """
    sums = [report.sums for report in reports if report.sums is not None]
    there = _sums_of(committed)
    if len(sums) == len(reports):
        return reduce(Sums.plus, sums, Sums()) == there
    staged = [report.attempt.rows for report in reports if report.attempt is not None]
    return len(staged) < len(reports) or sum(staged) == there.rows


def _sums_of(spans: Iterable[CommittedSpan]) -> Sums:
    each = (Sums(span.message_count, span.body_bytes, span.crc) for span in spans)
    return reduce(Sums.plus, each, Sums())


def _refuse_others(
    options: WriteOptions,
    manifest_id: ManifestId,
    batch: BatchRequestHeader,
    topic: str,
    origin: str,
) -> None:
    """Refuse rows of a batch that has others, unless they may be those of a batch run again.

    They are not if it is a second write of the batch under the same sink, or if another driver goes
    on with a copy of the checkpoint. Where the index does not tell, nothing is refused.
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
        raise WriteError(another_write(manifest_id, f"sink {batch.sink}", "sinkName"))
    first = counting(manifest_id, own)
    if first is not None and is_of_another_driver(first, manifest_id, origin, own):
        raise WriteError(
            f"{manifest_id} does not count: sink {batch.sink} has committed it already, with other "
            f"rows. {TWO_COPIES}"
        )


def _has_commits(options: WriteOptions, topic: str) -> bool:
    """Return whether a topic can have a commits topic, which is made if it is not there."""
    try:
        check_topic(commits_topic(topic))
    except MessageRejected as error:
        _log.warning("%s has no manifests, as it has no commits topic: %s", topic, error)
        return False
    if not has_commits_topic(options, topic):
        make_commits_topic(options, topic)
    return True
