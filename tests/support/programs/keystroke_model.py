"""Walkthroughs of operators and new users, with the time that a first-time user needs.

Nobody types in a test. The model counts what is typed, pointed at and read, with the times of the
keystroke-level model (Card, Moran, Newell) for an average typist:

    a key 0.28 s    pointing 1.1 s    thinking before a step 1.35 s    reading what a step shows 6 s
"""

import re
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
SECONDS_MAX = 120
"""Maximum seconds of an operator's walkthrough."""

_KEY, _POINT, _THINK, _READ = 0.28, 1.1, 1.35, 6.0
_TOLD = re.compile(r"\*About (\d+) s: (.*?)\.\*")


class Walk:
    """The steps of a walkthrough."""

    def __init__(self):
        self.seconds = 0.0

    def type(self, text):
        """Type a text and Enter."""
        self.seconds += _THINK + _KEY * (len(text) + 1)

    def press(self, keys=1):
        self.seconds += _THINK + _KEY * keys

    def point(self):
        self.seconds += _THINK + _POINT + _KEY

    def read(self):
        """Count the reading of a command's output, or of a page."""
        self.seconds += _READ


def section(page, title):
    """Return the text below a heading of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def commands(page, title):
    """Return the commands in a section."""
    blocks = re.findall(r"```sh\n(.*?)```", section(page, title), re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def told_seconds(page, title):
    """Return the duration that the page states for a walkthrough."""
    return int(_TOLD.search(section(page, title))[1])


def check_told(walk, page, title, seconds_max=SECONDS_MAX):
    """Check that the page states the duration, rounded to the next five seconds, and that it is
    below two minutes."""
    __tracebackhide__ = True
    seconds = -(-round(walk.seconds) // 5) * 5
    assert seconds < seconds_max
    assert told_seconds(page, title) == seconds, f"{page}, {title}: about {seconds} s"
