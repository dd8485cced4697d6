"""Sizes of all topics: asked for one after the other in a thread, as there may be thousands.

Who asks gets what is known so far. This module must not know how it is shown.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq_spark.client.admin.topic_sizes import TopicSize
from rmq_spark.client.errors import ClientError, RouteNotFound

if TYPE_CHECKING:
    from rmq_spark.client.admin.admin import Admin

KEPT_SECONDS: Final = 30.0
PATIENCE_SECONDS: Final = 0.5
_log = logging.getLogger(__name__)


class Known(NamedTuple):
    """The sizes that are known so far.

    Attributes:
        sizes: Sizes by topic.
        is_whole: Whether all topics have been asked for.
        error: What ended the look before its end, or None.
    """

    sizes: Mapping[str, TopicSize]
    is_whole: bool
    error: ClientError | None


class TopicSizes:
    """Looks at the sizes of topics in a thread, when somebody wants to know them."""

    def __init__(self, admin: Admin, now: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing known; ``now`` returns the monotonic clock in seconds."""
        self._admin = admin
        self._now = now
        self._lock = threading.Lock()
        self._is_done = threading.Event()
        self._is_over = threading.Event()
        self._began: float | None = None
        self._known: dict[str, TopicSize] = {}
        self._error: ClientError | None = None

    def of(self, topics: Sequence[str]) -> Known:
        """Return the sizes that are known, and look again if they are old."""
        with self._lock:
            is_old = self._began is None or (
                self._is_done.is_set() and self._now() - self._began > KEPT_SECONDS
            )
            if is_old:
                self._began = self._now()
                self._is_done.clear()
                self._error = None
                threading.Thread(
                    target=self._look, args=(list(topics),), name="TopicSizes", daemon=True
                ).start()
        self._is_done.wait(PATIENCE_SECONDS)
        with self._lock:
            return Known(dict(self._known), self._is_done.is_set(), self._error)

    def stop(self) -> None:
        """Ask for no more topics."""
        self._is_over.set()

    def _look(self, topics: Sequence[str]) -> None:
        try:
            for topic in topics:
                if self._is_over.is_set():
                    return
                try:
                    size = self._admin.topic_size(topic)
                except RouteNotFound:  # deleted since, or a topic of the broker's without a route
                    continue
                with self._lock:
                    self._known[topic] = size
        except ClientError as error:
            self._error = error
        except Exception:  # noqa: BLE001  # whatever it is, the next look may do better
            _log.exception("the sizes of topics cannot be read")
        finally:
            with self._lock:
                for gone in self._known.keys() - set(topics):
                    del self._known[gone]
            self._is_done.set()
