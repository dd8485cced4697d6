"""FairTurns: items of clients, served by turns of their addresses and connections.

    append     an item of a client: the last of its connection
    popleft    the next item: of the next address, there of the next connection

    10.0.0.1  a: 1 2 3 4    b: 5 6     ─> 1, 7, 5, 2, 6, 3, 4
    10.0.0.2  c: 7

A client that queues much has its items served in order, but never ahead of another's first one.
Every operation takes constant time, however many items, connections and addresses there are.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

from rmq_spark.wire.hosts import Host


class RemoteClient(Protocol):
    """A client with an address; equal to itself alone, and usable as a key."""

    @property
    def remote_host(self) -> Host:
        """The client's address and port."""


_Client = TypeVar("_Client", bound=RemoteClient)
_Item = TypeVar("_Item")


class FairTurns(Generic[_Client, _Item]):
    """A queue in which addresses take turns, and within an address its connections."""

    def __init__(self) -> None:
        self._count = 0
        self._networks: dict[bytes, dict[_Client, deque[_Item]]] = {}

    def __len__(self) -> int:
        return self._count

    def append(self, client: _Client, item: _Item) -> None:
        """Add an item behind all others of its client."""
        self._count += 1
        network = client.remote_host.network
        lines = self._networks.get(network)
        if lines is None:
            self._networks[network] = {client: deque((item,))}
        elif client in lines:
            lines[client].append(item)
        else:
            lines[client] = deque((item,))

    def popleft(self) -> _Item:
        """Remove and return the next item; its address and its connection go to the end.

        Raises:
            IndexError: There is none.
        """
        if not self._count:
            raise IndexError("no item is queued")
        self._count -= 1
        network = next(iter(self._networks))
        lines = self._networks.pop(network)
        client = next(iter(lines))
        line = lines.pop(client)
        item = line.popleft()
        if line:
            lines[client] = line
        if lines:
            self._networks[network] = lines
        return item
