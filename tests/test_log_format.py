"""Log records as JSON lines."""

from __future__ import annotations

import json
import logging
import sys

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
