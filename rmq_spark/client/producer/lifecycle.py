"""ProducerLife: from the start of a producer to its end, as often as it is started again.

    made ──start──▶ running ──shutdown──▶ ended ──start──▶ running
                       └── forked: in the child it starts again when it is first used

A signal may interrupt whoever waits for a start or an end, at any line: a start is then taken back,
and an end carried out. It may ask for the end itself, also in the midst of a start. What the
producer sends is not known here.
"""

from __future__ import annotations

from rmq_spark.client.concurrency.lifecycle import Beginning, Ending
from rmq_spark.client.concurrency.locks import reentrant_mutex
from rmq_spark.client.errors import ClientShutDown
from rmq_spark.client.instance.callbacks import ProducerMember
from rmq_spark.client.instance.instance import SHUTDOWN_MS, ClientInstance
from rmq_spark.client.producer.async_send import AsyncSends


class ProducerLife:
    """The life of one producer. Methods may be called from any thread, and by signal handlers."""

    def __init__(
        self,
        group: str,
        instance: ClientInstance,
        member: ProducerMember | None,
        async_sends: AsyncSends,
    ) -> None:
        """Take what starts and ends with the producer; ``member`` answers brokers."""
        self._group = group
        self._instance = instance
        self._member = member
        self._async_sends = async_sends
        self._is_running = False
        self._has_to_start_again = False
        self._changing = reentrant_mutex()
        self._ending = self._new_ending()
        self._leaving: Ending | None = None

    def _new_ending(self) -> Ending:
        return Ending(f"{self._group} ends", self._end, SHUTDOWN_MS / 1000)

    @property
    def is_running(self) -> bool:
        """True if the producer was started in this process, and it and its instance still run."""
        return self._is_running and not self._instance.is_shut_down

    def check_runs(self) -> None:
        """Raise `ClientShutDown` unless the producer runs; start one that the parent has started.

        Its instance may have ended: that is the error of whatever is asked of it.
        """
        if self._has_to_start_again:
            self.start()
        if not self._is_running:
            raise ClientShutDown(
                "the producer does not run: start it, or use it in a with statement"
            )

    def start(self) -> None:
        """Start, unless it runs.

        Raises:
            MessageRejected: Another producer of the instance has the same group.
            ClientShutDown: The instance was shut down.
        """
        if not self._is_running:
            Beginning(f"{self._group} starts", self._start, self.shutdown).run()

    def _start(self) -> None:
        with self._changing:
            if self._is_running:
                return
            self._instance.start()
            try:
                self._instance.register_producer(self._group, self._member)
            except BaseException:
                self._instance.stop()
                raise
            self._async_sends.start()
            self._ending = self._new_ending()
            self._has_to_start_again = False
            self._is_running = True

    def shutdown(self) -> None:
        """End, within two seconds; again has no effect but to wait for the first."""
        self._has_to_start_again = False
        if self._is_running:
            # Noted first: who is interrupted behind this can ask again.
            self._leaving = self._ending
            self._is_running = False
        if self._leaving is not None:
            self._leaving.run()

    def _end(self) -> None:
        self._async_sends.stop()
        self._instance.unregister_producer(self._group)
        self._instance.stop()

    def forked(self) -> None:
        """Let a producer that was running start again when the child process first uses it."""
        self._has_to_start_again |= self._is_running
        self._is_running = False
        self._leaving = None
        self._changing = reentrant_mutex()
