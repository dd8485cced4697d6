"""Staged commit: tasks stage the rows of a batch at one broker, which publishes them together.

A task stages its rows:

    first row ──> which broker? ──> what has the sink committed last?
                                      ├─ an earlier batch ──> rows are staged, under a new attempt
                                      ├─ nothing, or one long before ──> the same, unless another
                                      │          sink has committed the batch
                                      │          (`renamed_sink_error`)
                                      ├─ this batch ──> rows are counted, and not sent
                                      └─ a later one, or one of another query ──> refused

A broker identifies a sink by its name, and the sink belongs to the query that committed first. So a
query that starts over without its checkpoint is detected. An attempt has a unique name and deletes
its staged rows if it fails. If it is killed, the broker deletes them with the next commit.

The driver has the broker commit them, and then stores their manifests:

    reports of successful tasks ──> COMMIT_BATCH, repeated until it is answered
                                      │  from here on every client has all rows
                                      └──> a manifest for each topic, of the spans in the answer

The order ensures that a reader of manifests never waits for rows that may never be stored. If the
driver is killed in between, it commits again, receives the same spans, and stores the manifests.
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

import pyarrow as pa

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.arguments import check_topic
from rmq_spark.client.errors import ClientError, MessageIllegal, MessageRejected, SystemBusy
from rmq_spark.client.manifest import CommittedSpan, ManifestId, commits_topic_name
from rmq_spark.client.producer.arrow_sender import CHUNK_BYTES, CHUNK_TIMEOUT_MS, StagedSender
from rmq_spark.client.producer.producer import Producer, topic_sender
from rmq_spark.spark.errors import OptionError, WriteError
from rmq_spark.spark.exactly_once.manifest_commit import (
    CONCURRENT_DRIVERS_ADVICE,
    commit,
    create_commits_topic,
    duplicate_write_error,
    effective_manifest,
    has_commits_topic,
    is_from_other_driver,
    latest_manifests,
    log_changed_rows,
)
from rmq_spark.spark.options import sink_columns as columns
from rmq_spark.spark.options.options import WriteOptions
from rmq_spark.spark.options.sink_columns import SinkColumn
from rmq_spark.spark.write.reports import RowSums, StagedReport, TaskReport, WriteTask
from rmq_spark.spark.write.rows import RoutedRows, sums_of
from rmq_spark.spark.write.sender import (
    REMEDIES,
    SendRetries,
    producer_of,
    send_each,
)
from rmq_spark.wire.bodies.staged_batches import CommittedBatch
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers.members import BatchRequestHeader
from rmq_spark.wire.message_queue import MessageQueue

# ---- a task: staging its rows


def renamed_sink_error(
    options: WriteOptions, api: BrokerApi, address: str, manifest_id: ManifestId, topic: str
) -> WriteError | None:
    """Return the error if another sink has committed a stream's batch already, or None.

    Raises:
        ClientError: A broker or name server does not answer.
    """
    if manifest_id.query_id is None or manifest_id.write_name:
        return None
    setting = None
    for name, last in sorted(api.admin.sinks(address).items()):
        is_same = last.owner == manifest_id.query_id and topic in last.topics
        if is_same and name != options.sink_name and last.batch_id >= manifest_id.batch_id:
            setting = f"sink {name}", "sinkName", name
            break
    else:
        manifests = (
            latest_manifests(options, manifest_id, topic)
            if has_commits_topic(options, topic)
            else []
        )
        if any(
            not each.id.write_name and each.id.batch_id >= manifest_id.batch_id
            for each in manifests
        ):
            setting = "a manifest", "visibleTo", "committed_readers"
    if setting is None:
        return None
    committed_by, option, text = setting
    return WriteError(
        f"{manifest_id} is already committed to {topic} by {committed_by}, but sink "
        f"{options.sink_name} does not know it: its rows would become duplicates. Start the query "
        f'once with the old options, with .option("{option}", "{text}") and '
        ".trigger(availableNow=True): then its checkpoint is past that batch, and the option can "
        "be changed"
    )


BATCH_WRITES_OWNER: Final = "batch-writes"
"""The owner of the sinks of batch writes outside a query."""

APPLICATION_OWNER_PREFIX: Final = "application "
"""Precedes a txnAppId in the owner of a sink whose batches the user numbers (txnVersion)."""

_ABORT_TIMEOUT_MS: Final = 3_000
_MANIFESTS_ADVICE: Final = (
    "remove visibleTo: then manifests commit the batches, for readers with isolation=committed, "
    "on any RocketMQ and on several brokers"
)
STAGING_REMEDIES: Final = (
    (
        SystemBusy,
        (
            "make batches smaller, for example with maxOffsetsPerTrigger at the source, or raise "
            "the broker's maxStagedBytes, or option retryTimeoutMs"
        ),
    ),
    *(each for each in REMEDIES if each[0] is not SystemBusy),
)


def stage_rows(
    options: WriteOptions,
    sink_columns: Sequence[SinkColumn],
    task: WriteTask,
    batches: Iterable[pa.RecordBatch],
    batch: BatchRequestHeader,
    manifest_id: ManifestId,
) -> TaskReport:
    """Stage all rows of a partition, and return when the broker has them."""
    tries = SendRetries(
        options.access,
        producer_of(options),
        f"partition {task.partition}",
        remedies=STAGING_REMEDIES,
    )
    staging = _TaskStaging(options, task, batch, manifest_id, tries)
    try:
        counts = send_each(options, sink_columns, task, batches, staging)
        staged = staging.finish()
    except BaseException:
        staging.abort()
        raise
    return TaskReport(*counts, tries.retries, staged=staged)


class _TaskStaging:
    def __init__(
        self,
        options: WriteOptions,
        task: WriteTask,
        batch: BatchRequestHeader,
        manifest_id: ManifestId,
        retries: SendRetries,
    ) -> None:
        self._options = options
        self._producer = producer_of(options)
        self._batch = batch
        self._manifest_id = manifest_id
        self.retries = retries
        self._attempt = f"{task.partition}.{uuid.uuid4().hex}"
        self._sends = StagedSender(
            topic_sender(self._producer),
            batch,
            self._attempt,
            self.queues_of,
            retries,
            chunk_bytes=max(CHUNK_BYTES, options.max_message_bytes),
            timeout_ms=max(CHUNK_TIMEOUT_MS, options.access.request_timeout_ms),
        )
        self._topic: str | None = None
        self._broker_name: str | None = None
        self._sums: RowSums | None = None

    def queues_of(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues of a topic, which must be on the one broker of the batch."""
        queues = self.retries.queues_of(topic)
        names = {queue.broker_name for queue in queues}
        if self._broker_name is None:
            self._topic, self._broker_name = topic, require_single_broker(names)
            self._check_last_batch(topic, self._broker_name)
        require_single_broker({self._broker_name, *names})
        return queues

    def send(self, routed: RoutedRows) -> None:
        self.queues_of(routed.topic)
        if self._sums is not None:
            self._sums = self._sums.add(sums_of(routed.rows.column(columns.BODY)))
        else:
            self._sends.stage(routed.rows, routed.topic, routed.queue)

    def finish(self) -> StagedReport:
        attempt = self._sends.finish()
        is_committed = self._sums is not None or self._sends.is_committed
        return StagedReport(
            self._batch,
            self._topic,
            self._broker_name,
            None if is_committed or not attempt.chunks else attempt,
            self._sends.staged_bytes,
            is_committed,
            self._sums,
        )

    def abort(self) -> None:
        """Have the broker delete what this attempt has staged, if the broker can be reached."""
        with suppress(Exception):
            self._sends.drain()
            if self._broker_name is not None and self._sends.staged_bytes:
                abort_attempts(self._producer, self._broker_name, self._batch, [self._attempt])

    def _check_last_batch(self, topic: str, broker_name: str) -> None:
        """Find out whether the sink has committed this batch; refuse as `check_order` does."""
        api = self._producer.instance.api
        while True:
            try:
                address = check_supports_staging(self._producer, broker_name)
                last = api.staging.last_batch(address, self._batch.sink)
                if self._has_gap(last):
                    refused = renamed_sink_error(
                        self._options, api, address, self._manifest_id, topic
                    )
                    # The sink may have committed the batch meanwhile.
                    last = api.staging.last_batch(address, self._batch.sink)
                    if refused is not None and self._has_gap(last):
                        raise refused
            except ClientError as error:  # noqa: PERF203  # the loop retries
                self.retries.wait_or_raise(error, topic)
            else:
                break
        self.retries.reset()
        if last is not None:
            check_order(self._batch, last)
            if last.batch_id == self._batch.batch_id:
                self._sums = RowSums()

    def _has_gap(self, last: CommittedBatch | None) -> bool:
        return last is None or last.batch_id + 1 < self._batch.batch_id


def abort_attempts(
    producer: Producer, broker_name: str, batch: BatchRequestHeader, attempts: Sequence[str]
) -> None:
    """Have a broker delete what attempts have staged; rows of others are kept."""
    instance = producer.instance
    address = instance.routes.master_address(broker_name)
    instance.api.staging.abort_batch(address, batch, attempts, _ABORT_TIMEOUT_MS)


def check_order(batch: BatchRequestHeader, last: CommittedBatch) -> None:
    """Refuse a batch that precedes the sink's last one, or is of another query."""
    sink, batch_id, owner = batch
    if last.owner != owner:
        raise WriteError(
            f"sink {sink} belongs to {_describe_owner(last.owner)}, which has committed batch "
            f"{last.batch_id}, and this is {_describe_owner(owner)}. If both must write, set "
            "option sinkName to another name. If the checkpoint was deleted, restore it. To start "
            "over on purpose, and write rows that the query reads again as duplicates, set a new "
            f"sinkName or run {_forget_command(sink)}"
        )
    if last.batch_id <= batch_id:
        return
    if owner == BATCH_WRITES_OWNER:
        raise WriteError(
            f"another batch write of sink {sink} was committed in the meantime, and a sink "
            "accepts one write at a time. None of these rows is visible. Write them again, or "
            "give each of the concurrent writes its own sinkName"
        )
    raise WriteError(
        f"sink {sink} has committed batch {last.batch_id} of {_describe_owner(owner)}, and this "
        f"is batch {batch_id}. If another driver uses the checkpoint, stop this one. If the "
        "checkpoint is an older copy, restore the latest. To write rows again on purpose, set "
        f"another checkpointLocation, and set another sinkName or run {_forget_command(sink)}"
    )


def require_single_broker(broker_names: Iterable[str]) -> str:
    """Return the name of the broker that a batch is on."""
    names = sorted(set(broker_names))
    if len(names) > 1:
        raise WriteError(
            "with visibleTo=all a batch must be on one broker, but this one has rows for "
            f"{', '.join(names)}. Write to topics of one broker, or {_MANIFESTS_ADVICE}"
        )
    return names[0]


def check_supports_staging(producer: Producer, broker_name: str) -> str:
    """Return the address of a broker, if it supports staged batches."""
    address = producer.instance.routes.master_address(broker_name)
    if Extension.STAGED_BATCHES not in producer.instance.api.agreement(address).extensions:
        raise WriteError(
            f"broker {broker_name} at {address} does not support staged batches: it is RocketMQ, "
            f"or rocketpoll before 0.2. Use another broker, or {_MANIFESTS_ADVICE}"
        )
    return address


def _forget_command(sink: str) -> str:
    return f"rocketpoll sink forget {sink}"


def _describe_owner(owner: str) -> str:
    if owner == BATCH_WRITES_OWNER:
        return "batch writes"
    return owner if owner.startswith(APPLICATION_OWNER_PREFIX) else f"query {owner}"


# ---- the driver: committing what tasks have staged

_log = logging.getLogger(__name__)

_RANDOM_BITS: Final = 20
"""The random bits below the milliseconds in a batch write's number, so that numbers are unique."""

_COPIED_BYTES_PER_MS: Final = 10_000
"""The speed, on a slow disk, at which a broker is expected to copy staged rows."""


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
            _refuse_changed_rows(options, manifest_id, batch, topic, origin)
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
            _log.warning("%s keeps the staged rows until the next commit: %s", name, error)


def check_stageable(options: WriteOptions) -> str | None:
    """Check that batches can be published as a whole; return the address of the topic's broker.

    If rows name their topics, tasks check each, and this returns None.
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

    Options may give the writer's name and its batch number instead, as with Delta.
    """
    address = check_stageable(options)
    if options.transaction is not None:
        application, version = options.transaction
        return BatchRequestHeader(
            str(options.sink_name), version, f"{APPLICATION_OWNER_PREFIX}{application}"
        )
    sink = f"{options.sink_name}.writes"
    random_number = uuid.uuid4().int >> (128 - _RANDOM_BITS)
    number = (int(time.time() * 1000) << _RANDOM_BITS) + random_number
    if address is not None:
        last = producer_of(options).instance.api.staging.last_batch(address, sink)
        if last is not None and last.batch_id >= number:  # by a machine whose clock is ahead
            number = last.batch_id + 1 + random_number
    return BatchRequestHeader(sink, number, BATCH_WRITES_OWNER)


def _commit_batch(
    options: WriteOptions,
    manifest_id: ManifestId,
    name: str,
    batch: BatchRequestHeader,
    reports: Sequence[StagedReport],
) -> CommittedBatch:
    topic = str(reports[0].topic)
    producer = producer_of(options)
    where = f"whether {manifest_id} is committed is unknown"
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
            if is_known:  # tasks skipped rows, so not all are staged
                last = api.staging.last_batch(address, batch.sink)
            else:
                last = api.staging.commit_batch(address, batch, attempts, timeout_ms)
        except MessageIllegal as error:  # noqa: PERF203  # not retried
            with suppress(ClientError):  # the order of the sink's batches may be the reason
                last = api.staging.last_batch(address, batch.sink)
                if last is not None:
                    check_order(batch, last)
            raise WriteError(
                f"{manifest_id} is not committed, and none of its rows is visible: {error}. Run "
                "it again"
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
            f"{name} reported {manifest_id} as committed, but does not know it now: its store may "
            "have been restored from an older copy. No other rows of this batch are visible. Run "
            "it again"
        )
    return last


def _has_same_rows(reports: Sequence[StagedReport], committed: Sequence[CommittedSpan]) -> bool:
    """Return whether the rows that a broker has committed are those that tasks report.

    Only the number of staged rows is known here, and nothing about a batch that was committed while
    its tasks ran.
    """
    sums = [report.sums for report in reports if report.sums is not None]
    each = (RowSums(span.message_count, span.body_bytes, span.crc) for span in committed)
    total = reduce(RowSums.add, each, RowSums())
    if len(sums) == len(reports):
        return reduce(RowSums.add, sums, RowSums()) == total
    staged = [report.attempt.rows for report in reports if report.attempt is not None]
    return len(staged) < len(reports) or sum(staged) == total.rows


def _refuse_changed_rows(
    options: WriteOptions,
    manifest_id: ManifestId,
    batch: BatchRequestHeader,
    topic: str,
    origin: str,
) -> None:
    """Refuse a batch that was committed with other rows, unless it may be a retried batch.

    Rows differ if this is a second write of the batch under the same sink, or if another driver
    runs on a copy of the checkpoint. If the index has no answer, nothing is refused.
    """
    own = latest_manifests(options, manifest_id, topic)
    if any(each.id == manifest_id for each in own):
        if options.transaction is not None:
            raise WriteError(
                f"sink {batch.sink} has already committed other rows of {manifest_id}. If this is "
                "the same version, written again, it is committed already: skip it, or write the "
                "same rows. If it is another write, give it its own txnVersion or sinkName"
            )
        raise WriteError(duplicate_write_error(manifest_id, f"sink {batch.sink}", "sinkName"))
    first = effective_manifest(manifest_id, own)
    if first is not None and is_from_other_driver(first, manifest_id, origin, own):
        raise WriteError(
            f"{manifest_id} is not committed: sink {batch.sink} has committed it already, with "
            f"other rows. {CONCURRENT_DRIVERS_ADVICE}"
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
