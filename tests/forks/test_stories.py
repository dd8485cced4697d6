"""Random stories of forking processes, each from its own seed; `make forks
SEEDS=5000` runs more.
"""

import pytest
from forks.__main__ import campaign
from support.suite.selection import count

FIRST = 0


@pytest.mark.deep
def test_forked_clients_work_or_refuse_and_parents_continue():
    said = []
    seeds = count("ROCKETPOLL_FORKS", 24, wide=100)
    assert campaign(range(FIRST, FIRST + seeds), beside=2, say=said.append) == [], "\n".join(said)
