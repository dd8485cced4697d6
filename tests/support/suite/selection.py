"""Selection of tests: how many run by default, and how many with ``make wide``.

    count("ROCKETPOLL_RESTARTS", 4, wide=12)    4 rounds, or 12; a campaign prints the number
    some(rows, "ROCKETPOLL_CUTS", 60)           60 of the rows, evenly; all in ``make wide``
    ends(rows)                                  all rows, or the first, the last and one between
    spread(4, rows)                             4 of the rows, evenly; the others are `deep`
    pytest.mark.deep                            a test of ``make deep`` and CI, not of ``make
                                                check``
    pytest.mark.wide                            a test that only ``make wide`` runs
    pytest.mark.peers                           a test with a real RocketMQ, of ``make peers``

Reduced tests select the same cases each time, so that a failure is reproducible.
"""

import os
import random
import re
from functools import cache
from pathlib import Path

import pytest

WIDE = os.environ.get("ROCKETPOLL_WIDE") == "1"
PEERS = os.environ.get("ROCKETPOLL_PEERS") == "1"
DEEP = WIDE or PEERS or os.environ.get("ROCKETPOLL_DEEP") == "1"
_TESTS = Path(__file__).parents[2]
_SAYS_DEEP = re.compile(r"\bdeep\b|\bspread\(")
_MARKS_ALL = re.compile(r"^pytestmark = .*\bmark\.(deep|wide|peers)\b", re.MULTILINE)
_MARKS_FOLDER = 'item.add_marker("deep")'


def is_left_out(item):
    """Return whether a test belongs to another make target."""
    ran = {"wide": WIDE, "peers": PEERS, "deep": DEEP}
    return any(item.get_closest_marker(name) for name, runs in ran.items() if not runs)


@cache
def may_be_deep(path):
    """Return whether a test file may have `deep` tests, according to its text and its directory's
    conftest.

    ``make deep`` skips all other files, because importing all takes longer than running any.
    """
    setting_up = (parent / "conftest.py" for parent in path.parents if _TESTS in parent.parents)
    files = [path, *filter(Path.exists, setting_up)]
    return any(_SAYS_DEEP.search(file.read_text(encoding="utf-8")) for file in files)


@cache
def is_all_deep(path):
    """Return whether all tests of a file are left out by ``make check``, by the file's own mark or
    its directory's."""
    settings = path.parent / "conftest.py"
    return bool(_MARKS_ALL.search(path.read_text(encoding="utf-8"))) or (
        settings.exists() and _MARKS_FOLDER in settings.read_text(encoding="utf-8")
    )


def count(name, narrow, *, wide):
    """Return the number of rounds, seeds or kills of a test, unless an environment variable sets
    it."""
    return int(os.environ.get(name, wide if WIDE else narrow))


def some(rows, name, narrow):
    """Return this number of rows, always the same ones; or all of them, as `count` decides."""
    rows = list(rows)
    number = min(count(name, narrow, wide=len(rows)), len(rows))
    return sorted(random.Random(name).sample(rows, number))


def spread(number, rows):
    """Return all rows for `parametrize`; an even selection runs always, the others are marked
    `deep`."""
    rows = list(rows)
    quick = {at * (len(rows) - 1) // max(number - 1, 1) for at in range(number)}
    return [
        row if at in quick else pytest.param(*_parameters(row), marks=pytest.mark.deep)
        for at, row in enumerate(rows)
    ]


def _parameters(row):
    return row if isinstance(row, tuple) else (row,)


def ends(rows):
    """Return all rows, or by default the first, one in the middle and the last."""
    rows = list(rows)
    if WIDE or len(rows) <= 3:
        return rows
    return [rows[0], rows[len(rows) // 2], rows[-1]]
