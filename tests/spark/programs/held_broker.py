"""A broker that a test holds in the commit of a staged batch, and kills there.

Its first argument is the directory in which files say where it is to wait, as in `held_driver`:

    begin       the commit has begun, and is not recorded yet
    copying     the commit is recorded, and only the rows of the first chunk are in the log
    copied      all rows are on the disk, and the batch is not committed yet
    ended       the batch is committed, and its rows are not visible yet

Only the thread of the commit waits; other requests are served.
"""

import functools
import sys

from held_driver import Holds

from rocketpoll.broker.__main__ import main
from rocketpoll.broker.store.batch_commit.coordinator import StagedBatches
from rocketpoll.broker.store.staging.commit_table import BatchTable


def hold_at(holds, owner, name, before=None, after=None):
    """Make a method wait before or after its work."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(*arguments):
        if before:
            holds.pass_by(before)
        found = original(*arguments)
        if after:
            holds.pass_by(after)
        return found

    setattr(owner, name, method)


def hold_at_second_chunk(holds):
    """Make a commit wait after it has read its second chunk, before it appends it."""
    read, first_of = StagedBatches._read, {}

    @functools.wraps(read)
    def read_held(batches, name):
        if first_of.setdefault((name.sink, name.batch_id), name) != name:
            holds.pass_by("copying")
        return read(batches, name)

    StagedBatches._read = read_held


if __name__ == "__main__":
    directory, *settings = sys.argv[1:]
    told = Holds(directory)
    hold_at(told, BatchTable, "begin", before="begin")
    hold_at(told, BatchTable, "commit", before="copied", after="ended")
    hold_at_second_chunk(told)
    sys.exit(main(settings))
