"""A store with very many queues starts within bounds of CPU and memory."""

import re
import resource

import pytest

from benchmarks.store import many_queues
from rocketpoll.broker.store.config import FlushDiskType


def life_of(life, root, queues, capfd):
    """Start and stop a store in a process; return its CPU seconds and the peak of its memory in
    MiB."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    many_queues._in_process(life, root, queues, FlushDiskType.SYNC_FLUSH)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    resident = re.findall(r"s +([0-9]+) MiB", capfd.readouterr().out)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, max(map(int, resident))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("queues", "seconds"),
    [(4_000, 3.0), pytest.param(80_000, 30.0, marks=pytest.mark.wide)],
)
def test_store_with_many_queues_starts_within_cpu_and_memory_bounds(
    tmp_path, queues, seconds, capfd
):
    """The test measures CPU seconds of a clean start and a stop, because the machine
    may be busy."""
    life_of(many_queues.fill_and_stop, tmp_path, queues, capfd)
    used, resident = life_of(many_queues.start_and_stop, tmp_path, queues, capfd)
    assert used < seconds
    assert resident < 1_024
