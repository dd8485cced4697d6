"""SqlLimits, apart from the parser, which is only loaded when the first expression comes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SqlLimits:
    """The maximum size of one expression. Recursion takes at most three calls a level."""

    expression_bytes_max: int = 4_096
    depth_max: int = 32
    nodes_max: int = 256


DEFAULT_LIMITS = SqlLimits()
