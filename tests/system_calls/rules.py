"""Faults of the calls of a recorded process: rules, and the calls that they hit."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Rule:
    """A fault of calls of a kind, on matching paths.

    what        die (before the call); die behind (after it); fail, with an ``error``;
                of writes:  short (writes a part, returns its size); lie (writes a part, returns
                            the whole size);
                of flushes: slow, by up to twice ``seconds``; forget (it has no effect); late (it
                            is delayed past the next call of ``until``, and the process dies
                            between them);
                of looks:   full, by this ``share`` of the disk
    kind        open, truncate, write, flush, rename, delete, make_directory; look: reads the
                usage of the disk
    path        a pattern as in a shell, relative to the disk; a directory ends with a slash
    number      the number of the only matching call that fails; 0: each of them
    """

    what: str
    kind: str = "*"
    path: str = "*"
    number: int = 0
    error: int = 0
    seconds: float = 0.0
    share: float = 0.0
    until: str = ""

    def as_error(self, path):
        return OSError(self.error, os.strerror(self.error), path)


class Rules:
    """Counts the calls."""

    def __init__(self, rules):
        self._rules = rules
        self._counts = Counter()

    def hits(self, kind, paths):
        """Return the names of the faults that hit this call."""
        found = {}
        for rule in self._rules:
            if fnmatchcase(kind, rule.kind) and any(fnmatchcase(path, rule.path) for path in paths):
                self._counts[rule] += 1
                if rule.number in (0, self._counts[rule]):
                    found[rule.what] = rule
        return found
