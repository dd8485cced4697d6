"""Positions in a topic, as users write them on the command line."""

import time
from datetime import datetime, timezone

import click
import pytest

from rmq_spark.cli.shell.parameter_types import (
    PositionKind,
    TopicPosition,
    parse_position,
    parse_time_ms,
)

NOW = datetime(2026, 11, 23, 14, 30, tzinfo=timezone.utc).timestamp()


@pytest.fixture(autouse=True)
def _in_berlin(monkeypatch):
    monkeypatch.setenv("TZ", "CET-1")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("start", TopicPosition(PositionKind.START)),
        ("earliest", TopicPosition(PositionKind.START)),
        ("end", TopicPosition(PositionKind.END)),
        ("latest", TopicPosition(PositionKind.END)),
        ("Latest", TopicPosition(PositionKind.END)),
        ("2026-01-31", TopicPosition(PositionKind.TIME, 1_769_814_000_000)),
        ("-10", TopicPosition(PositionKind.BACKWARD, 10)),
        ("+5", TopicPosition(PositionKind.FORWARD, 5)),
        ("42", TopicPosition(PositionKind.OFFSET, 42)),
        ("@1795424400000", TopicPosition(PositionKind.TIME, 1_795_424_400_000)),
        ("2026-11-23T09:00Z", TopicPosition(PositionKind.TIME, 1_795_424_400_000)),
        ("@2026-11-23T09:00Z", TopicPosition(PositionKind.TIME, 1_795_424_400_000)),
    ],
)
def test_position_text_is_parsed(text, place):
    assert parse_position(text) == place


def test_milliseconds_in_place_of_an_offset_are_refused_with_the_form_of_a_time():
    with pytest.raises(click.UsageError, match="For a time write @1795424400000"):
        parse_position("1795424400000")


@pytest.mark.parametrize(
    "text", ["", "begin", "--1", "1.5", "@", "@noon", "25:00", "2026-13-01", "-1x"]
)
def test_invalid_position_text_is_refused_with_examples(text):
    with pytest.raises(click.UsageError, match="-1h, 09:00"):
        parse_position(text)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("-1h", "2026-11-23T13:30+00:00"),
        ("-1h30m", "2026-11-23T13:00+00:00"),
        ("-2d", "2026-11-21T14:30+00:00"),
        ("-90 minutes", "2026-11-23T13:00+00:00"),
        ("-250ms", "2026-11-23T14:29:59.750+00:00"),
        ("09:00", "2026-11-23T09:00+01:00"),
        ("9:00:30.5", "2026-11-23T09:00:30.500+01:00"),
        ("2026-11-23", "2026-11-23T00:00+01:00"),
        ("2026-11-22T09:00", "2026-11-22T09:00+01:00"),
        ("2026-11-22 09:00", "2026-11-22T09:00+01:00"),
        ("2026-11-22T09:00Z", "2026-11-22T09:00+00:00"),
        ("2026-11-22T09:00+05:00", "2026-11-22T09:00+05:00"),
    ],
)
def test_time_text_is_parsed_in_the_local_or_its_own_zone(text, moment):
    assert parse_time_ms(text, NOW) == datetime.fromisoformat(moment).timestamp() * 1_000


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("15:31", "in the future. Add a date to mean another day"),
        ("2027-01-01", "in the future. Give a time that is over"),
        ("-60w5200d90000d", "before 1970"),
        ("1969-01-01", "before 1970"),
        ("1795424400", "Write 13 digits"),
        ("tomorrow", "is not a time"),
    ],
)
def test_invalid_time_text_is_refused(text, why):
    with pytest.raises(ValueError, match=why):
        parse_time_ms(text, NOW)
