"""What is to go wrong with the calls of a recorded process: rules, and which calls they hit."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Rule:
    """Something that goes wrong with calls of a kind, on paths like this.

    what        die, before it is carried out; die behind; fail, with an ``error``;
                of writes:  short (a part is written, and its size given); lie (and the whole size
                            given);
                of flushes: slow, by up to twice so many ``seconds``; forget (it has no effect);
                            late (it is put off behind the next one of ``until``, and death comes
                            between);
                of looks:   full, by this ``share`` of the disk
    kind        open, truncate, write, flush, rename, delete, make_directory; look, at how full it
                is
    path        below the disk, as the shell would match it; a directory's ends with a slash
    number      only the so-manieth of these calls; 0: each of them
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
