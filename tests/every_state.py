"""Every state that a model of power losses can draw, instead of some: for short histories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from file_versions import Choices

Drawn = TypeVar("Drawn")


def every_state(draw: Callable[[Choices], Drawn]) -> Iterator[Drawn]:
    """Draw with every sequence of choices that there is; no page is torn."""
    scripts: list[list[int]] = [[]]
    while scripts:
        choices = _ScriptedChoices(scripts.pop())
        yield draw(choices)
        scripts += choices.others


class _ScriptedChoices(Choices):
    """Follows a script to its end, then takes the lowest; ``others`` are the scripts not taken."""

    def __init__(self, script: list[int]) -> None:
        self._script = script
        self.made = []
        self.others: list[list[int]] = []

    def between(self, low: int, high: int) -> int:
        if len(self.made) < len(self._script):
            low = self._script[len(self.made)]
        else:
            self.others += [[*self.made, other] for other in range(low + 1, high + 1)]
        self.made.append(low)
        return low

    def is_torn(self) -> bool:
        return False
