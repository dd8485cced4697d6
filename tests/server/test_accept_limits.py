"""Limits of new clients: by number, address and second."""

import logging
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.suite.log_records import lines_of

from rmq_spark.wire.message.hosts import Host
from rocketpoll.broker.server.accept_limits import (
    LOOPBACK_RESERVE_DIVISOR,
    AcceptLimits,
    AcceptRate,
)
from rocketpoll.broker.settings.config import ServerLimits

PER_SECOND = ServerLimits().max_accepts_per_second
HONEST = bytes([10, 0, 0, 1])
LOOPBACK = bytes([127, 0, 0, 1])


class Client:
    def __init__(self, address):
        self.remote_host = Host(address, 40_000)
        self.is_aborted = False

    def abort(self):
        self.is_aborted = True


class Door:
    """The limits, with a clock."""

    def __init__(self, **limits):
        self.limits = replace(ServerLimits(), **limits)
        self.accepts = AcceptLimits(self.limits)
        self.accepts.skip_time(1_000.0)
        self.now = 1_000.0

    def come(self, address, *, stays=True):
        """Connect a client; return it if it may stay, else None."""
        client = Client(address)
        is_admitted = self.accepts.register(client, self.now, self.limits)
        if not (is_admitted and stays):
            self.accepts.unregister(client)
        return client if is_admitted else None


@pytest.mark.parametrize("attackers", [1, 2, 5, 20])
@pytest.mark.parametrize("has_clients", [False, True])
def test_honest_newcomers_get_in_beside_addresses_that_open_and_reset(attackers, has_clients):
    door = Door()
    if has_clients:
        door.come(HONEST)
    admitted = refused = 0
    for millisecond in range(12_000):
        door.now = 1_000 + millisecond / 1_000
        for number in range(attackers):
            door.come(bytes([10, 0, 9, number]), stays=False)
        if millisecond % 250 == 37:
            is_admitted = door.come(HONEST, stays=False) is not None
            admitted += is_admitted
            refused += not is_admitted
    assert admitted + refused == 48
    assert refused <= 1  # at most once, before both addresses are known to share the limit
    assert door.accepts.refused["maxAcceptsPerSecond"] > 8_000


def test_address_without_clients_gets_in_beside_many_that_open_and_reset():
    door = Door()
    admitted = 0
    for millisecond in range(10_000):
        door.now = 1_000 + millisecond / 1_000
        door.come(bytes([10, 1, 0, millisecond % 90]), stays=False)
        if millisecond % 1_000 == 500:
            admitted += door.come(bytes([10, 0, 0, millisecond // 1_000])) is not None
    assert admitted == 10


def test_single_address_may_use_the_whole_limit():
    door = Door()
    assert sum(door.come(HONEST) is not None for _ in range(2 * PER_SECOND)) == PER_SECOND
    door.now += 0.5
    assert sum(door.come(HONEST) is not None for _ in range(PER_SECOND)) == PER_SECOND // 2


def test_ipv6_addresses_of_one_network_count_as_one():
    door = Door(max_connections_per_address=10)
    network = bytes.fromhex("20010db800000001")
    clients = [door.come(network + number.to_bytes(8, "big")) for number in range(50)]
    assert sum(client is not None for client in clients) == 10
    assert door.accepts.refused == {"maxConnectionsPerAddress": 40}
    assert door.come(bytes.fromhex("20010db800000002") + bytes(8)) is not None


def test_full_loopback_address_lets_newcomers_in_for_the_time_being():
    most = 2 * LOOPBACK_RESERVE_DIVISOR
    door = Door(max_connections_per_address=most, max_accepts_per_second=10_000)
    idle = [door.come(LOOPBACK) for _ in range(most)]
    newcomers = [door.come(LOOPBACK) for _ in range(20)]
    assert None not in newcomers
    assert [client.is_aborted for client in newcomers] == [True] * 18 + [False] * 2
    assert not any(client.is_aborted for client in idle)
    remote = Door(max_connections_per_address=most, max_accepts_per_second=10_000)
    assert sum(remote.come(HONEST) is not None for _ in range(most + 20)) == most


def test_refused_clients_are_logged_once_a_minute_with_their_number(caplog):
    caplog.set_level(logging.INFO)
    door = Door()
    for millisecond in range(130_000):
        door.now = 1_000 + millisecond / 1_000
        door.come(HONEST, stays=False)
        if millisecond % 1_000 == 999:
            door.accepts.log_refused(door.now)
    lines = lines_of(caplog)
    assert len(lines) == 3
    counts = [int(line.split("maxAcceptsPerSecond ")[1].split(";")[0]) for line in lines]
    assert counts[0] == 1
    assert all(count == pytest.approx(48_000, rel=0.05) for count in counts[1:])
    assert "10.0.0.1:40000" in lines[0]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400), st.booleans()), max_size=200))
def test_accepts_per_second_are_bounded_for_any_addresses(story):
    rate, now, admitted = AcceptRate(20), 0.0, 0
    for address, milliseconds, is_first in story:
        now += milliseconds / 1_000
        admitted += rate.admit(bytes([address]), now, 20, is_first=is_first)
    assert admitted <= (20 + 2) * (now + 1) + 1e-6
