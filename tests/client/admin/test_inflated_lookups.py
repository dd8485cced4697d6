"""Lookups by key or id of small messages that inflate to far more than a client should hold."""

import tracemalloc

import pytest

from rmq_spark.client.producer.prepared_message import now_ms
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import compress_body
from rmq_spark.wire.headers.members import SendMessageRequestHeader
from rocketpoll import Admin
from rocketpoll.errors import LookupTooLarge

MIB = 1 << 20
MESSAGES = 20
UNIQUE_ID = "7F000001669DC9819DE26ECF4EE40062"
ZSTD = MessageSysFlag.COMPRESSED.value | MessageSysFlag.COMPRESSION_ZSTD.value


@pytest.fixture
def admin(running_broker):
    """Return a client of a broker with highly compressed messages of one key and id, and of another
    key with the same hash."""
    bomb = compress_body(bytes(MIB), MessageSysFlag.COMPRESSION_ZSTD)
    with Admin(running_broker.address) as made:
        made.create_topic("T", 1)
        for number in range(MESSAGES):
            key = "AaAa" if number % 2 else "BBBB"
            header = SendMessageRequestHeader(
                *("P", "T", "TBW102", 1, 0, ZSTD, now_ms(), 0),
                f"KEYS\x01{key}\x02UNIQ_KEY\x01{UNIQUE_ID}\x02",
                batch=False,
            )
            made.instance.api.send(running_broker.address, header, bomb, "")
        yield made


def by_key(admin, **more):
    return admin.messages_by_key("T", "AaAa", **more)


def by_unique_id(admin, **more):
    return admin.messages_by_unique_id("T", UNIQUE_ID, **more)


@pytest.mark.parametrize(("lookup", "count"), [(by_key, MESSAGES // 2), (by_unique_id, MESSAGES)])
def test_lookup_stops_at_its_limit_of_inflated_bytes(admin, lookup, count):
    """Inflated bodies of other keys do not count, and are not kept."""
    assert {len(each.body) for each in lookup(admin, bytes_max=count * MIB)} == {MIB}
    assert len(lookup(admin)) == count
    tracemalloc.start()
    try:
        with pytest.raises(LookupTooLarge, match=r"Look for fewer.* or raise bytes_max") as raised:
            lookup(admin, bytes_max=3 * MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (raised.value.topic, raised.value.bytes_max) == ("T", 3 * MIB)
    assert peak < 8 * MIB


def test_lookup_by_key_of_fewer_messages_fits(admin):
    assert len(by_key(admin, bytes_max=4 * MIB, messages_max=4)) <= 4
