"""Queue locks by group: no two members may hold the same queue at the same time."""


class Locks:
    """The locks that members have been granted and have not begun to release."""

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
        """Drop all locks, which are in memory only."""
        self._held.clear()
