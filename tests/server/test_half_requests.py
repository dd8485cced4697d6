"""Partial requests: which clients are disconnected when these use too much memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.suite.log_records import lines_of

from rmq_spark.wire.message.hosts import Host
from rocketpoll.broker.server.limits import PartialRequests

WHO_GOES = "closing the oldest connections of the address that holds most"


class Sender:
    """A connection with the attributes used here."""

    def __init__(self, last_byte):
        self.remote_host = Host(bytes((10, 0, 0, last_byte)), 1_000)


@pytest.fixture
def halves():
    return PartialRequests()


def test_partial_request_eviction_takes_the_oldest_of_the_largest_address(halves):
    largest, *flood = Sender(1), *(Sender(2) for _ in range(6))
    halves.record(largest, 50)
    for sender in flood:
        halves.record(sender, 20)
    halves.record(flood[0], 25)  # growth does not make it younger
    assert list(halves.evict(130, 0)) == flood[:2]
    assert halves.bytes == 130
    assert list(halves.evict(90, 0)) == flood[2:4]
    assert list(halves.evict(90, 0)) == []


def test_fair_share_of_partial_requests_is_per_address(halves):
    greedy, honest, silent = Sender(1), Sender(2), Sender(3)
    assert halves.is_over_fair_share(silent, 0)  # because no client holds anything
    halves.record(greedy, 90)
    assert halves.is_over_fair_share(greedy, 0)
    halves.record(honest, 30)
    assert [halves.is_over_fair_share(each, 0) for each in (greedy, honest, silent)] == [1, 0, 0]
    halves.record(honest, 90)
    assert halves.is_over_fair_share(honest, 0)


def test_small_partial_request_is_evicted_by_age_only(halves):
    """Thousands of addresses hold little each; an honest request holds more than any of them."""
    before, *flood = (Sender(number) for number in range(10, 31))
    halves.record(before, 30)
    for sender in flood[:10]:
        halves.record(sender, 5)
    honest = Sender(1)
    halves.record(honest, 40)
    for sender in flood[10:]:
        halves.record(sender, 5)
    assert halves.is_over_fair_share(honest, 39)
    assert not halves.is_over_fair_share(honest, 40)
    assert list(halves.evict(120, 40)) == [before, *flood[:4]]
    assert list(halves.evict(110, 39)) == [honest]


def test_partial_request_eviction_is_logged_at_start_and_end(halves, caplog):
    for round_ in range(1, 3):
        for _ in range(5):
            halves.record(Sender(1), 80)
            list(halves.evict(100, 0))
        halves.end_eviction()
        halves.end_eviction()
        count = 4 if round_ == 1 else 5
        assert lines_of(caplog)[(round_ - 1) * 2 :] == [
            f"partial requests take 160 bytes (maxInFlightBytes): {WHO_GOES}",
            f"partial requests are below their limit again; {count} connections were closed",
        ]


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([0, 1, 30, 70])), min_size=1, max_size=60
    )
)
def test_partial_request_bytes_are_the_sum_and_never_over_the_limit(steps):
    halves = PartialRequests()
    senders = [Sender(number % 3) for number in range(10)]
    held = {}
    for number, size in steps:
        halves.record(senders[number], size)
        held[senders[number]] = size
        for gone in halves.evict(100, 0):
            theirs = [
                sum(held[each] for each in held if each.remote_host.address == address)
                for address in {each.remote_host.address for each in senders}
            ]
            address = gone.remote_host.address
            assert max(theirs) == sum(
                held[each] for each in held if each.remote_host.address == address
            )
            held[gone] = 0
        assert halves.bytes == sum(held.values()) <= 100
