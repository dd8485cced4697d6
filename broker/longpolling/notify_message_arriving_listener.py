"""NotifyMessageArrivingListener: passes arrivals from the store to the held pulls.

It implements the store's `MessageArrivingListener`, and is the only link between the two rooms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from .pull_request_hold_service import PullRequestHoldService


class NotifyMessageArrivingListener:
    """A listener that passes arrivals on to the hold service and to others."""

    def __init__(
        self,
        hold_service: PullRequestHoldService,
        on_arrival: Callable[[str, int], None],
    ) -> None:
        """Take the listeners; ``on_arrival`` gets topic and queue."""
        self._hold_service = hold_service
        self._on_arrival = on_arrival

    def arriving(
        self, topic: str, queue_id: int, max_offset: int, tags_codes: Collection[int] | None
    ) -> None:
        """Report that a queue now ends at ``max_offset``, with the tags codes of all new messages.

        None for the codes means any.
        """
        self._hold_service.notify_message_arriving(topic, queue_id, max_offset, tags_codes)
        self._on_arrival(topic, queue_id)
