"""The bugs that are put into a copy of the sources, each a small patch that a
good engineer might write."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
BUGS = Path(__file__).parent / "bugs"
GIT = shutil.which("git") or "git"


class DoesNotApply(Exception):
    """The sources have changed where a bug was to be put in."""


class Bug(NamedTuple):
    """One patch."""

    name: str
    title: str
    only: str | None
    """What alone can show it: timing, order, a kill, a power loss, a second crash, damage; None:
    any use."""
    first: list[str]
    path: Path

    @property
    def diff(self):
        """The patch without what stands above it."""
        return self.path.read_text().partition("\ndiff ")[2]

    @classmethod
    def read(cls, path):
        """A patch begins with ``Title:``, perhaps ``Only:``, and ``First:``;
        what follows is a diff."""
        head = path.read_text().partition("\ndiff ")[0]
        fields = dict(line.split(": ", 1) for line in head.splitlines() if line)
        return cls(path.stem, fields["Title"], fields.get("Only"), fields["First"].split(), path)


def catalogue():
    """All bugs, by name."""
    return [Bug.read(path) for path in sorted(BUGS.glob("*.patch"))]


def without_repository(tree):
    """An environment in which git takes a tree for itself alone,
    and not for a part of a repository."""
    return {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}


def put_in(bug, tree, *how):
    """Put a bug into a tree of the sources; or, said ``how``, take it out,
    or only see whether it fits."""
    applied = subprocess.run(
        [GIT, "apply", *how, str(bug.path)],
        cwd=tree,
        env=without_repository(tree),
        capture_output=True,
        text=True,
        check=False,
    )
    if applied.returncode:
        raise DoesNotApply(f"{bug.path.name} does not apply:\n{applied.stderr}")
