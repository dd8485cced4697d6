"""AvroBodies: Avro bodies to columns and back, by fastavro: one record per body, without a header.

pyarrow has no Avro, so that bodies are decoded row by row here, and become columns together. Why
fastavro: it is the maintained library that is compiled to C, with all of Avro's logical types;
Apache's own Python library is ten times slower.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from rmq_spark.errors import excerpt
from rmq_spark.spark.errors import SetUpError
from rmq_spark.spark.schemas.arrow_conversion import BodyFault, decode_one_by_one
from rmq_spark.spark.schemas.avro_schema import without_uuids

_DECODE_ERRORS: Final = (
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    OverflowError,
    ArithmeticError,
)


class AvroBodies:
    """The decoder of Avro bodies, given the writer's schema, to structs of one type."""

    def __init__(self, kind: pa.StructType, schema: Any) -> None:
        """Take the type of the structs, and the Avro schema with which bodies were written."""
        fastavro = _import_fastavro()
        self._kind = kind
        self._schema = fastavro.parse_schema(without_uuids(schema))
        self._read: Callable[..., Any] = fastavro.schemaless_reader

    def decode_all(self, bodies: pa.Array) -> pa.StructArray:
        """Return bodies, none of them null, as structs.

        Raises:
            ValueError: A body cannot be decoded.
        """
        return self._to_array([self._decode(body) for body in bodies.to_pylist()])

    def decode_each(self, bodies: pa.Array) -> tuple[pa.Array, dict[int, BodyFault]]:
        """Return bodies, none of them null, as structs; and the faults by row."""
        return decode_one_by_one(bodies, self._decode, self._to_array)

    def _decode(self, body: bytes) -> Any:
        stream = io.BytesIO(body)
        try:
            found = self._read(stream, self._schema, None)
        except _DECODE_ERRORS as error:
            raise BodyFault("", "Avro of the schema", f"{excerpt(body)} ({error!r})") from error
        if stream.tell() != len(body):
            left = f"{len(body) - stream.tell()} bytes behind it"
            raise BodyFault("", "one Avro record of the schema", left)
        return found

    def _to_array(self, records: list[Any]) -> pa.StructArray:
        try:
            return pa.array(records, self._kind)
        except (pa.ArrowException, *_DECODE_ERRORS) as error:
            needed = "a record that fits the columns of bodySchema"
            raise BodyFault("", needed, f"{excerpt(records[0])} ({error})") from error


def check_avro_schema(text: str) -> None:
    """Raise `ValueError` if an Avro schema, given as JSON, cannot be used to read bodies."""
    fastavro, schema = _import_fastavro(), json.loads(text)
    try:
        fastavro.parse_schema(schema)
    except Exception as error:  # fastavro raises its own errors and many of Python's
        raise ValueError(
            f"fastavro cannot read such a schema ({type(error).__name__}: {error})"
        ) from error


def _import_fastavro() -> Any:
    try:
        import fastavro  # noqa: PLC0415  # an extra: for those only who have Avro
    except ImportError as error:
        raise SetUpError(
            f'the Python of tasks, {sys.executable}, lacks fastavro: pip install "rocketpoll[avro]"'
        ) from error
    return fastavro


def avro_encoder(schema: Any) -> Callable[[Any], bytes]:
    """Return the function that encodes a record, given as a dict, as one body."""
    fastavro = _import_fastavro()
    parsed = fastavro.parse_schema(schema)
    write = fastavro.schemaless_writer

    def encode(record: Any) -> bytes:
        stream = io.BytesIO()
        write(stream, parsed, record)
        return stream.getvalue()

    return encode
