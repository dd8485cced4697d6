"""Test schedulers that distribute whole files, and run all Spark tests in one process.

A Spark driver is a JVM, which takes seconds of all cores to start and many more until its code is
compiled. A second one in another process does all that again, and both slow each other. So the
files that need Spark are a single unit of work for one process.
"""

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


class WholeFiles(LoadFileScheduling):
    """Distributes whole files; the replacement of a crashed process gets as many as it needs.

    A process runs a test only when it knows the next one. pytest-xdist gives a replacement a single
    unit, which may be a single test, or have none left to run: then both would wait forever.
    """

    def _reschedule(self, node):
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)


class OneSpark(WholeFiles):
    """Distributes whole files; all that need Spark go together."""

    def _split_scope(self, nodeid):
        file = super()._split_scope(nodeid)
        return "spark" if needs_spark(PurePath(file)) else file
