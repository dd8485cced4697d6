"""FairTurns: the order in which clients are served."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers.hold_service import Client

from rocketpoll.broker.longpolling.pull_request import FairTurns

V6 = bytes.fromhex("20010db8000000010000000000000000")


def served(turns):
    return [turns.popleft() for _ in range(len(turns))]


def test_addresses_take_turns_and_their_connections_within():
    turns = FairTurns()
    a, b = Client(bytes([10, 0, 0, 1])), Client(bytes([10, 0, 0, 1]))
    c = Client(bytes([10, 0, 0, 2]))
    for client, items in ((a, (1, 2, 3, 4)), (b, (5, 6)), (c, (7,))):
        for item in items:
            turns.append(client, item)
    assert served(turns) == [1, 7, 5, 2, 6, 3, 4]
    with pytest.raises(IndexError, match="no item is queued"):
        turns.popleft()


def test_ipv6_addresses_of_one_network_share_a_turn():
    turns = FairTurns()
    for number in range(50):
        turns.append(Client(V6[:-1] + bytes([number])), number)
    turns.append(Client(b"\x20" + V6[1:7] + b"\x09" + bytes(8)), "other")
    assert "other" in served(turns)[:2]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)) | st.none(), max_size=60),
)
def test_each_item_comes_once_in_order_and_waits_for_one_of_each_other_client(moves):
    turns = FairTurns()
    clients = {(a, c): Client(bytes([10, 0, 0, a])) for a in range(3) for c in range(3)}
    waiting = {key: [] for key in clients}
    heads_since = {}
    for number, move in enumerate(moves):
        if move is not None:
            turns.append(clients[move], (move, number))
            waiting[move].append(number)
            heads_since.setdefault(move[0], 0)
        elif len(turns):
            (address, connection), item = turns.popleft()
            assert item == waiting[address, connection].pop(0)
            heads_since.pop(address)
            heads_since = {other: count + 1 for other, count in heads_since.items()}
            # no address is served twice while another one waits
            assert max(heads_since.values(), default=0) <= 2
            if any(waiting[address, each] for each in range(3)):
                heads_since[address] = 0
    assert len(turns) == sum(map(len, waiting.values()))
