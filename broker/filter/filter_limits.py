"""FilterLimits: whether SQL92 expressions are allowed, and their maximum size."""

from __future__ import annotations

from dataclasses import dataclass

from ..common.setting import COUNT, FLAG, number, setting


@dataclass(frozen=True, kw_only=True)
class FilterLimits:
    """The settings of SQL92 expressions. The parser recurses at most three calls for a level."""

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
    enable_property_filter: bool = setting(
        "enablePropertyFilter",
        FLAG,
        "whether SQL92 subscriptions are allowed",
        default=True,
        rocketmq="false",
    )


DEFAULT_LIMITS = FilterLimits()
