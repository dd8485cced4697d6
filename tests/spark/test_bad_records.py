"""Unreadable records raise an error with their offset, or are logged up to a limit."""

import logging

import pytest
from support.spark.source_queries import queue_of

from rmq_spark.client.damaged_records import BadRecord
from rmq_spark.spark.bodies.bad_records import LOGGED_MAX, BadRecordHandler
from rmq_spark.spark.errors import RecordFault
from rmq_spark.spark.options.values import OnBadRecord


def test_unreadable_record_fails_with_its_offset_and_the_option_to_set():
    bad = BadRecord(queue_of("T", 3), 17, "it is broken")
    with pytest.raises(RecordFault) as raised:
        BadRecordHandler(OnBadRecord.FAIL).report([bad])
    assert str(raised.value) == (
        "the message at offset 17 of queue 3 of T on broker-a cannot be read: it is broken. "
        "Set option onBadRecord to null for a row without its body, to skip to leave it out, or to "
        "dead_letter to send it to another topic"
    )


@pytest.mark.parametrize(("how", "done"), [("null", "its body is null"), ("skip", "it is skipped")])
def test_bad_records_are_logged_up_to_a_limit(how, done, caplog):
    with BadRecordHandler(OnBadRecord(how)) as bad:
        for at in range(0, 3 * LOGGED_MAX, 3):
            bad.report([BadRecord(queue_of("T"), at + i, "it is broken") for i in range(3)])
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == LOGGED_MAX + 2
    assert said[0] == (
        f"offset 0 of queue 0 of T on broker-a cannot be read, and {done}: it is broken"
    )
    assert said[-2:] == [
        "this task logs no more unreadable messages",
        f"onBadRecord={how} applied to 60 messages of a task",
    ]
