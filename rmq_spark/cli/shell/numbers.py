"""Numbers on the command line: rates and times, which are finite and of a size that clocks take.

To click, nan is in every range.
"""

from __future__ import annotations

import math
from typing import Any, Final

import click

_SECONDS_MAX: Final = 1e9
"""A limit: thirty years of seconds."""


class PositiveFloat(click.FloatRange):
    """Parses a number above 0, or from a least one on."""

    def __init__(self, minimum: float = 0.0, maximum: float = _SECONDS_MAX) -> None:
        super().__init__(minimum, maximum, min_open=not minimum)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number that a text means."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number
