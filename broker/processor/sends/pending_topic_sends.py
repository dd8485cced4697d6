"""PendingTopicSends: holds sends until their topic is on the disk.

    suspend       a send needs a topic that is not saved: suspend it before anything is stored;
                  topics are saved in another thread, once for all that wait by then
    resume        dispatch them again, those of a topic in the order of arrival; or refuse them, if
                  the save failed
    refuse_all    the broker stops

So the topic of an acknowledged message still exists after a crash. A send to a topic for which
others wait is queued after them. A send whose client has gone is dropped, unless it is one-way and
its sender expects no response.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.remoting.command import RemotingCommand

from ...common.channel import BackgroundSteps, Channel
from ..processor import BrokerParts
from ..request import reply, size_of

BYTES_MAX: Final = 64 << 20
"""The maximum bytes of waiting sends with their fields: four sends of maximum size, or all that
arrive while topics are saved.
"""
DISPATCHED_PER_STEP: Final = 50
"""The number of sends written together in one step, which takes about a millisecond."""

_log = logging.getLogger(__name__)


class _SuspendedSend(NamedTuple):
    connection: Channel
    request: RemotingCommand
    size: int


class PendingTopicSends:
    """Sends that wait until the topic that they need is on the disk, by topic."""

    def __init__(
        self,
        broker: BrokerParts,
        dispatch: Callable[[Channel, RemotingCommand], BackgroundSteps | None],
        end_turn: Callable[[], None],
    ) -> None:
        """Store the parts.

        ``dispatch`` dispatches a request again; it answers the request or returns the steps that
        do. ``end_turn`` is called after several requests.
        """
        self._topics = broker.topics
        self._dispatch = dispatch
        self._end_turn = end_turn
        self._run_in_thread = broker.run_in_thread
        self._run_steps = broker.run_steps
        self._capacity = broker.config.send_queue_capacity
        self._waiting: dict[str, deque[_SuspendedSend]] = {}
        self._count = self._bytes = 0
        self._is_saving = False
        self._resuming_topic: str | None = None
        self._stop_reason: str | None = None

    def must_wait(self, config: TopicConfig) -> bool:
        """Return whether messages to a topic must wait for its save, or after waiting messages."""
        topic = config.topic_name
        if topic in self._waiting and topic != self._resuming_topic:
            return True
        return not self._topics.is_saved(config)

    def has(self, topic: str) -> bool:
        """Return whether sends wait for a topic; later ones then queue after them."""
        return topic in self._waiting

    def suspend(
        self, connection: Channel, request: RemotingCommand, topic: str
    ) -> RemotingCommand | None:
        """Suspend a send until a topic is saved; return None, or a refusal."""
        if self._stop_reason is not None:
            return request.respond(ResponseCode.SERVICE_NOT_AVAILABLE, self._stop_reason)
        size = size_of(request)
        if self._count >= self._capacity or self._bytes + size > BYTES_MAX:
            remark = f"[REJECTREQUEST]system busy, {self._count} sends wait for topics to be saved"
            return request.respond(ResponseCode.SYSTEM_BUSY, remark)
        self._count += 1
        self._bytes += size
        # a body is a view, which would keep the whole receive buffer
        suspended = _SuspendedSend(connection, request._replace(body=bytes(request.body)), size)
        sends = self._waiting.setdefault(topic, deque())
        if topic == self._resuming_topic:  # a resumed send stays the first
            sends.appendleft(suspended)
        else:
            sends.append(suspended)
        if not self._is_saving:
            self._is_saving = True
            self._save()
        return None

    def refuse_all(self, reason: str) -> None:
        """Refuse all waiting sends, and all that would wait later, because the broker stops."""
        self._stop_reason = reason
        waiting, self._waiting = self._waiting, {}
        for _ in self._refuse(waiting, lambda _: reason):
            pass

    def _save(self) -> None:
        self._run_in_thread(self._topics.save, self._saved)

    def _saved(self, error: BaseException | None) -> None:
        self._run_steps(self._resume_saved() if error is None else self._refuse_failed(error))

    def _refuse_failed(self, error: BaseException) -> Iterator[None]:
        """Refuse, in steps, the sends that waited for a failed save."""
        waiting, self._waiting = self._waiting, {}
        yield from self._refuse(
            waiting, lambda topic: f"the topic {topic} could not be saved: {error}"
        )
        self._save_remaining()

    def _resume_saved(self) -> BackgroundSteps:
        for topic, sends in tuple(self._waiting.items()):
            yield from self._resume_topic(topic, sends)
        self._save_remaining()

    def _save_remaining(self) -> None:
        if self._waiting:  # sends that came after that save had begun
            self._save()
        else:
            self._is_saving = False

    def _resume_topic(self, topic: str, sends: deque[_SuspendedSend]) -> BackgroundSteps:
        """Dispatch a topic's sends in order, up to one that has to wait again."""
        while sends:
            steps = None
            for _ in range(min(len(sends), DISPATCHED_PER_STEP)):
                behind = len(sends) - 1
                self._resuming_topic = topic
                steps = self._redispatch(self._pop(sends))
                self._resuming_topic = None
                if steps is not None or len(sends) > behind:
                    break
            self._end_turn()
            if len(sends) > behind:
                return
            if steps is not None:
                yield from self._resume_steps(topic, steps)
            yield None
        self._waiting.pop(topic, None)

    def _resume_steps(self, topic: str, steps: BackgroundSteps) -> BackgroundSteps:
        """Run the steps of a send, which must not wait for its topic again."""
        while True:
            self._resuming_topic = topic
            try:
                awaited = next(steps)
            except StopIteration:
                return
            finally:
                self._resuming_topic = None
            yield awaited

    def _redispatch(self, send: _SuspendedSend) -> BackgroundSteps | None:
        connection, request, _ = send
        if connection.is_closed and not request.is_one_way:
            return None
        try:
            return self._dispatch(connection, request)
        except Exception:  # noqa: BLE001  # an error in one must not keep the others waiting
            _log.exception("a send that waited for its topic could not be answered")
            connection.close("its send could not be answered")
            return None

    def _refuse(
        self, waiting: Mapping[str, deque[_SuspendedSend]], remark_of: Callable[[str], str]
    ) -> Iterator[None]:
        for topic, sends in waiting.items():
            while sends:
                connection, request, _ = self._pop(sends)
                refusal = request.respond(ResponseCode.SERVICE_NOT_AVAILABLE, remark_of(topic))
                reply(connection, request, refusal)
                yield

    def _pop(self, sends: deque[_SuspendedSend]) -> _SuspendedSend:
        suspended = sends.popleft()
        self._count -= 1
        self._bytes -= suspended.size
        return suspended
