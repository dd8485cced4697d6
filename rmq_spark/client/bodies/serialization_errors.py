"""Serialization errors: find the part of a value that a serializer cannot encode.

Libraries say what they cannot encode, and rarely where. So after the value as a whole was refused,
its parts are tried one by one; a part that is refused by itself is the wrong one, or contains it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

ENCODING_ERRORS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""The errors by which libraries refuse a value."""

_DEPTH_MAX: Final = 100
"""Parts within each other that are looked into: a list may have itself as an element."""


def locate_error(value: Any, dumps: Callable[[Any], object], error: Exception) -> Exception:
    """Return the error with which ``dumps`` refuses a value, with the path of the wrong part."""
    path = ""
    for _ in range(_DEPTH_MAX):
        found = next(_refused_parts(value, dumps), None)
        if found is None:
            break
        step, value, error = found
        path += step
    return TypeError(f"its {path.removeprefix('.')}: {error}") if path else error


def _refused_parts(
    value: Any, dumps: Callable[[Any], object]
) -> Iterator[tuple[str, Any, Exception]]:
    """Yield the parts of a value that are refused, each with the step to it, and the error."""
    for step, part in _parts(value):
        try:
            dumps(part)
        except ENCODING_ERRORS as error:  # noqa: PERF203  # each part has its own
            yield step, part, error


def is_model(value: Any) -> bool:
    """Return whether a value is a model of pydantic."""
    return callable(getattr(value, "model_dump", None)) and not isinstance(value, type)


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass by name, with those that begin with an underscore.

    Every serializer uses this function, so that all encode the same fields. None for any other
    value.
    """
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return None
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value, each with the step that leads to it."""
    if (fields := fields_of(value)) is not None:
        for name, part in fields.items():
            yield f".{name}", part
    elif is_model(value):
        for name in getattr(type(value), "model_fields", ()):
            yield f".{name}", getattr(value, name)
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield f".{name}", part
    elif isinstance(value, (list, tuple, set, frozenset)):
        for at, part in enumerate(value):
            yield f"[{at}]", part
