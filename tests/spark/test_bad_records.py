import logging

import pytest
from support.spark.source_queries import queue_of

from rmq_spark.spark.bodies.bad_records import LOGGED_MAX, BadRecordHandler
from rmq_spark.spark.errors import RecordFault
from rmq_spark.spark.options.values import OnBadRecord


def test_unreadable_record_fails_with_its_offset_and_the_option_to_set():
    with pytest.raises(RecordFault) as raised:
        BadRecordHandler(OnBadRecord.FAIL).report(queue_of("T", 3), 17, "it is broken")
    assert str(raised.value) == (
        "the message at offset 17 of queue 3 of T on broker-a cannot be read: it is broken. "
        "Set option onBadRecord to null for a row without its body, or to skip to leave it out"
    )


@pytest.mark.parametrize(("how", "done"), [("null", "its body is null"), ("skip", "it is skipped")])
def test_bad_records_are_logged_up_to_a_limit(how, done, caplog):
    bad = BadRecordHandler(OnBadRecord(how))
    for queue_offset in range(3 * LOGGED_MAX):
        bad.report(queue_of("T"), queue_offset, "it is broken")
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == LOGGED_MAX + 1
    assert said[0] == (
        f"the message at offset 0 of queue 0 of T on broker-a cannot be read, and "
        f"{done}: it is broken"
    )
    assert said[-1] == "this task logs no more of them"
