"""Avro: bodies of Avro's binary form, a record each, by a schema; a registry is a callable.

This knows no message and no connection; fastavro is imported when the first serializer is made.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

from rmq_spark.client.avro_faults import schema_fault, value_fault
from rmq_spark.client.bad_parts import REFUSED, fields_of, is_model
from rmq_spark.client.errors import MessageRejected
from rmq_spark.errors import excerpt

_REASON_MAX: Final = 120
EXTRA: Final = 'Avro needs the module fastavro: pip install "rocketpoll[avro]"'


class Avro:
    """The serializer of Avro's binary form, a record a body; made by `avro`."""

    def __init__(
        self,
        schema: Mapping[str, Any],
        header: bytes = b"",
        schema_of: Callable[[bytes], Mapping[str, Any]] | None = None,
    ) -> None:
        try:
            import fastavro  # noqa: PLC0415  # an extra: for those only who have Avro
        except ImportError as error:
            raise ModuleNotFoundError(EXTRA) from error
        self._library = fastavro
        self._types: dict[str, Any] = {}
        try:
            self._schema = fastavro.parse_schema(dict(schema), self._types)
        except Exception as error:  # of many kinds, its own and Python's
            fault = schema_fault(fastavro, schema)
            raise MessageRejected("schema", f"an Avro schema ({fault})", schema) from error
        self._header = header
        self._schema_of = schema_of
        self._known: dict[bytes, Any] = {header: self._schema}

    def dumps(self, value: Any) -> bytes:
        """Return a record behind the header; dataclasses and models become records.

        Enums stand for their values, wherever they are.
        """
        stream = io.BytesIO()
        stream.write(self._header)
        record = _plain(value)
        try:
            self._library.schemaless_writer(stream, self._schema, record)
        except REFUSED as error:
            fault = value_fault(self._library, record, self._schema, self._types)
            raise TypeError(fault or str(error)) from error
        return stream.getvalue()

    def loads(self, body: bytes) -> Any:
        """Return a record as the schema has it; raise ValueError if it is none."""
        header = body[: len(self._header)]
        written_by = self._known.get(header)
        if written_by is None:
            if self._schema_of is None:
                raise ValueError(f"needed the header {self._header!r}, found {header!r}")
            self._known[header] = written_by = self._asked_for(header, self._schema_of)
        stream = io.BytesIO(body[len(self._header) :])
        try:
            found = self._library.schemaless_reader(stream, written_by, self._schema)
        except self._library.read.SchemaResolutionError as error:
            why = str(error)[:_REASON_MAX]
            raise ValueError(f"a record of its schema cannot be one of this ({why})") from error
        except (EOFError, LookupError, TypeError, OverflowError) as error:
            raise ValueError(f"it is no record of the schema ({error!r})") from error
        left = len(body) - len(self._header) - stream.tell()
        if left:
            raise ValueError(f"{left} bytes are behind the record")
        return found

    def _asked_for(self, header: bytes, schema_of: Callable[[bytes], Mapping[str, Any]]) -> Any:
        """Return the schema of a header; raise ValueError if there is none."""
        try:
            schema = schema_of(header)
        except LookupError as error:
            raise ValueError(f"schema_of has no schema for header {header!r}") from error
        if not isinstance(schema, Mapping):
            found = f"{type(schema).__name__} {excerpt(schema)}"
            raise ValueError(f"schema_of: needed a schema for header {header!r}, found {found}")  # noqa: TRY004  # of a body
        try:
            return self._library.parse_schema(dict(schema))
        except Exception as error:  # of many kinds, its own and Python's
            fault = schema_fault(self._library, schema)
            raise ValueError(f"schema_of: no schema for header {header!r}: {fault}") from error


def _plain(value: Any) -> Any:
    """Return a value as fastavro takes it: of dicts, lists and what Avro's types are in Python."""
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, tuple):  # of two, the first may name a type of a union
        return tuple(map(_plain, value))
    if isinstance(value, (list, set, frozenset)):
        return [_plain(each) for each in value]
    if (fields := fields_of(value)) is not None:
        return {name: _plain(each) for name, each in fields.items()}
    return _plain(value.model_dump(by_alias=True)) if is_model(value) else value
