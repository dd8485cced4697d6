"""Which of several names somebody may have meant who has said another one.

It imports `difflib`, and is for what has failed: nothing that is imported at a start needs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the one of several names that is most like another, whatever their case; or None."""
    by_lower = {each.lower(): each for each in names}
    close = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None
