"""Rollback marks the records of a batch in place, and changes no other byte."""

import pytest
from support.stores.small_store import bodies, components_of, crash, message, open_store
from support.stores.staged_batches import result_of, sized

from rmq_spark.wire.message.record import decode_record
from rmq_spark.wire.message.record_layout import has_valid_checksum
from rocketpoll.broker.store.batch_commit.rollback import first_row, newest_row, rollback_rows

MARK = 77


@pytest.fixture
def store(tmp_path):
    store = open_store(tmp_path)
    yield store
    store.shutdown()


def put_marked(store, *texts, mark=MARK):
    sizes, records, _ = sized(texts)
    checked = result_of(store._chunk_appender.check(records, sizes))
    checked.mark(mark)
    return store._chunk_appender.put_checked(checked).physical_offset


def test_marked_records_are_rolled_back_and_no_others(store):
    first = store.put_message(message("before")).physical_offset
    at = put_marked(store, "a", "b" * 3000)  # across the end of a log file
    put_marked(store, "of another commit", mark=78)
    store.put_message(message("behind"))
    rollback_rows(components_of(store).log, 0, MARK)
    rollback_rows(components_of(store).log, 0, MARK)
    record = store.record_at(at)
    found = decode_record(record)
    assert has_valid_checksum(record)
    assert (found.body, found.sys_flag & 0xC, found.prepared_transaction_offset) == (
        b"a",
        0xC,
        MARK,
    )
    assert decode_record(store.record_at(first)).sys_flag & 0xC == 0
    crash(store)
    (components_of(store).root / "config" / "manifest.json").unlink(missing_ok=True)
    again = open_store(components_of(store).root)
    assert bodies(again) == ["before", "of another commit", "behind"]
    again.shutdown()


def test_rollback_does_not_touch_rows_before_its_start(store):
    at = put_marked(store, "a")
    start = store.state().written_offset
    put_marked(store, "b")
    rollback_rows(components_of(store).log, start, MARK)
    assert decode_record(store.record_at(at)).sys_flag & 0xC == 0


def test_rollback_skips_damaged_records(store):
    store.put_message(message("whole"))
    damaged = store.put_message(message("damaged" * 20)).physical_offset
    at = put_marked(store, "a")
    components_of(store).log.files.write(damaged + 4, b"\0" * 40)
    rollback_rows(components_of(store).log, 0, MARK)
    assert decode_record(components_of(store).log.read_record(at)).sys_flag & 0xC == 0xC


def test_first_row_of_a_commit_skips_rolled_back_rows(store):
    at = put_marked(store, "a", "b")
    assert first_row(components_of(store).log, 0, MARK) == at
    rollback_rows(components_of(store).log, 0, MARK)
    assert first_row(components_of(store).log, 0, MARK) is None
    again = put_marked(store, "c")
    assert first_row(components_of(store).log, 0, MARK) == again


def test_newest_commit_is_the_one_with_the_highest_mark(store):
    at = put_marked(store, "a" * 3_000, mark=MARK + 1)
    put_marked(store, "b" * 3_000)  # in the next log file
    assert newest_row(components_of(store).log, 0) == (MARK + 1, at)
    rollback_rows(components_of(store).log, 0, MARK + 1)
    assert newest_row(components_of(store).log, 0)[0] == MARK
