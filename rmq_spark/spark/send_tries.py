"""The tries of a sink's requests: for what is waited, for how long, and what the last one says.

    a try fails ──> the broker is away or busy ──> pause, look for its route, try again
               └──> it refuses, or was away for `retry_timeout_ms` ──> WriteError, with the remedy

It must not know what is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.client.errors import (
    BrokerRefused,
    ClientError,
    MessageIllegal,
    NoPermission,
    RouteNotFound,
    SendFailed,
    SystemBusy,
    TopicNotFound,
    TopicNotUsable,
)
from rmq_spark.client.producer.producer import Producer
from rmq_spark.errors import RocketPollError
from rmq_spark.spark.access import Access
from rmq_spark.spark.asking import AWAY
from rmq_spark.spark.errors import WriteError
from rmq_spark.spark.patience import Patience
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 0.5
PAUSE_SECONDS_MAX: Final = 5.0

Remedies: TypeAlias = "Sequence[tuple[type[ClientError] | tuple[type[ClientError], ...], str]]"
"""Errors and what a user can do about them; of several that fit, the first counts."""

_CREATE: Final = "create the topic, as with mqadmin updateTopic -n ADDRESS -c CLUSTER -t TOPIC"
REMEDIES: Final[Remedies] = (
    (
        MessageIllegal,
        (
            "if it is too large: set option maxMessageBytes to the broker's maxMessageSize, and "
            "shorten longer bodies or raise maxMessageSize"
        ),
    ),
    (
        (NoPermission, TopicNotUsable),
        "let the topic be written (perm 6), or the user of option accessKey write to it",
    ),
    (TopicNotFound, _CREATE),
    (RouteNotFound, _CREATE),
    (SystemBusy, "write with fewer tasks, as by coalesce(), or raise option retryTimeoutMs"),
    (
        AWAY,
        (
            "see that brokers and name servers of option namesrvAddr run, or raise option "
            "retryTimeoutMs"
        ),
    ),
)


class SendTries:
    """The tries of one task's requests. ``stored_rows`` is what its errors say is stored."""

    def __init__(
        self,
        access: Access,
        producer: Producer,
        where: str,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        remedies: Remedies = REMEDIES,
    ) -> None:
        """Prepare; ``where`` is what errors begin with."""
        self.stored_rows = 0
        self.retries = 0
        """The pauses so far, after each of which something was tried again."""
        self._longest: tuple[int, int] | None = None
        self._producer = producer
        self._where = where
        self._remedies = remedies
        self._patience = Patience(
            access.retry_timeout_ms,
            clock,
            sleep,
            pause_seconds=PAUSE_SECONDS,
            pause_seconds_max=PAUSE_SECONDS_MAX,
        )

    def queues_of(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues that a topic's messages may go to, once a name server tells."""
        while True:
            try:
                return self._producer.publish_queues(topic)
            except RocketPollError as error:  # noqa: PERF203  # asked again
                self.wait_after(error, topic)

    def note_rows(self, numbers: pa.Array, bodies: pa.Array) -> None:
        """Note the longest body: of rows that a broker refuses, it is one that is too long."""
        lengths = pc.binary_length(bodies)
        longest = pc.max(lengths).as_py()
        if longest is not None and (self._longest is None or longest > self._longest[1]):
            self._longest = numbers[pc.index(lengths, longest).as_py()].as_py(), longest

    def reset(self) -> None:
        """Note a success: the next failure counts as a first one."""
        self._patience.reset()

    def wait_after(self, error: RocketPollError, topic: str, first_row: int | None = None) -> None:
        """Pause before the rows of a topic from ``first_row`` on are sent again.

        Raises:
            WriteError: A retry is of no use, or no longer.
        """
        cause = _cause(error)
        is_away = self._is_away(cause, topic)
        if is_away:
            _log.warning(
                "%s: what is left for %s is sent again when it can be: %s",
                self._where,
                topic,
                error,
            )
        if not is_away or not self._patience.pause():
            raise self._failure(error, first_row) from error
        self.retries += 1
        routes = self._producer.instance.routes
        try:
            routes.refresh(topic)
        except ClientError as refusal:
            _log.warning("the route of %s stays as it is: %s", topic, refusal)

    def _is_away(self, cause: RocketPollError, topic: str) -> bool:
        """Return whether a retry may succeed; routes may be missing while a broker restarts."""
        if isinstance(cause, RouteNotFound):
            return topic in self._producer.instance.routes.topics
        if isinstance(cause, BrokerRefused) and cause.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            return True
        return isinstance(cause, AWAY)

    def _failure(self, error: RocketPollError, first_row: int | None) -> WriteError:
        cause = _cause(error)
        remedy = next((text for kind, text in self._remedies if isinstance(cause, kind)), None)
        stored = self.stored_rows
        whereabouts = self._where
        if isinstance(cause, MessageIllegal) and self._longest is not None:
            row, size = self._longest
            whereabouts += f", the longest body is that of row {row}, with {size} bytes"
        elif first_row is not None:
            whereabouts += f", row {first_row} or after it"
        return WriteError(
            f"{whereabouts}: {error}"
            + (f"; {remedy}" if remedy else "")
            + (
                f". {stored} rows of this partition are stored and stay"
                if stored or first_row is not None
                else ""
            )
        )


def _cause(error: RocketPollError) -> RocketPollError:
    """Return the error of the last try."""
    return error.tries[-1] if isinstance(error, SendFailed) and error.tries else error
