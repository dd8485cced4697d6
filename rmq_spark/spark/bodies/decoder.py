"""TypedBatchConverter: converts record batches with binary bodies to batches with typed bodies.

    RecordBatchConverter ──> columns, body, place ──> decoder of the format ──> exact columns

Option ``onBadRecord`` decides whether a body that cannot be decoded fails the query, becomes null
or is skipped; reports name its position. If no column belongs to bodies, bodies are neither decoded
nor decompressed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.client.damaged_records import BadRecord
from rmq_spark.client.reading.record_batches import RecordBatchConverter
from rmq_spark.client.serializers import SERIALIZERS
from rmq_spark.errors import excerpt
from rmq_spark.spark.bodies.bad_records import BadRecordHandler
from rmq_spark.spark.bodies.columns import is_body_column
from rmq_spark.spark.options.bodies import BODY, BodyOptions
from rmq_spark.spark.options.options import ReadOptions
from rmq_spark.spark.options.values import BodyFormat
from rmq_spark.spark.schemas.arrow_conversion import BodyDecoder, BodyFault, decode_one_by_one
from rmq_spark.wire.chunk import COLUMNS, RecordChunk
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import LIGHT_QUEUE_PREFIX

_log = logging.getLogger(__name__)

_SAMPLED_BODIES_MAX: Final = 100
_LISTED_MAX: Final = 10


class MissingFieldsWarning:
    """The warning that bodies have none of the schema's fields; logged once per task."""

    def __init__(self, names: Collection[str], loads: Callable[[bytes], Any] = json.loads) -> None:
        self._names = set(names)
        self._loads = loads
        self._is_done = False

    def check(self, topic: str, bodies: pa.Array, values: pa.StructArray) -> None:
        """Warn if none of these bodies has a field of the schema; ``values`` are their values."""
        if self._is_done or any(each.null_count < len(each) for each in values.flatten()):
            return
        found: dict[str, None] = {}
        for body in bodies.drop_null().slice(0, _SAMPLED_BODIES_MAX).to_pylist():
            with suppress(ValueError, TypeError, RecursionError):  # a bad body, which was reported
                value = self._loads(body)
                names = value if isinstance(value, dict) else ()
                found.update(dict.fromkeys(each for each in names if isinstance(each, str)))
        if not found or self._names & set(found):
            return
        self._is_done = True
        _log.warning(
            "bodySchema has %s, but %d bodies of %s have none of these: their columns are null",
            _list_names(self._names),
            len(bodies),
            topic,
        )
        _log.warning("the bodies of %s have the fields %s", topic, _list_names(found))


def _list_names(names: Collection[str]) -> str:
    shown = [excerpt(name) for name in sorted(names)[:_LISTED_MAX]]
    return ", ".join([*shown, *(["..."] if len(names) > _LISTED_MAX else [])])


_POSITION_FIELDS: Final = (pa.field("queueId", pa.int32()), pa.field("queueOffset", pa.int64()))
_SLICE_ROWS_MAX: Final = 256
"""Bodies per slice: if one is bad, those of its slice are decoded one by one.

A chunk with bad bodies is tried as a whole, in pieces and one by one: no body is decoded more than
three times, however many rows the chunk has.
"""


class TextBodies:
    """The decoder of UTF-8 text."""

    def decode_all(self, bodies: pa.Array) -> pa.Array:
        """Return bodies as text; raise ValueError if one is not UTF-8."""
        return bodies.cast(pa.string())

    def decode_each(self, bodies: pa.Array) -> tuple[pa.Array, dict[int, BodyFault]]:
        """Return bodies as text, null where they are not UTF-8, and the faults by row."""
        return decode_one_by_one(bodies, self._decode, lambda texts: pa.array(texts, pa.string()))

    def _decode(self, body: bytes) -> str:
        try:
            return body.decode()
        except UnicodeDecodeError as error:
            found = f"byte {excerpt(body[error.start : error.start + 1])} at {error.start}"
            raise BodyFault("", "UTF-8", found) from error


def record_batches_for(
    options: ReadOptions,
    schema: pa.Schema,
    bad_records: BadRecordHandler,
    tags: Collection[str] = (),
) -> RecordBatchConverter | TypedBatchConverter:
    """Return the converter to record batches for the options of a source."""
    typed = body_columns_for(schema, options.body, bad_records)
    batches = RecordBatchConverter(
        schema if typed is None else typed.raw_schema,
        bad_records,
        tags=tags,
        checks_crc=options.checks_crc,
        max_body_bytes=options.max_body_bytes,
        namespace=options.selection.namespace,
    )
    return batches if typed is None else TypedBatchConverter(batches, typed)


class TypedBatchConverter:
    """A converter to record batches of one schema, with some columns made from bodies."""

    def __init__(self, batches: RecordBatchConverter, columns: BodyColumns) -> None:
        self._batches = batches
        self._columns = columns

    def convert(self, chunk: RecordChunk, origin: MessageQueue | str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a queue's or a broker's chunk, in order."""
        for batch in self._batches.convert(chunk, origin):
            queue = origin
            if isinstance(queue, str):
                queue = MessageQueue(COLUMNS["topic"].build(chunk)[0].as_py(), queue, 0)
            yield from self._columns.decode_batch(batch, queue, [chunk])

    def convert_unreadable(
        self, queue: MessageQueue, queue_offset: int
    ) -> Iterator[pa.RecordBatch]:
        """Return the row for a record of which only the position is known, if it gets a row."""
        for batch in self._batches.convert_unreadable(queue, queue_offset):
            yield from self._columns.decode_batch(batch, queue, ())


def body_columns_for(
    schema: pa.Schema, body: BodyOptions, bad_records: BadRecordHandler
) -> BodyColumns | None:
    """Return the decoder for the body columns of a schema; None if it has no such columns."""
    is_typed = any(is_body_column(name, body) for name in schema.names)
    return BodyColumns(schema, body, bad_records) if is_typed else None


class BodyColumns:
    """Replaces binary bodies in record batches with columns."""

    def __init__(self, schema: pa.Schema, body: BodyOptions, bad_records: BadRecordHandler) -> None:
        fields = [field for field in schema if is_body_column(field.name, body)]
        own = [field for field in schema if not is_body_column(field.name, body)]
        position_fields = [field for field in _POSITION_FIELDS if field.name not in schema.names]
        raw = [] if any(field.name == BODY for field in own) else [pa.field(BODY, pa.binary())]
        self.raw_schema: pa.Schema = pa.schema([*own, *position_fields, *raw])
        self._schema = schema
        self._bad_records = bad_records
        self._names = [field.name for field in fields]
        self._is_single_column = body.column is not None or body.format is BodyFormat.TEXT
        self._kind: pa.DataType = fields[0].type if self._is_single_column else pa.struct(fields)
        self._decoder = _create_decoder(body, self._kind)
        self._missing_fields: MissingFieldsWarning | None = None
        if body.format in (BodyFormat.JSON, BodyFormat.MSGPACK) and body.schema is not None:
            loads = SERIALIZERS[body.format.value].loads
            self._missing_fields = MissingFieldsWarning(body.schema.names, loads)

    def decode_batch(
        self, batch: pa.RecordBatch, queue: MessageQueue, records: Sequence[RecordChunk]
    ) -> Iterator[pa.RecordBatch]:
        """Convert a record batch to the exact types; yield none if no row is left.

        Args:
            batch: The rows, of any queues of a topic and a broker.
            queue: One of these queues.
            records: The records that these rows are made from, and perhaps more.
        """
        bodies = batch.column(BODY)
        faults: dict[int, BodyFault] = {}
        values = self._decode(bodies, 0, faults)
        if faults:
            self._bad_records.report(list(_bad_records(batch, queue, records, faults)))
        if self._missing_fields is not None:
            self._missing_fields.check(queue.topic, bodies, values)
        if self._is_single_column:
            by_name = dict.fromkeys(self._names, values)
        else:
            by_name = dict(zip(self._names, values.flatten(), strict=True))
        columns = [
            by_name[name] if name in by_name else batch.column(name) for name in self._schema.names
        ]
        found = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        if faults and not self._bad_records.keeps_rows:
            kept = [row not in faults for row in range(batch.num_rows)]
            found = found.filter(pa.array(kept))
        if found.num_rows:
            yield found

    def _decode(self, bodies: pa.Array, first: int, faults: dict[int, BodyFault]) -> pa.Array:
        """Return the values of bodies, null where decoding failed; report the faults.

        ``first`` is the row of the first body.
        """
        if not len(bodies):
            return pa.array([], self._kind)
        if bodies.null_count:
            return self._decode_valid(bodies, first, faults)
        try:
            return self._decoder.decode_all(bodies)
        except (ValueError, pa.ArrowException):
            if len(bodies) <= _SLICE_ROWS_MAX:
                found, own = self._decoder.decode_each(bodies)
                faults.update({first + row: fault for row, fault in own.items()})
                return found
        pieces = range(0, len(bodies), _SLICE_ROWS_MAX)
        return pa.concat_arrays(
            [self._decode(bodies.slice(at, _SLICE_ROWS_MAX), first + at, faults) for at in pieces]
        )

    def _decode_valid(self, bodies: pa.Array, first: int, faults: dict[int, BodyFault]) -> pa.Array:
        """Return the values of bodies; those that could not be read are null."""
        rows = pc.indices_nonzero(pc.is_valid(bodies))
        own: dict[int, BodyFault] = {}
        decoded = self._decode(bodies.drop_null(), 0, own)
        faults.update({first + rows[at].as_py(): fault for at, fault in own.items()})
        indices: list[Any] = [None] * len(bodies)
        for at, row in enumerate(rows.to_pylist()):
            indices[row] = at
        return decoded.take(pa.array(indices, pa.int64()))


def _bad_records(
    batch: pa.RecordBatch,
    queue: MessageQueue,
    records: Sequence[RecordChunk],
    faults: Mapping[int, BodyFault],
) -> Iterator[BadRecord]:
    is_light = queue.topic.startswith(LIGHT_QUEUE_PREFIX)  # its records name other topics
    chunk_rows: dict[tuple[int, int], tuple[RecordChunk, int]] = {}
    for chunk in records:
        offsets = chunk.head["queue_offset"].tolist()
        ids = [queue.queue_id] * len(offsets) if is_light else chunk.head["queue_id"].tolist()
        chunk_rows.update(
            (position, (chunk, row)) for row, position in enumerate(zip(ids, offsets, strict=True))
        )
    for row in sorted(faults):
        queue_id, at = (batch.column(field.name)[row].as_py() for field in _POSITION_FIELDS)
        chunk, number = chunk_rows[queue_id, at]
        its_queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        yield BadRecord(its_queue, at, faults[row], chunk.record(number))


def _create_decoder(body: BodyOptions, kind: pa.DataType) -> BodyDecoder:
    # Each import is needed only for bodies of its format.
    if body.registry is not None:
        from rmq_spark.spark.bodies.registry_bodies import RegistryBodies  # noqa: PLC0415  # only with a registry

        return RegistryBodies(body, kind)
    if body.format is BodyFormat.TEXT:
        return TextBodies()
    if body.format is BodyFormat.JSON:
        from rmq_spark.spark.bodies.json_bodies import JsonBodies  # noqa: PLC0415  # only for this format

        return JsonBodies(kind)
    if body.format is BodyFormat.MSGPACK:
        from rmq_spark.spark.bodies.msgpack_bodies import MsgPackBodies  # noqa: PLC0415  # only for this format

        return MsgPackBodies(kind)
    if body.message is not None:
        from rmq_spark.spark.schemas.protobuf_schema import ProtobufBodies  # noqa: PLC0415  # only for this format

        return ProtobufBodies(kind, body.message)
    from rmq_spark.spark.schemas.avro_schema import AvroBodies, avro_schema_of  # noqa: PLC0415  # only for this format

    if body.avro_schema is not None:
        return AvroBodies(kind, json.loads(body.avro_schema))
    assert body.schema is not None  # noqa: S101  # `with_body_schema` has set it
    return AvroBodies(kind, avro_schema_of(body.schema))
