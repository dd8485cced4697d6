"""AsyncSends: sends whose results come by futures, tried again where a connection fails.

    send ──> request ──> answered: the future has the result, or the refusal
                └─ connection fails ──> once more to another broker, by a thread of its own: whoever finds
                                        out that it failed has answers of others to read

So many may wait for answers at once; who wants to send more waits, and is told if that takes too long.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress

from rmq_spark.client.answers import sent
from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    BrokerNotFound,
    ClientError,
    MessageRejected,
    SendFailed,
    TooManyPending,
)
from rmq_spark.client.instance import ClientInstance
from rmq_spark.client.outgoing import Outgoing
from rmq_spark.client.queue_choice import QueueChoice
from rmq_spark.client.results import SendResult
from rmq_spark.client.waiters import Waiter
from rmq_spark.errors import RocketPollError
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.message_queue import MessageQueue

QueuesOf = Callable[[str], Sequence[MessageQueue]]


class AsyncSends:
    """See the module. All methods may be called from any thread."""

    def __init__(
        self,
        instance: ClientInstance,
        choice: QueueChoice,
        queues_of: QueuesOf,
        *,
        retries: int,
        pending_max: int,
    ) -> None:
        self.instance = instance
        self.choice = choice
        self.queues_of = queues_of
        self.retries = retries
        self._pending_max = pending_max
        # One for each that may wait: in C, unlike a semaphore.
        self._free: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(pending_max):
            self._free.put(None)
        self._again: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_running = False

    def start(self) -> None:
        """From now on what fails is tried again."""
        self._is_running = True
        threading.Thread(target=self._try_again, name="rocketpoll sends again", daemon=True).start()

    def stop(self) -> None:
        """What fails from now on has failed."""
        self._is_running = False
        self._again.put(None)

    def send(self, prepared: Outgoing, fixed: MessageQueue | None, timeout_ms: int) -> Future[SendResult]:
        """Send; to ``fixed``, if given, and then only once.

        Raises:
            TooManyPending: So many wait for answers that none was free within the time.
            MessageRejected: Nobody would read the answer.
        """
        if self.instance.connections.reads_itself:
            needed = "a ClientInstance whose connections are read by threads"
            raise MessageRejected("send_async", needed, "reads_itself=True")
        try:
            self._free.get(timeout=timeout_ms / 1000)
        except queue.Empty:
            raise TooManyPending(self._pending_max) from None
        send = _AsyncSend(self, prepared, fixed, timeout_ms)
        send.attempt()
        return send.future

    def has_ended(self) -> None:
        """One waits no more."""
        self._free.put(None)

    def may_try_again(self, attempt: Callable[[], None]) -> bool:
        """Have something tried again soon; not if this has stopped."""
        if not self._is_running:
            return False
        self._again.put(attempt)
        if not self._is_running:
            self._finish()
        return True

    def _try_again(self) -> None:
        while (attempt := self._again.get()) is not None:
            attempt()
        self._finish()

    def _finish(self) -> None:
        """What came last ends in some way, too."""
        with suppress(queue.Empty):
            while True:
                attempt = self._again.get_nowait()
                if attempt is not None:
                    attempt()


class _AsyncSend(Waiter):
    """One of them, and what waits for the answers to its tries."""

    def __init__(
        self, sends: AsyncSends, prepared: Outgoing, fixed: MessageQueue | None, timeout_ms: int
    ) -> None:
        super().__init__(RequestCode.SEND_MESSAGE_V2, timeout_ms, time.monotonic())
        self.future: Future[SendResult] = Future()
        self._sends = sends
        self._prepared = prepared
        self._fixed = fixed
        self._tries: list[ClientError] = []
        self._failed: str | None = None

    def attempt(self) -> None:
        """Send it, to a queue that has not failed."""
        sends, prepared = self._sends, self._prepared
        try:
            chosen = self._fixed or sends.choice.choose(sends.queues_of(prepared.topic), self._failed)
            self._failed = chosen.broker_name  # if it fails, that is
            self.asked_at = time.monotonic()
            self._address = sends.instance.routes.master_address(chosen.broker_name)
            self._header = prepared.header(chosen)
            sends.instance.api.send_to(self, self._address, self._header, prepared.body)
        except RocketPollError as error:
            self.failed(error)

    def answered(self, command: RemotingCommand) -> None:
        """It is stored, or refused."""
        result = sent(self._address, self.request_code, command, self._header, self._prepared.message_id)
        self._sends.choice.sent(self._header.broker_name or "", (time.monotonic() - self.asked_at) * 1000)
        self._sends.has_ended()
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(result)

    def failed(self, error: Exception) -> None:
        """Once more, or that was it."""
        if isinstance(error, (*CONNECTION_FAULTS, BrokerNotFound)) and self._fixed is None:
            self._tries.append(error)
            if self._failed is not None:
                self._sends.choice.failed(self._failed)
            is_over = time.monotonic() >= self.deadline or len(self._tries) > self._sends.retries
            if not is_over and self._sends.may_try_again(self.attempt):
                return
            error = SendFailed(self._prepared.topic, self._tries)
            error.__cause__ = self._tries[-1]
        self._sends.has_ended()
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)
