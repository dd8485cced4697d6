"""NotifyMessageArrivingListener: the only link from the store to the pulls that wait.

The store knows its own `MessageArrivingListener` and nothing of this room; this is one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rocketpoll.broker.longpolling.pull_request_hold_service import PullRequestHoldService


class NotifyMessageArrivingListener:
    """Passes arrivals on."""

    def __init__(
        self,
        hold_service: PullRequestHoldService,
        others: Callable[[str, int], None],
    ) -> None:
        """``others`` is told topic and queue, too: deliveries of delayed messages wait for arrivals."""
        self._hold_service = hold_service
        self._others = others

    def arriving(self, topic: str, queue_id: int, max_offset: int, tags_codes: Sequence[int]) -> None:
        """The queue ends there now; these are the codes of all that is new."""
        self._hold_service.notify_message_arriving(topic, queue_id, max_offset, tags_codes)
        self._others(topic, queue_id)
