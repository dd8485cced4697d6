"""SqlLimits: the maximum size of an expression.

It is separate from the parser, which is only loaded for the first expression.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..common.setting import COUNT, number, setting


@dataclass(frozen=True, kw_only=True)
class SqlLimits:
    """The maximum size of one expression. Recursion takes at most three calls a level."""

    expression_bytes_max: int = setting(
        "maxFilterExpressionBytes",
        COUNT,
        "maximum size of the text of an SQL92 expression, in bytes",
        default=4_096,
    )
    depth_max: int = setting(
        "maxFilterDepth", number(1, 200), "maximum nesting depth of an SQL92 expression", default=32
    )
    nodes_max: int = setting(
        "maxFilterNodes", COUNT, "maximum number of nodes of an SQL92 expression", default=256
    )


DEFAULT_LIMITS = SqlLimits()
