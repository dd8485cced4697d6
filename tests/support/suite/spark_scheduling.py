"""A test scheduler that gives all tests with a Spark to one of the parallel processes.

A Spark driver is a JVM, which takes seconds of all cores to start and many more until its code is
compiled; a second one in another process does all that again, and both slow each other. So the
files that need one are a single unit of work, which one process takes.
"""

from __future__ import annotations

from pathlib import PurePath

from xdist.scheduler import LoadFileScheduling

_NAMES = (
    "test_source_*.py",
    "test_sink_*.py",
    "test_body_registry.py",
    "test_body_schema.py",
    "test_dead_letters.py",
    "test_sql_tables.py",
)


def needs_spark(path):
    """Return whether most tests of a file use a Spark session."""
    return path.parent.name == "spark" and any(path.match(name) for name in _NAMES)


class OneSpark(LoadFileScheduling):
    """Distributes whole files, with all that need a Spark together."""

    def _split_scope(self, nodeid):
        file = super()._split_scope(nodeid)
        return "spark" if needs_spark(PurePath(file)) else file
