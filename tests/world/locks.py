"""Queue locks by group: no two members may hold the same queue at the same time."""

from __future__ import annotations


class Locks:
    """What members were told that they hold, and have not begun to give back."""

    def __init__(self, complain):
        self._complain = complain
        self._held = {}

    def taken(self, group, client, queues):
        for queue in queues:
            holder = self._held.setdefault((group, queue), client)
            if holder != client:
                self._complain(f"{client} and {holder} of {group} both hold queue {queue.queue_id}")

    def release(self, group, client, queues):
        for queue in queues:
            if self._held.get((group, queue)) == client:
                del self._held[group, queue]

    def life_ended(self, kind):
        """Locks are in memory only."""
        self._held.clear()
