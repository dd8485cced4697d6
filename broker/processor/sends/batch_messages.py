"""BatchPuts: splits a client's batch, and appends it to the log as a whole or not at all.

    not delayed, not too long? ─> short: append at once
                              └─> long: in steps, between which others are served

The messages of a batch differ in flag, body and properties; the cached send has all other fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Final

from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.message.message_batch import (
    BatchColumns,
    batch_columns,
    fixed_size_entries,
    split_in_parts,
)
from rmq_spark.wire.message.properties import TIMER_PROPERTIES
from rmq_spark.wire.remoting.framing import Buffer

from ...store.append.column_batches import (
    COLUMN_BATCH_MIN,
    ColumnBatch,
    FixedSizeBatch,
    VariableSizeBatch,
    properties_of_batch,
)
from ...store.append.record_encoding import RecordRun, UniformParts
from ...store.bulk.lazy_numpy import is_loaded as is_numpy_loaded
from ...store.message_store import MessageStore
from ...store.results import PutMessageResult
from ...store.steps import Steps
from ..request import RequestRejected
from .fast_path.cached_send import CachedSend, SendCache
from .stored_properties import PropertyRewriter, StoredProperties

_NO_BATCH: Final = "a batch can neither be delayed nor go to a retry topic"
_ILLEGAL: Final = ResponseCode.MESSAGE_ILLEGAL

LARGE_BATCH_BYTES: Final = 32_768
"""The size below which a batch is put at once: it has at most 1,424 messages, mostly far fewer."""
_ENTRIES_PER_STEP = 256
_SMALL_BATCH_STEPS = 4
SPLITTING_BYTES_MAX: Final = 4 << 20
"""Limit on the large batches being split at a time, which need up to 40 times as much memory."""

BATCH_MESSAGES_MAX: Final = 65_536
"""The maximum messages of a batch, because it is stored whole, in one step of some ten ms."""


class BatchPuts:
    """Puts the batches of all clients; limits the long ones that are split at the same time."""

    def __init__(
        self, store: MessageStore, cache: SendCache, properties: PropertyRewriter, bytes_max: int
    ) -> None:
        """Store the parts; a batch over ``bytes_max`` is refused before it is split."""
        self._store = store
        self._cache = cache
        self._properties = properties
        self._bytes_max = bytes_max
        self._splitting_bytes = 0

    def check(self, cached_send: CachedSend, body: Buffer, properties: StoredProperties) -> None:
        """Refuse a batch that is too long, empty, delayed or a retry."""
        if properties.delay_level or cached_send.is_retry:
            raise RequestRejected(_ILLEGAL, _NO_BATCH)
        if len(body) > self._bytes_max:
            raise RequestRejected(
                _ILLEGAL, f"a batch of {len(body)} bytes is over {self._bytes_max} (maxMessageSize)"
            )
        if not body:
            raise RequestRejected(_ILLEGAL, "the batch is empty")

    def put(
        self,
        cached_send: CachedSend,
        body: Buffer,
        properties: StoredProperties,
        born_timestamp: int,
    ) -> tuple[PutMessageResult, Sequence[int]]:
        """Put a batch at once; return its result, and the sizes of its records."""
        of_batch = self._properties.batch_properties(properties.text)
        batch: RecordRun | ColumnBatch | None
        batch = self._fixed_size_batch(cached_send, body, of_batch, born_timestamp)
        if batch is None:
            parts = self._parts_of(batch_columns(body), of_batch)
            batch = _batch_of(cached_send, parts, born_timestamp)
        return self._store.put_batch(batch), batch.sizes

    def put_in_steps(
        self,
        cached_send: CachedSend,
        body: Buffer,
        properties: StoredProperties,
        born_timestamp: int,
    ) -> Steps[tuple[PutMessageResult, Sequence[int]]]:
        """Put a batch of many messages in steps; return the same as `put`."""
        of_batch = self._properties.batch_properties(properties.text)
        parts: list[UniformParts] = []
        sizes: Sequence[int]
        split_bytes = 0
        try:
            for columns in split_in_parts(body, _ENTRIES_PER_STEP):
                if len(parts) == _SMALL_BATCH_STEPS:
                    self._check_splitting_limit(len(body))
                    split_bytes = len(body)
                    self._splitting_bytes += split_bytes
                parts.append(self._parts_of(columns, of_batch))
                if len(parts) * _ENTRIES_PER_STEP > BATCH_MESSAGES_MAX:
                    raise RequestRejected(
                        _ILLEGAL, f"the batch has over {BATCH_MESSAGES_MAX} messages: split it"
                    )
                yield None
            if split_bytes:
                result, sizes = yield from self._store.put_large(
                    cached_send.template,
                    parts,
                    born_timestamp,
                    partial(self._cache.check_admission, cached_send),
                )
            else:
                self._cache.check_admission(cached_send)
                each_field = zip(*parts, strict=True)
                all_parts = UniformParts(*(list(chain.from_iterable(each)) for each in each_field))
                batch = _batch_of(cached_send, all_parts, born_timestamp)
                result, sizes = self._store.put_batch(batch), batch.sizes
        finally:  # runs also if the client disconnects
            self._splitting_bytes -= split_bytes
        return result, sizes

    def _fixed_size_batch(
        self, cached_send: CachedSend, body: Buffer, batch_properties: bytes, born_timestamp: int
    ) -> FixedSizeBatch | None:
        """Return a batch of messages of one size, if they are enough to save time; else None."""
        entries = fixed_size_entries(body) if is_numpy_loaded() else None
        if entries is None or entries.rows < COLUMN_BATCH_MIN:
            return None
        width = len(entries.first.properties)
        own = properties_of_batch(entries)
        ending = self._properties.batch_suffix(own, width, batch_properties)
        if ending is None:
            return None
        return FixedSizeBatch(cached_send.template, entries, ending, born_timestamp)

    def _check_splitting_limit(self, size: int) -> None:
        """Refuse another large batch while too many are being split; one is always allowed."""
        in_progress = self._splitting_bytes
        if in_progress and in_progress + size > SPLITTING_BYTES_MAX:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                f"[REJECTREQUEST]system busy, batches of {in_progress} bytes are being split",
            )

    def _parts_of(self, columns: BatchColumns, batch_properties: bytes) -> UniformParts:
        flags, bodies, own = columns
        if not all(bodies):
            raise RequestRejected(_ILLEGAL, "the body of a batched message is empty")
        later = self._properties.find_delay_in_batch(own)
        if later is not None:
            raise (
                timer_refusal(later)
                if later in TIMER_PROPERTIES
                else RequestRejected(_ILLEGAL, _NO_BATCH)
            )
        return UniformParts(
            flags, bodies, self._properties.join_all_in_batch(own, batch_properties)
        )


def _batch_of(
    cached_send: CachedSend, parts: UniformParts, born_timestamp: int
) -> RecordRun | ColumnBatch:
    """Return the batch of these messages in the form that is encoded fastest."""
    if len(parts.bodies) < COLUMN_BATCH_MIN or not is_numpy_loaded():
        return RecordRun.uniform(cached_send.template, parts, born_timestamp)
    return VariableSizeBatch(cached_send.template, parts, born_timestamp)


def timer_refusal(name: str) -> RequestRejected:
    """Return the refusal of a batch that has a property of RocketMQ's timers."""
    remark = f"a batch cannot have timers (property {name}): send its messages one by one"
    return RequestRejected(_ILLEGAL, remark)
