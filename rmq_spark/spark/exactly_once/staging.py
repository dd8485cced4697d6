"""Staging: sends a task's rows to the one broker that publishes them when their batch is committed.

    first row ──> which broker? ──> what has the sink committed last?
                                      ├─ an earlier batch ──> rows are staged, under a new attempt
                                      ├─ nothing, or one long before ──> the same, unless the
                                      │          batch counts under another name
                                      │          (`renamed_sink_error`)
                                      ├─ this batch ──> rows are counted, and not sent
                                      └─ a later one, or one of another query ──> refused

A broker knows a sink by its name, and the sink belongs to the query that committed first: so a
query that starts over without its checkpoint is noticed. An attempt has a unique name, and deletes
what it has staged if it fails; what it leaves when it is killed, the broker deletes with the next
commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import pyarrow as pa

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.errors import ClientError, SystemBusy
from rmq_spark.client.manifest import ManifestId
from rmq_spark.client.producer.producer import Producer, topic_sender
from rmq_spark.client.producer.tables.arrow_sender import CHUNK_BYTES, CHUNK_TIMEOUT_MS
from rmq_spark.client.producer.tables.staged_sender import StagedSender
from rmq_spark.spark.errors import WriteError
from rmq_spark.spark.exactly_once.manifest_commit import has_commits_topic, latest_manifests
from rmq_spark.spark.options import sink_columns as columns
from rmq_spark.spark.options.options import WriteOptions
from rmq_spark.spark.options.sink_columns import SinkColumn
from rmq_spark.spark.write.routing import RoutedRows
from rmq_spark.spark.write.rows import StagedReport, TaskReport, WriteTask
from rmq_spark.spark.write.sender import (
    REMEDIES,
    SendRetries,
    producer_of,
    send_each,
)
from rmq_spark.spark.write.spans import RowSums, sums_of
from rmq_spark.wire.bodies.staged_batches import CommittedBatch
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers.staging import BatchRequestHeader
from rmq_spark.wire.message_queue import MessageQueue


def renamed_sink_error(
    options: WriteOptions, api: BrokerApi, address: str, manifest_id: ManifestId, topic: str
) -> WriteError | None:
    """Return the error for a stream's batch that counts already under another sink, or None.

    Raises:
        ClientError: That cannot be found out now.
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
        f"{manifest_id} counts in {topic} already, by {committed_by}; sink {options.sink_name} "
        "knows nothing of it, and its rows would be seen twice. Start the query once more as it "
        f'was, with .option("{option}", "{text}") and .trigger(availableNow=True): then its '
        "checkpoint is behind that batch, and the option can be changed"
    )


BATCH_WRITES_OWNER: Final = "batch-writes"
"""The owner of sinks of batch writes that are no query's part."""

APPLICATION_OWNER_PREFIX: Final = "application "
"""The owner of sinks whose batches their users number, in front of txnAppId."""

_ABORT_TIMEOUT_MS: Final = 3_000
_MANIFESTS_ADVICE: Final = (
    "leave out visibleTo: batches count by manifests then, for those who read with "
    "isolation=committed, on any RocketMQ and on several brokers"
)
STAGING_REMEDIES: Final = (
    (
        SystemBusy,
        (
            "let it be smaller batches, as by maxOffsetsPerTrigger at the source, or raise the "
            "broker's maxStagedBytes, or option retryTimeoutMs"
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
    *,
    clock: Callable[[], float] | None = None,
    sleep: Callable[[float], None] | None = None,
) -> TaskReport:
    """Stage all rows of a partition, and return when the broker has them."""
    tries = SendRetries(
        options.access,
        producer_of(options),
        f"partition {task.partition}",
        clock,
        sleep,
        STAGING_REMEDIES,
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
    """The staging of one task's rows."""

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
        """Stage rows, or only count them if their batch is committed already."""
        self.queues_of(routed.topic)
        if self._sums is not None:
            self._sums = self._sums.add(sums_of(routed.rows.column(columns.BODY)))
        else:
            self._sends.stage(routed.rows, routed.topic, routed.queue)

    def finish(self) -> StagedReport:
        """Wait until all rows are staged, and return the report."""
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
        """Check whether the sink is before this batch, past it, or another query's."""
        api = self._producer.instance.api
        while True:
            try:
                address = check_supports_staging(self._producer, broker_name)
                last = api.staging.last_batch(address, self._batch.sink)
                if self._has_gap(last):
                    refused = renamed_sink_error(
                        self._options, api, address, self._manifest_id, topic
                    )
                    last = api.staging.last_batch(address, self._batch.sink)  # by now it may be
                    if refused is not None and self._has_gap(last):
                        raise refused
            except ClientError as error:  # noqa: PERF203  # asked again
                self.retries.wait_or_raise(error, topic)
            else:
                break
        self.retries.reset()
        if last is not None:
            check_order(self._batch, last)
            if last.batch_id == self._batch.batch_id:
                self._sums = RowSums()

    def _has_gap(self, last: CommittedBatch | None) -> bool:
        """Return whether the sink has committed neither this batch nor the one before."""
        return last is None or last.batch_id + 1 < self._batch.batch_id


def abort_attempts(
    producer: Producer, broker_name: str, batch: BatchRequestHeader, attempts: Sequence[str]
) -> None:
    """Have a broker delete what attempts have staged; rows of others are kept.

    Raises:
        ClientError: The broker did not delete it.
    """
    instance = producer.instance
    address = instance.routes.master_address(broker_name)
    instance.api.staging.abort_batch(address, batch, attempts, _ABORT_TIMEOUT_MS)


def check_order(batch: BatchRequestHeader, last: CommittedBatch) -> None:
    """Refuse a batch that precedes the sink's last one, or is of another query."""
    sink, batch_id, owner = batch
    if last.owner != owner:
        raise WriteError(
            f"sink {sink} belongs to {_describe_owner(last.owner)}, which has committed batch "
            f"{last.batch_id}, and this is {_describe_owner(owner)}. If both are to write, set "
            "option "
            "sinkName to a name of its own. If the checkpoint was deleted, put it back. To begin "
            "again on purpose, so that what the query reads again is written again, set a new "
            f"sinkName or run {_forget_command(sink)}"
        )
    if last.batch_id <= batch_id:
        return
    if owner == BATCH_WRITES_OWNER:
        raise WriteError(
            f"another batch write of sink {sink} was committed while this one was under way: of a "
            "sink one is written at a time. Write it again, or set option sinkName, to a name for "
            "each of those that write at the same time. Nothing of this one is visible"
        )
    raise WriteError(
        f"sink {sink} has committed batch {last.batch_id} of {_describe_owner(owner)}, and this "
        "is batch "
        f"{batch_id}: either another driver goes on with the checkpoint, then end this one; or the "
        "checkpoint is an older copy, then put the newest back. To have rows written again on "
        "purpose, set another checkpointLocation, and set another sinkName or run "
        f"{_forget_command(sink)}"
    )


def require_single_broker(broker_names: Iterable[str]) -> str:
    """Return the name of the broker that a batch is on."""
    names = sorted(set(broker_names))
    if len(names) > 1:
        raise WriteError(
            "a batch that all clients see at once has to be on one broker, and this one would be "
            f"on {', '.join(names)}: run again, it may have other rows for each of them. Write to "
            f"topics of one broker, or {_MANIFESTS_ADVICE}"
        )
    return names[0]


def check_supports_staging(producer: Producer, broker_name: str) -> str:
    """Return the address of a broker, if it supports staged batches.

    Raises:
        ClientError: It cannot be reached.
    """
    address = producer.instance.routes.master_address(broker_name)
    if Extension.STAGED_BATCHES not in producer.instance.api.agreement(address).extensions:
        raise WriteError(
            f"broker {broker_name} at {address} knows no staged batches, as RocketMQ does not, nor "
            f"do releases of rocketpoll before 0.2: {_MANIFESTS_ADVICE}"
        )
    return address


def _forget_command(sink: str) -> str:
    return f"rocketpoll sink forget {sink}"


def _describe_owner(owner: str) -> str:
    if owner == BATCH_WRITES_OWNER:
        return "batch writes"
    return owner if owner.startswith(APPLICATION_OWNER_PREFIX) else f"query {owner}"
