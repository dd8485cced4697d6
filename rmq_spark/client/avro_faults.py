"""Where an Avro schema is wrong, and which value a schema does not hold: by the path of the field.

fastavro says what is wrong, and rarely where. This is asked only when it has refused something, and
looks with its eyes: a part that it refuses by itself as well is it, or has it within.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rmq_spark.client.bad_parts import REFUSED
from rmq_spark.errors import excerpt

_Fault = tuple[str, str, str]
_PROBE: Final = "RocketpollProbe"


def schema_fault(library: Any, schema: Any) -> str:
    """Return what is wrong with a schema that fastavro cannot read, with the path of the field."""
    path, reason = _in_schema(library, schema, "", "", {}) or ("", "fastavro cannot read it")
    return f"its {path}: {reason}" if path else reason


def _in_schema(
    library: Any, schema: Any, path: str, namespace: str, known: dict[str, Any]
) -> tuple[str, str] | None:
    """Return path and reason of the innermost part that is wrong; None if all can be read."""
    field = {"name": "x", "type": schema}
    reason = _reason(library, field, namespace, known)
    if reason is None:
        return None
    if isinstance(schema, dict) and isinstance(schema.get("name"), str):
        space, _, name = schema["name"].rpartition(".")
        namespace = space or str(schema.get("namespace") or namespace)
        known = {**known, f"{namespace}.{name}" if namespace else name: {}}  # within itself, too
    for part, place in _parts(schema, path):
        found = _in_schema(library, part, place, namespace, known)
        if found is not None:
            return found
    for number, field in enumerate(_fields(schema)):
        name = field.get("name") if isinstance(field, dict) else None
        place = _below(path, name) if isinstance(name, str) else f"{path}.fields[{number}]"
        wrong = _reason(library, field, namespace, dict(known))
        if wrong is not None:
            within = field.get("type") if isinstance(field, dict) else None
            found = within and _in_schema(library, within, place, namespace, known)
            return found or (place.removeprefix("."), wrong)
        _reason(library, field, namespace, known)  # which adds the names that it says
    return path, reason


def _reason(library: Any, field: Any, namespace: str, known: dict[str, Any]) -> str | None:
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


def _parts(schema: Any, path: str) -> Iterator[tuple[Any, str]]:
    if isinstance(schema, list):
        yield from ((each, path) for each in schema)
    elif isinstance(schema, dict):
        yield from ((schema[key], f"{path}[]") for key in ("items", "values") if key in schema)


def _fields(schema: Any) -> list[Any]:
    fields = schema.get("fields") if isinstance(schema, dict) else None
    return fields if isinstance(fields, list) else []


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


# ---- values


def value_fault(library: Any, value: Any, schema: Any, known: Mapping[str, Any]) -> str | None:
    """Return which part of a value a schema does not hold, and what it needs; None without one.

    Args:
        library: The module fastavro.
        value: The value, of dicts, lists and what Avro's types are in Python.
        schema: The schema, parsed.
        known: The types that have names, parsed.
    """
    found = _in_value(library, value, schema, "", known)
    if found is None:
        return None
    path, needed, shown = found
    return (
        f"its {path}: needed {needed}, found {shown}" if path else f"needed {needed}, found {shown}"
    )


def _in_value(
    library: Any, value: Any, schema: Any, path: str, known: Mapping[str, Any]
) -> _Fault | None:
    """Return path, what is needed and what is there of the first part that does not fit."""
    if isinstance(schema, str):
        schema = known.get(schema, schema)
    if isinstance(schema, list):
        return _in_union(library, value, schema, path, known)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind in ("record", "error"):
        return _in_record(library, value, schema, path, known)
    if kind in ("array", "map"):
        return _in_parts(library, value, schema, path, known)
    return None if _is_held(library, value, schema) else (path, _needed(schema), excerpt(value))


def _in_record(
    library: Any, value: Any, schema: Any, path: str, known: Mapping[str, Any]
) -> _Fault | None:
    if not isinstance(value, Mapping):
        return path, f"a record {schema['name']}", excerpt(value)
    for field in schema["fields"]:
        name = field["name"]
        if name not in value and "default" in field:
            continue
        found = _in_value(library, value.get(name), field["type"], _below(path, name), known)
        if found is not None:
            return found if name in value else (*found[:2], "nothing")
    return None


def _in_parts(
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
        parts = [(_below(path, name), each) for name, each in value.items()]
        inner = schema["values"]
    faults = (_in_value(library, part, inner, place, known) for place, part in parts)
    return next((each for each in faults if each is not None), None)


def _in_union(
    library: Any, value: Any, union: list[Any], path: str, known: Mapping[str, Any]
) -> _Fault | None:
    if value is None and "null" in union:
        return None
    faults = [_in_value(library, value, each, path, known) for each in union if each != "null"]
    if None in faults:
        return None
    if len(faults) == 1:
        return faults[0]
    return path, f"one of {', '.join(map(_needed, union))}", excerpt(value)


def _is_held(library: Any, value: Any, schema: Any) -> bool:
    try:
        library.schemaless_writer(io.BytesIO(), schema, value)
    except REFUSED:
        return False
    return True


def _needed(schema: Any) -> str:
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
