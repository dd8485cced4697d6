"""Unique message ids never repeat, and have Java's form."""

import os
from datetime import datetime

import pytest

from rmq_spark.client.producer.prepared_message import UniqueIdGenerator, month_start_ms
from rmq_spark.wire.message_id import decode_unique_id

SOME_DAY_MS = int(datetime(2026, 3, 17, 12, 34, 56).timestamp() * 1000)  # noqa: DTZ001  # Java's month is local


def test_unique_id_contains_host_and_time():
    ids = UniqueIdGenerator("10.0.0.1", lambda: SOME_DAY_MS)
    first, second = decode_unique_id(ids.next()), decode_unique_id(ids.next())
    assert first.address == bytes([10, 0, 0, 1])
    assert first.process_id == os.getpid() & 0xFFFF
    assert first.month_ms == SOME_DAY_MS - month_start_ms(SOME_DAY_MS)
    assert (first.counter, second.counter) == (0, 1)


def test_bulk_unique_ids_continue_the_counter():
    ids = UniqueIdGenerator("10.0.0.1", lambda: SOME_DAY_MS)
    made = [ids.next(), *ids.next_many(3), ids.next()]
    assert [decode_unique_id(each).counter for each in made] == [0, 1, 2, 3, 4]


def test_unique_id_month_starts_at_local_midnight():
    began = datetime.fromtimestamp(month_start_ms(SOME_DAY_MS) / 1000)  # noqa: DTZ006  # the same
    assert began == datetime(2026, 3, 1)  # noqa: DTZ001  # local time is what is tested


def test_unique_id_generator_notices_a_new_month():
    times = [SOME_DAY_MS, int(datetime(2026, 4, 2).timestamp() * 1000)]  # noqa: DTZ001  # local time is what is tested
    ids = UniqueIdGenerator("10.0.0.1", lambda: times.pop(0))
    ids.next()
    assert decode_unique_id(ids.next()).month_ms == 24 * 3_600_000


@pytest.mark.parametrize(("address", "digits"), [("10.0.0.1", 32), ("::1", 56)])
def test_generated_unique_ids_never_repeat(address, digits):
    ids = [UniqueIdGenerator(address) for _ in range(2)]
    made = [each.next() for each in ids for _ in range(1_000)]
    made += [unique_id for each in ids for unique_id in each.next_many(1_000)]
    assert len(set(made)) == 4_000
    assert {len(text) for text in made} == {digits}
