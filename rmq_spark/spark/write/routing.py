"""RowRouter: groups rows by destination: one queue, or any queue of one topic.

    rows ──> by topic ──> by queue ──> by delay level

Rows for the same queue keep their order. Python code runs only once for each distinct topic, queue
and sharding key, not for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.client.arguments import check_send_topic
from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.producer.topic_sender import queue_for_key
from rmq_spark.spark.errors import RowError
from rmq_spark.spark.options import sink_columns as columns
from rmq_spark.spark.schemas.columns import BROKER_NAME
from rmq_spark.spark.write.rows import ROW
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import wrap_namespace

QueueLookup = Callable[[str], Sequence[MessageQueue]]
"""A function that returns the queues to which a topic's messages may go."""

_SENT_COLUMNS: Final = (columns.BODY, columns.KEYS, columns.TAGS, columns.PROPERTIES, columns.FLAG)


class RoutedRows(NamedTuple):
    """Rows for one queue, or for any queue of a topic, and the number of the first row."""

    topic: str
    queue: MessageQueue | None
    delay_level: int
    rows: pa.RecordBatch
    first_row: int


class RowRouter:
    """Groups the rows of one partition by destination."""

    def __init__(
        self,
        names: Collection[str],
        partition: int,
        topic: str | None,
        queues_of: QueueLookup,
        namespace: str | None = None,
    ) -> None:
        """Take how rows are routed.

        Args:
            names: The names of the columns.
            partition: The partition of the rows.
            topic: The full name of the topic for all rows; None if each row names its own.
            queues_of: Returns the queues of a topic.
            namespace: The namespace of the topics that rows name.
        """
        self._names = names
        self._partition = partition
        self._topic = topic
        self._queues_of = queues_of
        self._namespace = namespace

    def route(self, rows: pa.RecordBatch) -> Iterator[RoutedRows]:
        """Yield the rows that `RowPreparer` has checked, by destination."""
        for topic, of_topic in self._by_topic(rows):
            for queue, of_queue in self._by_queue(topic, of_topic):
                delays = np.zeros(of_queue.num_rows, np.int64)
                if columns.DELAY_LEVEL in self._names:
                    delays = np.asarray(of_queue.column(columns.DELAY_LEVEL))
                for delay_level, ready in _split_by_code(of_queue, delays):
                    names = [name for name in _SENT_COLUMNS if name in ready.schema.names]
                    first = ready.column(ROW)[0].as_py()
                    yield RoutedRows(topic, queue, delay_level, ready.select(names), first)

    def _by_topic(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._topic is not None:
            if rows.num_rows:
                yield self._topic, rows
            return
        topics = rows.column(columns.TOPIC)
        first_row = rows.column(ROW)[0].as_py() if rows.num_rows else 0
        problem = "it is null or empty: fill it, or set option topic for all rows"
        first_null = pc.index(pc.is_null(topics), True).as_py()
        if first_null >= 0:
            raise RowError(self._partition, first_row + first_null, columns.TOPIC, problem)
        encoded = topics.dictionary_encode()
        for code, part in _split_by_code(rows, np.asarray(encoded.indices).astype(np.int64)):
            topic = wrap_namespace(self._namespace, encoded.dictionary[code].as_py())
            try:
                check_send_topic(topic)
            except MessageRejected as error:
                row = part.column(ROW)[0].as_py()
                raise RowError(self._partition, row, columns.TOPIC, str(error)) from error
            yield topic, part

    def _by_queue(
        self, topic: str, rows: pa.RecordBatch
    ) -> Iterator[tuple[MessageQueue | None, pa.RecordBatch]]:
        if not {columns.SHARDING_KEY, columns.QUEUE_ID} & set(self._names):
            yield None, rows
            return
        queues = self._queues_of(topic)
        if columns.SHARDING_KEY in self._names:
            keys = rows.column(columns.SHARDING_KEY).dictionary_encode()
            number = {queue: at for at, queue in enumerate(queues)}
            of_key = [number[queue_for_key(queues, key)] for key in keys.dictionary.to_pylist()]
            codes = np.asarray(pa.array(of_key, pa.int64()).take(keys.indices).fill_null(-1))
        else:
            codes = self._resolve_queues(rows, queues)
        for code, part in _split_by_code(rows, codes):
            yield (queues[code] if code >= 0 else None), part

    def _resolve_queues(
        self, rows: pa.RecordBatch, queues: Sequence[MessageQueue]
    ) -> npt.NDArray[Any]:
        """Return the position in ``queues`` of the queue that each row names, or -1."""
        ids = np.asarray(rows.column(columns.QUEUE_ID).fill_null(-1)).astype(np.int64)
        known: list[str | None] = [None]
        names = np.zeros(len(ids), np.int64)
        if BROKER_NAME in self._names:
            encoded = rows.column(BROKER_NAME).dictionary_encode()
            known += encoded.dictionary.to_pylist()
            names = np.asarray(encoded.indices.fill_null(-1)).astype(np.int64) + 1
        _, first, pair_of_row = np.unique(
            ids * len(known) + names, return_index=True, return_inverse=True
        )
        chosen = [
            self._resolve_queue(
                rows.column(ROW)[at].as_py(), int(ids[at]), known[names[at]], queues
            )
            for at in first.tolist()
        ]
        return np.array(chosen, np.int64)[pair_of_row]

    def _resolve_queue(
        self, row: int, queue_id: int, name: str | None, queues: Sequence[MessageQueue]
    ) -> int:
        if queue_id < 0:
            return -1
        meant = [
            at
            for at, queue in enumerate(queues)
            if queue.queue_id == queue_id and name in (None, queue.broker_name)
        ]
        if len(meant) == 1:
            return meant[0]
        which = f"queue {queue_id}" + (f" on {name}" if name else "")
        there = ", ".join(f"{queue.queue_id} on {queue.broker_name}" for queue in queues)
        problem = (
            f"there is no {which}, only {there}: drop queueId and brokerName, to have any queue "
            "chosen"
        )
        if meant:
            problem = f"{which} is on several brokers: say in column brokerName which one is meant"
        raise RowError(self._partition, row, columns.QUEUE_ID, problem)


def _split_by_code(
    rows: pa.RecordBatch, codes: npt.NDArray[Any]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each code, in their order."""
    if not len(codes):
        return
    if (codes == codes[0]).all():
        yield int(codes[0]), rows
        return
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order])) + 1
    for part in np.split(order, ends):
        yield int(codes[part[0]]), rows.take(pa.array(part))
