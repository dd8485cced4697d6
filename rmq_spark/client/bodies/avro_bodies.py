"""Avro bodies: encode and decode one record per body by a schema; a registry is a callable.

fastavro is imported when the first serializer is made.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from rmq_spark.client.bodies.serialization_errors import ENCODING_ERRORS, fields_of, is_model
from rmq_spark.client.errors import MessageRejected
from rmq_spark.errors import excerpt

# ---- Where an Avro schema is wrong, and which value a schema does not hold: by the path of the
# field.

_Fault = tuple[str, str, str]
_PROBE: Final = "RocketpollProbe"


def explain_schema_error(library: Any, schema: Any) -> str:
    """Return what is wrong with a schema that fastavro cannot read, with the path of the field."""
    path, reason = _find_schema_error(library, schema, "", "", {}) or (
        "",
        "fastavro cannot read it",
    )
    return f"its {path}: {reason}" if path else reason


def _find_schema_error(
    library: Any, schema: Any, path: str, namespace: str, known: dict[str, Any]
) -> tuple[str, str] | None:
    """Return path and reason of the innermost part that is wrong; None if all can be read."""
    field = {"name": "x", "type": schema}
    reason = _parse_error(library, field, namespace, known)
    if reason is None:
        return None
    if isinstance(schema, dict) and isinstance(schema.get("name"), str):
        space, _, name = schema["name"].rpartition(".")
        namespace = space or str(schema.get("namespace") or namespace)
        known = {**known, f"{namespace}.{name}" if namespace else name: {}}  # within itself, too
    for part, place in _subschemas(schema, path):
        found = _find_schema_error(library, part, place, namespace, known)
        if found is not None:
            return found
    for number, field in enumerate(_record_fields(schema)):
        name = field.get("name") if isinstance(field, dict) else None
        place = _join_path(path, name) if isinstance(name, str) else f"{path}.fields[{number}]"
        wrong = _parse_error(library, field, namespace, dict(known))
        if wrong is not None:
            within = field.get("type") if isinstance(field, dict) else None
            found = within and _find_schema_error(library, within, place, namespace, known)
            return found or (place.removeprefix("."), wrong)
        _parse_error(library, field, namespace, known)  # which adds the names that it says
    return path, reason


def _parse_error(library: Any, field: Any, namespace: str, known: dict[str, Any]) -> str | None:
    """Return why a field of a record cannot be read; None, and its names are known, if it can."""
    name = f"{namespace}.{_PROBE}" if namespace else _PROBE
    names = dict(known)
    try:
        library.parse_schema({"type": "record", "name": name, "fields": [field]}, names)
    except KeyError as error:
        return f"it lacks {error}"
    except RecursionError:
        return "it is nested too deep"
    except Exception as error:  # noqa: BLE001  # of many kinds, its own and Python's
        unknown = getattr(error, "name", None)
        return f"{excerpt(unknown)} is no type" if unknown is not None else str(error)
    names.pop(name, None)
    known.update(names)
    return None


def _subschemas(schema: Any, path: str) -> Iterator[tuple[Any, str]]:
    if isinstance(schema, list):
        yield from ((each, path) for each in schema)
    elif isinstance(schema, dict):
        yield from ((schema[key], f"{path}[]") for key in ("items", "values") if key in schema)


def _record_fields(schema: Any) -> list[Any]:
    fields = schema.get("fields") if isinstance(schema, dict) else None
    return fields if isinstance(fields, list) else []


def _join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


# ---- values


def explain_value_error(
    library: Any, value: Any, schema: Any, known: Mapping[str, Any]
) -> str | None:
    """Return which part of a value does not fit a schema, and what it needs; None if all fit.

    Args:
        library: The module fastavro.
        value: The value, of dicts, lists and what Avro's types are in Python.
        schema: The parsed schema.
        known: The parsed named types.
    """
    found = _find_value_error(library, value, schema, "", known)
    if found is None:
        return None
    path, needed, shown = found
    return (
        f"its {path}: needed {needed}, found {shown}" if path else f"needed {needed}, found {shown}"
    )


def _find_value_error(
    library: Any, value: Any, schema: Any, path: str, known: Mapping[str, Any]
) -> _Fault | None:
    """Return path, what is needed and what is there of the first part that does not fit."""
    if isinstance(schema, str):
        schema = known.get(schema, schema)
    if isinstance(schema, list):
        return _find_union_error(library, value, schema, path, known)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind in ("record", "error"):
        return _find_record_error(library, value, schema, path, known)
    if kind in ("array", "map"):
        return _find_element_error(library, value, schema, path, known)
    return (
        None
        if _is_encodable(library, value, schema)
        else (path, _describe_type(schema), excerpt(value))
    )


def _find_record_error(
    library: Any, value: Any, schema: Any, path: str, known: Mapping[str, Any]
) -> _Fault | None:
    if not isinstance(value, Mapping):
        return path, f"a record {schema['name']}", excerpt(value)
    for field in schema["fields"]:
        name = field["name"]
        if name not in value and "default" in field:
            continue
        found = _find_value_error(
            library, value.get(name), field["type"], _join_path(path, name), known
        )
        if found is not None:
            return found if name in value else (*found[:2], "nothing")
    return None


def _find_element_error(
    library: Any, value: Any, schema: Any, path: str, known: Mapping[str, Any]
) -> _Fault | None:
    if schema["type"] == "array":
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
            return path, "an array", excerpt(value)
        parts = [(f"{path}[{at}]", each) for at, each in enumerate(value)]
        inner = schema["items"]
    else:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            return path, "a map whose keys are texts", excerpt(value)
        parts = [(_join_path(path, name), each) for name, each in value.items()]
        inner = schema["values"]
    faults = (_find_value_error(library, part, inner, place, known) for place, part in parts)
    return next((each for each in faults if each is not None), None)


def _find_union_error(
    library: Any, value: Any, union: list[Any], path: str, known: Mapping[str, Any]
) -> _Fault | None:
    if value is None and "null" in union:
        return None
    faults = [
        _find_value_error(library, value, each, path, known) for each in union if each != "null"
    ]
    if None in faults:
        return None
    if len(faults) == 1:
        return faults[0]
    return path, f"one of {', '.join(map(_describe_type, union))}", excerpt(value)


def _is_encodable(library: Any, value: Any, schema: Any) -> bool:
    try:
        library.schemaless_writer(io.BytesIO(), schema, value)
    except ENCODING_ERRORS:
        return False
    return True


def _describe_type(schema: Any) -> str:
    if not isinstance(schema, dict):
        return str(schema)
    if schema["type"] == "enum":
        return f"one of {', '.join(schema['symbols'])}"
    if schema.get("logicalType") == "decimal":
        digits, behind = schema.get("precision"), schema.get("scale", 0)
        return f"a Decimal of {digits} digits, {behind} of them behind the point"
    if schema["type"] == "fixed":
        return f"{schema['size']} bytes"
    return str(schema.get("logicalType") or schema.get("name") or schema["type"])


_REASON_MAX: Final = 120
EXTRA: Final = 'Avro needs the module fastavro: pip install "rocketpoll[avro]"'


class Avro:
    """Serializer of Avro's binary form, one record per body; made by `avro`."""

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
            fault = explain_schema_error(fastavro, schema)
            raise MessageRejected("schema", f"an Avro schema ({fault})", schema) from error
        self._header = header
        self._schema_of = schema_of
        self._writer_schemas: dict[bytes, Any] = {header: self._schema}

    def dumps(self, value: Any) -> bytes:
        """Return the header and a record; dataclasses and models become records.

        Enums are written as their values.
        """
        stream = io.BytesIO()
        stream.write(self._header)
        record = _to_plain(value)
        try:
            self._library.schemaless_writer(stream, self._schema, record)
        except ENCODING_ERRORS as error:
            fault = explain_value_error(self._library, record, self._schema, self._types)
            raise TypeError(fault or str(error)) from error
        return stream.getvalue()

    def loads(self, body: bytes) -> Any:
        """Return a record as the schema describes it; raise ValueError if the body is none."""
        header = body[: len(self._header)]
        written_by = self._writer_schemas.get(header)
        if written_by is None:
            if self._schema_of is None:
                raise ValueError(f"needed the header {self._header!r}, found {header!r}")
            self._writer_schemas[header] = written_by = self._fetch_schema(header, self._schema_of)
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

    def _fetch_schema(self, header: bytes, schema_of: Callable[[bytes], Mapping[str, Any]]) -> Any:
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
            fault = explain_schema_error(self._library, schema)
            raise ValueError(f"schema_of: no schema for header {header!r}: {fault}") from error


def _to_plain(value: Any) -> Any:
    """Return a value as fastavro takes it: of dicts, lists and what Avro's types are in Python."""
    if isinstance(value, Enum):
        return _to_plain(value.value)
    if isinstance(value, Mapping):
        return {name: _to_plain(each) for name, each in value.items()}
    if isinstance(value, tuple):  # of two, the first may name a type of a union
        return tuple(map(_to_plain, value))
    if isinstance(value, (list, set, frozenset)):
        return [_to_plain(each) for each in value]
    if (fields := fields_of(value)) is not None:
        return {name: _to_plain(each) for name, each in fields.items()}
    return _to_plain(value.model_dump(by_alias=True)) if is_model(value) else value
