"""ProducerLifecycle: starts and stops a producer, any number of times.

    made ──start──▶ running ──shutdown──▶ stopped ──start──▶ running
                       └── forked: in the child it starts again on first use

A signal may interrupt a start or a shutdown at any line: the start is then rolled back, and the
shutdown completed. The signal handler may call `shutdown` itself, even in the middle of a start.
"""

from __future__ import annotations

from rmq_spark.client.concurrency.lifecycle import SafeStart, SafeStop
from rmq_spark.client.concurrency.locks import reentrant_mutex
from rmq_spark.client.errors import ClientShutDown
from rmq_spark.client.instance.callbacks import RegisteredProducer
from rmq_spark.client.instance.instance import SHUTDOWN_MS, ClientInstance
from rmq_spark.client.producer.async_sender import AsyncSender


class ProducerLifecycle:
    """The lifecycle of one producer. Any thread and any signal handler may call its methods."""

    def __init__(
        self,
        group: str,
        instance: ClientInstance,
        member: RegisteredProducer | None,
        async_sends: AsyncSender,
    ) -> None:
        """Set what starts and stops with the producer; ``member`` answers brokers' requests."""
        self._group = group
        self._instance = instance
        self._member = member
        self._async_sends = async_sends
        self._is_running = False
        self._restarts_after_fork = False
        self._state_lock = reentrant_mutex()
        self._safe_stop = self._new_safe_stop()
        self._current_stop: SafeStop | None = None

    def _new_safe_stop(self) -> SafeStop:
        return SafeStop(f"{self._group} ends", self._stop, SHUTDOWN_MS / 1000)

    @property
    def is_running(self) -> bool:
        """True if the producer was started in this process, and it and its instance still run."""
        return self._is_running and not self._instance.is_shut_down

    def check_running(self) -> None:
        """Raise `ClientShutDown` unless the producer runs; in a child, restart the parent's.

        If its instance has stopped, later requests raise that error.
        """
        if self._restarts_after_fork:
            self.start()
        if not self._is_running:
            raise ClientShutDown(
                "the producer does not run: start it, or use it in a with statement"
            )

    def start(self) -> None:
        """Start the producer, unless it runs.

        Raises:
            MessageRejected: Another producer of the instance has the same group.
            ClientShutDown: The instance was shut down.
        """
        if not self._is_running:
            SafeStart(f"{self._group} starts", self._start, self.shutdown).run()

    def _start(self) -> None:
        with self._state_lock:
            if self._is_running:
                return
            self._instance.start()
            try:
                self._instance.register_producer(self._group, self._member)
            except BaseException:
                self._instance.stop()
                raise
            self._async_sends.start()
            self._safe_stop = self._new_safe_stop()
            self._restarts_after_fork = False
            self._is_running = True

    def shutdown(self) -> None:
        """Stop within two seconds; stopping again only waits for the first stop."""
        self._restarts_after_fork = False
        if self._is_running:
            # Noted first: who is interrupted behind this can ask again.
            self._current_stop = self._safe_stop
            self._is_running = False
        if self._current_stop is not None:
            self._current_stop.run()

    def _stop(self) -> None:
        self._async_sends.stop()
        self._instance.unregister_producer(self._group)
        self._instance.stop()

    def after_fork(self) -> None:
        """Make a producer that was running start again on first use in the child process."""
        self._restarts_after_fork |= self._is_running
        self._is_running = False
        self._current_stop = None
        self._state_lock = reentrant_mutex()
