"""Log records as JSON lines."""

import json
import logging
import sys
from datetime import datetime

import pytest

from rocketpoll.broker.common.local_time import local_time
from rocketpoll.broker.process.operator_log import JsonFormatter


def record(message, *values, error=None):
    return logging.LogRecord("rocketpoll.broker", logging.WARNING, "x", 1, message, values, error)


def test_json_log_record_is_one_object_on_one_line():
    line = JsonFormatter().format(record("topic %s\nis gone", 'ä"'))
    assert "\n" not in line
    said = json.loads(line)
    assert said["message"] == 'topic ä"\nis gone'
    assert (said["level"], said["logger"]) == ("WARNING", "rocketpoll.broker")
    assert said["time"].endswith("Z")
    assert set(said) == {"time", "level", "logger", "message"}


def test_json_log_line_contains_the_exception():
    try:
        int("lost")
    except ValueError:
        line = JsonFormatter().format(record("it failed", error=sys.exc_info()))
    assert json.loads(line)["exception"].endswith("'lost'")


# ---- timestamps in local time, for any setting of the clock


def test_local_time_uses_the_time_zone_of_the_machine():
    assert local_time(1_700_000_000_500) == datetime.fromtimestamp(1_700_000_000.5).astimezone()


@pytest.mark.parametrize("years", [8_100, 300_000, 290_000_000])
def test_local_time_of_a_clock_beyond_all_dates_is_the_year_9999(years):
    told = local_time(years * 365 * 86_400_000)
    assert (told.year, told.month) == (9999, 12)
