"""RegistryBodies: bodies with the header of a schema registry, each read by the schema of its id.

    0 | id, 4 bytes | index of the message, for Protobuf only | body of the format

The bodies of a chunk that have one header, as nearly all have, are decoded together without it. A
schema is fetched once in each process of tasks. If a registry does not answer, a task waits as for
brokers, and then fails; a body whose id the registry does not have is a bad body.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.client.concurrency.retry_timer import RetryTimer
from rmq_spark.client.errors import RegistryAway, SchemaNotFound
from rmq_spark.client.schema_registry import (
    HEADER_BYTES,
    RegisteredSchema,
    RegistryAccess,
    SchemaRegistry,
)
from rmq_spark.errors import excerpt
from rmq_spark.spark.bodies.json_bodies import JsonBodies
from rmq_spark.spark.options.bodies import BodyOptions
from rmq_spark.spark.options.values import BodyFormat
from rmq_spark.spark.schemas.arrow_conversion import BodyDecoder, BodyFault
from rmq_spark.spark.schemas.avro_schema import AvroBodies
from rmq_spark.spark.schemas.registered_schema import (
    columns_of_avro,
    message_at,
    split_index,
    with_null_defaults,
)

_PAUSE_SECONDS: Final = 0.5


@lru_cache(maxsize=16)
def registry_of(access: RegistryAccess) -> SchemaRegistry:
    """Return the registry, with its schemas, that tasks of a process share."""
    return access.connect()


class RegistryBodies:
    """The decoder of bodies with a registry's header to structs of one type."""

    def __init__(self, body: BodyOptions, kind: pa.StructType) -> None:
        assert body.registry is not None  # noqa: S101  # the caller has checked it
        self._registry = registry_of(body.registry)
        self._timer = RetryTimer(
            "asking the schema registry", body.registry_retry_ms, pause_seconds=_PAUSE_SECONDS
        )
        self._kind = kind
        self._body = body
        self._decoders: dict[bytes, BodyDecoder | BodyFault] = {}

    def decode_all(self, bodies: pa.Array) -> pa.Array:
        """Return bodies, none of them null; raise ValueError if they have several headers."""
        header = self._header(bodies[0].as_py())
        if not pc.all(pc.equal(pc.binary_slice(bodies, 0, len(header)), header)).as_py():
            raise ValueError("bodies have several headers")
        return self._decoder(header).decode_all(_without_header(bodies, header))

    def decode_each(self, bodies: pa.Array) -> tuple[pa.Array, dict[int, BodyFault]]:
        """Return structs, null where decoding failed, and the faults; ``bodies`` has no nulls."""
        rows_of: dict[bytes, list[int]] = {}
        faults: dict[int, BodyFault] = {}
        for row, body in enumerate(bodies.to_pylist()):
            try:
                rows_of.setdefault(self._header(body), []).append(row)
            except BodyFault as fault:  # noqa: PERF203  # each body has its own
                faults[row] = fault
        indices: list[int | None] = [None] * len(bodies)
        parts = [pa.array([], self._kind)]
        count = 0
        for header, rows in rows_of.items():
            try:
                decoder = self._decoder(header)
            except BodyFault as fault:
                faults |= dict.fromkeys(rows, fault)
                continue
            some = _without_header(bodies.take(pa.array(rows)), header)
            found, own = decoder.decode_each(some)
            faults |= {rows[at]: fault for at, fault in own.items()}
            parts.append(found)
            for at, row in enumerate(rows, count):
                indices[row] = at
            count += len(rows)
        return pa.concat_arrays(parts).take(pa.array(indices, pa.int64())), faults

    def _header(self, body: bytes) -> bytes:
        """Return the header of a body, which identifies the schema of the rest."""
        end = HEADER_BYTES
        try:
            if body[0] == 0 and len(body) >= end:
                if self._body.format is BodyFormat.PROTOBUF:
                    _, end = split_index(body, end)
                return body[:end]
        except (ValueError, IndexError):
            pass
        needed = "the header of a schema registry, a zero byte and an id of four bytes"
        raise BodyFault("", needed, excerpt(body[:16]))

    def _decoder(self, header: bytes) -> BodyDecoder:
        found = self._decoders.get(header)
        if found is None:
            try:
                found = self._create_decoder(header)
            except BodyFault as fault:
                found = fault
            self._decoders[header] = found
        if isinstance(found, BodyFault):
            raise found
        return found

    def _create_decoder(self, header: bytes) -> BodyDecoder:
        if self._body.format is BodyFormat.JSON:
            return JsonBodies(self._kind)
        schema_id, schema = int.from_bytes(header[1:HEADER_BYTES], "big"), None
        while schema is None:
            schema = self._fetch(schema_id)
        needed = self._body.format.name
        if schema.kind != needed:
            raise BodyFault("", f"a schema of {needed}", f"{schema.kind} at id {schema.schema_id}")
        create = self._avro if self._body.format is BodyFormat.AVRO else self._protobuf
        try:
            return create(schema, header)
        except BodyFault:
            raise
        except ValueError as error:
            found = f"id {schema.schema_id}, whose schema cannot be used ({error})"
            raise BodyFault("", "the id of a schema", found) from error

    def _avro(self, schema: RegisteredSchema, _header: bytes) -> BodyDecoder:
        columns = self._body.avro_schema
        assert columns is not None  # noqa: S101  # options are checked
        writers = columns_of_avro(schema)[1]
        reader = with_null_defaults(json.loads(columns))
        return AvroBodies(self._kind, json.loads(writers), reader)

    def _protobuf(self, schema: RegisteredSchema, header: bytes) -> BodyDecoder:
        from rmq_spark.spark.schemas.protobuf_schema import ProtobufBodies  # noqa: PLC0415  # only for this format

        path, _ = split_index(header, HEADER_BYTES)
        message = self._body.message
        assert message is not None  # noqa: S101  # options are checked
        found = message_at(schema, path).name
        if found != message.name:
            raise BodyFault("", f"a message {message.name}", f"{found}, as its header says")
        return ProtobufBodies(self._kind, message)

    def _fetch(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema of an id, or None after a wait for a registry that does not answer."""
        try:
            found = self._registry.schema(schema_id)
        except SchemaNotFound as error:
            raise BodyFault("", "the id of a schema", f"{schema_id}: {error}") from error
        except RegistryAway as error:
            if self._timer.sleep_or_expire(error):
                return None
            why = (
                f"it has not answered for {self._body.registry_retry_ms} ms (option "
                f"retryTimeoutMs): {error.why}. Check that it runs and that tasks can reach it"
            )
            raise RegistryAway(error.url, why) from error
        self._timer.reset()
        return found


def _without_header(bodies: pa.Array, header: bytes) -> pa.Array:
    """Return bodies without the header that all of them have.

    The header is replaced by nothing, because pyarrow's slices to the end fail for short bodies.
    """
    return pc.binary_replace_slice(bodies, 0, len(header), b"")
