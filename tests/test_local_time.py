"""Timestamps in local time, for any setting of the clock."""

from datetime import datetime

import pytest

from rocketpoll.broker.common.local_time import local_time


def test_local_time_uses_the_time_zone_of_the_machine():
    assert local_time(1_700_000_000_500) == datetime.fromtimestamp(1_700_000_000.5).astimezone()


@pytest.mark.parametrize("years", [8_100, 300_000, 290_000_000])
def test_local_time_of_a_clock_beyond_all_dates_is_the_year_9999(years):
    told = local_time(years * 365 * 86_400_000)
    assert (told.year, told.month) == (9999, 12)
