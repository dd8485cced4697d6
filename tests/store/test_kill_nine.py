"""kill -9 at any moment: no acknowledged message is lost or moves, and the store
resumes at once.
"""

import os

import pytest
from support.stores.kill_campaign import ACKNOWLEDGE_EARLY, Campaign

# Longer campaigns take their length from here.
CYCLES = int(os.environ.get("ROCKETPOLL_KILL_CYCLES", "20"))
FAULTY_CYCLES = 6


@pytest.mark.wide
def test_killed_store_loses_no_acknowledged_message(tmp_path, dice):
    campaign = Campaign(tmp_path, dice)
    campaign.run(CYCLES)
    assert campaign.findings == []
    assert (
        campaign.acknowledged_count > 10 * CYCLES
    )  # else the children were too slow to tell anything


@pytest.mark.wide
def test_store_that_acknowledges_before_writing_fails_the_kill_campaign(tmp_path, dice):
    campaign = Campaign(tmp_path, dice, fault=ACKNOWLEDGE_EARLY)
    campaign.run(FAULTY_CYCLES)
    assert any("lost: message" in finding for finding in campaign.findings)
