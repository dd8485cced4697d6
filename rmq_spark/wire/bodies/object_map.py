"""ObjectMap: what Java writes where a map's keys are objects, and Python has no dict for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ObjectMap:
    """Pairs of keys and values in order; keys are JSON values, mostly dicts."""

    pairs: tuple[tuple[Any, Any], ...]
