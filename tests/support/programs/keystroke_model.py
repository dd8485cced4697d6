"""Walks of operators and new users, and how long they take who has not walked them before.

Nobody types in a test. What is typed, pointed at and read is counted, and the times are those of
the keystroke-level model (Card, Moran, Newell) for an average typist:

    a key 0.28 s    pointing 1.1 s    thinking before a step 1.35 s    reading what a step shows 6 s
"""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
SECONDS_MAX = 120
"""No walk of an operator takes longer."""

_KEY, _POINT, _THINK, _READ = 0.28, 1.1, 1.35, 6.0
_TOLD = re.compile(r"\*About (\d+) s: (.*?)\.\*")


class Walk:
    """The steps of a walk so far."""

    def __init__(self):
        self.seconds = 0.0

    def type(self, text):
        """Type a text, with the key that ends it."""
        self.seconds += _THINK + _KEY * (len(text) + 1)

    def press(self, keys=1):
        self.seconds += _THINK + _KEY * keys

    def point(self):
        """Point at something and click."""
        self.seconds += _THINK + _POINT + _KEY

    def read(self):
        """Read what a command has printed, or a page."""
        self.seconds += _READ


def section(page, title):
    """The text below a heading of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def commands(page, title):
    """The commands of a section, as they are written."""
    blocks = re.findall(r"```sh\n(.*?)```", section(page, title), re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def told_seconds(page, title):
    """How long the page says that a walk takes."""
    return int(_TOLD.search(section(page, title))[1])


def check_told(walk, page, title, seconds_max=SECONDS_MAX):
    """The page tells of a walk how long it takes, to the next five seconds: under two minutes."""
    seconds = -(-round(walk.seconds) // 5) * 5
    assert seconds < seconds_max
    assert told_seconds(page, title) == seconds, f"{page}, {title}: about {seconds} s"
