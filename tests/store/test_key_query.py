"""Queries by key: only messages of the topic, newest first, up to the limit."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.disks.faulty_disk import ManualClock
from support.stores.small_store import components_of, message, open_store
from support.suite.log_records import lines_of

from rmq_spark.wire.message.record import decode_record
from rocketpoll.broker.store.errors import IndexLimitReached
from rocketpoll.broker.store.read.time_lookup import KeyQuery

EVER = (0, 1 << 62)


@pytest.fixture
def store(tmp_path):
    store = open_store(tmp_path)
    for number in range(6):
        store.put_message(message(f"{number}", keys="k other" if number % 2 else "k", topic="T"))
    store.put_message(message("of U", keys="k", topic="U"))
    yield store
    store.shutdown()


def bodies_of(steps):
    return [decode_record(record, 0).body.decode() for record in steps if record is not None]


def query(store, topic, key, max_num=10, span=EVER):
    return bodies_of(store._key_query.query_in_steps(topic, key, max_num, *span))


def test_query_by_key_returns_messages_of_the_topic(store):
    assert sorted(query(store, "T", "k")) == [*"012345"]
    assert sorted(query(store, "T", "other")) == [*"135"]
    assert query(store, "U", "k") == ["of U"]
    assert query(store, "U", "other") == query(store, "T", "nobody's") == []


def test_key_query_returns_the_newest_first_up_to_the_limit(store):
    assert query(store, "T", "k", 2) == ["5", "4"]
    assert query(store, "T", "k", 0) == []


def test_query_by_key_omits_messages_of_a_deleted_topic(store):
    store.delete_topic("T")
    assert query(store, "T", "k") == []
    store.put_message(message("new", keys="k", topic="T"))
    assert query(store, "T", "k") == ["new"]


def test_key_query_without_an_index_finds_nothing(tmp_path):
    store = open_store(tmp_path, message_index_enable=False)
    store.put_message(message("x", keys="k"))
    assert query(store, "T", "k") == []
    store.shutdown()


def test_query_by_key_reads_no_more_records_than_it_returns(store):
    looks = []

    def record_at(place):
        looks.append(place)
        return store.record_at(place)

    found = KeyQuery(components_of(store), record_at).query_in_steps("T", "k", 3, *EVER)
    assert bodies_of(found) == ["5", "4", "3"]
    assert len(looks) == 3


def test_index_disabled_for_a_while_is_rebuilt_without_a_warning(tmp_path, caplog):
    for kept in (True, False, True):
        store = open_store(tmp_path, message_index_enable=kept)
        store.put_message(message("x", keys="k"))
        store.shutdown()
    store = open_store(tmp_path)
    assert len(store.query_message("T", "k", 10, 0, 1 << 62)) == 3
    store.shutdown()
    assert lines_of(caplog, "rocketpoll.broker.store") == []


def test_message_with_a_repeated_key_is_found_once(store):
    store.put_message(message("twice", keys="double double", topic="T"))
    assert query(store, "T", "double") == ["twice"]


def test_query_by_key_ignores_other_keys_of_equal_hash(store):
    for text, key in (("wanted", "Aa"), ("another", "BB"), ("and another", "BB")):
        store.put_message(message(text, keys=key, topic="T"))
    assert query(store, "T", "Aa", 1) == ["wanted"]


@given(
    times=st.lists(st.integers(0, 3_000), min_size=1, max_size=25).map(sorted),
    begin=st.integers(-1, 3_001),
    length=st.integers(0, 2_000),
)
@settings(max_examples=60, deadline=None)
def test_times_of_a_query_count_to_the_millisecond(tmp_path_factory, times, begin, length):
    """The index counts seconds; no message at the edge of the range may be left out."""
    clock = ManualClock(0)
    store = open_store(tmp_path_factory.mktemp("store"), clock=clock, max_index_num=9)
    for number, time in enumerate(times):
        clock.now_ms = 1_000_000 + time
        store.put_message(message(f"{number}", keys="k"))
    for span in ((begin, begin + length), (times[0], times[0]), (times[-1], times[-1])):
        expected = [f"{n}" for n, time in enumerate(times) if span[0] <= time <= span[1]]
        exact = (1_000_000 + span[0], 1_000_000 + span[1])
        assert query(store, "T", "k", 99, exact) == expected[::-1]
        assert query(store, "T", "k", 1, exact) == expected[-1:]
    store.shutdown()


def test_key_query_is_not_filled_up_by_later_messages_of_the_same_second(tmp_path):
    clock = ManualClock(1_000_000)
    store = open_store(tmp_path, clock=clock)
    store.put_message(message("wanted", keys="k"))
    clock.now_ms += 500
    for _ in range(20):
        store.put_message(message("later", keys="k"))
    assert query(store, "T", "k", 1, (0, 1_000_499)) == ["wanted"]
    store.shutdown()


COLLIDING = ["".join(pieces) for pieces in itertools.product(("Aa", "BB"), repeat=9)]
"""Keys with the same Java hash, of which a sender can produce any number."""


def test_hundreds_of_keys_of_the_same_hash_hide_no_message(store):
    victim, *others = COLLIDING
    store.put_message(message("precious", keys=victim, topic="T"))
    for key in others:
        store.put_message(message("x", keys=key, topic="T"))
    assert query(store, "T", victim, 1) == ["precious"]
    assert query(store, "T", victim, 32) == ["precious"]


def test_key_query_that_ends_at_its_limit_says_so(tmp_path):
    victim, *others = COLLIDING
    store = open_store(tmp_path, index_hops_max=100)
    store.put_message(message("precious", keys=victim, topic="T"))
    for key in others:
        store.put_message(message("x", keys=key, topic="T"))
    with pytest.raises(IndexLimitReached, match=r"newest 100 messages .* maxIndexHops"):
        query(store, "T", victim)
    assert query(store, "T", others[-1]) == ["x"]
    assert query(store, "T", "nobody's") == []
    store.shutdown()
