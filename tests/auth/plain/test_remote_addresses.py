"""White addresses cover those that RocketMQ 4.9 covers, and never more."""

import json
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rocketmq import java_vectors

from rocketpoll.broker.auth.plain.plain_accounts import AddressPattern

ROWS = [row for row in java_vectors.load("4.9.7", "plain_lists") if row["kind"] == "address"]
NARROWER = {"10.1.*.3": ["10.1.2.3", "10.1.20.3"]}
"""RocketMQ ignores the rest after the first asterisk."""
REFUSED_HERE = {"fe80::1%eth0"}
"""RocketMQ accepts this address, although it covers nothing."""
ONLY_HERE = {
    "10.1.{2,3}.9",
    "*.1.2.3",
    "10.1.2.{3-30}",
    "2001:db8:1:2:*:*:*:*",
    "2001:db8:1:2-3:*:*:*:*",
}
"""RocketMQ accepts these forms in the last places only."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: json.dumps(row["text"]))
def test_white_address_covers_the_same_clients_as_rocketmq(row):
    text = row["text"]
    if text in REFUSED_HERE or ("refused" in row and text not in ONLY_HERE):
        with pytest.raises(ValueError, match="an address such as"):
            AddressPattern.parse(text)
        return
    covers = AddressPattern.parse(text).covers
    found = [client for client in row["clients"] if covers(client)]
    if text not in ONLY_HERE:
        assert found == NARROWER.get(text, row.get("matches"))


@given(st.ip_addresses(), st.ip_addresses())
def test_white_address_of_one_client_covers_it_and_no_other(address, other):
    pattern = AddressPattern.parse(str(address))
    assert pattern.covers(str(address))
    assert pattern.covers(str(other)) == (address == other)


PLACES = st.integers(0, 255)


@given(st.tuples(PLACES, PLACES, PLACES, PLACES), st.tuples(PLACES, PLACES), PLACES)
def test_white_address_of_a_range_covers_its_numbers(client, bounds, first):
    low, high = sorted(bounds)
    pattern = AddressPattern.parse(f"{first}.*.{low}-{high}.*")
    address = ".".join(map(str, client))
    assert pattern.covers(address) == (client[0] == first and low <= client[2] <= high)
    assert not pattern.covers(f"::{ip_address(address)}")


def test_blank_white_address_covers_nobody():
    assert not AddressPattern.parse(" ").covers("127.0.0.1")
