"""MissingFields: a word where no body has any of the fields that its schema names.

    bodySchema = orderId        bodies = {"order_id": 1}, {"order_id": 2}, ...

In JSON a field that is missing is null, so that a schema with the wrong names, or one of another
topic, fits all bodies and reads nothing. Only where all that a batch gives is null, the first of
its bodies are looked at; what a field is, and whether a body is bad, is the decoder's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator
from typing import Any, Final

import pyarrow as pa

from rmq_spark.errors import excerpt

_log = logging.getLogger(__name__)

_LOOKED_AT_MAX: Final = 100
_NAMED_MAX: Final = 10


class MissingFields:
    """The warning of one task, which is given once."""

    def __init__(self, names: Collection[str]) -> None:
        """Take the names of all fields of the schema."""
        self._names = set(names)
        self._is_over = False

    def look(self, topic: str, bodies: pa.Array, values: pa.StructArray) -> None:
        """Warn if none of these bodies has a field of the schema; ``values`` is made of them."""
        if self._is_over or any(each.null_count < len(each) for each in values.flatten()):
            return
        found: dict[str, None] = {}
        for names in _names_of(bodies.drop_null().slice(0, _LOOKED_AT_MAX)):
            found.update(dict.fromkeys(names))
        if not found or self._names & set(found):
            return
        self._is_over = True
        _log.warning(
            "no field of bodySchema is in %d bodies of %s, whose columns are all null: "
            "the schema has %s, and the bodies %s",
            len(bodies),
            topic,
            _listed(self._names),
            _listed(found),
        )


def _names_of(bodies: pa.Array) -> Iterator[Collection[str]]:
    """Yield the names in each body that is an object."""
    for body in bodies.to_pylist():
        try:
            value: Any = json.loads(body)
        except (ValueError, RecursionError):  # a bad body, which the decoder has said
            continue
        if isinstance(value, dict):
            yield value


def _listed(names: Collection[str]) -> str:
    """Return the first names, in the order of the alphabet."""
    shown = [excerpt(name) for name in sorted(names)[:_NAMED_MAX]]
    return ", ".join([*shown, *(["..."] if len(names) > _NAMED_MAX else [])])
