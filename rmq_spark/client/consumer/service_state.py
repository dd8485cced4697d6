"""ServiceState: the lifecycle state of a consumer.

    CREATE_JUST ──start──▶ STARTING ──▶ RUNNING ──shutdown──▶ SHUTDOWN_ALREADY
                              └── start failed ──▶ START_FAILED

In a forked process, a consumer that was started before the fork is OF_THE_PARENT.
"""

from __future__ import annotations

from enum import Enum

from rmq_spark.client.concurrency.locks import reentrant_mutex


class ServiceState(Enum):
    """State of a consumer; the values are phrases for error messages."""

    CREATE_JUST = "was not started yet"
    STARTING = "is being started"
    RUNNING = "is running"
    START_FAILED = "could not be started: make a new one"
    SHUTDOWN_ALREADY = "was shut down: make a new one"
    OF_THE_PARENT = "was started before this process was forked: make a new one here"


class ServiceStateMachine:
    """The state of one consumer. Signal handlers may change it, even during a change."""

    def __init__(self) -> None:
        self.state = ServiceState.CREATE_JUST
        self._state_lock = reentrant_mutex()

    def compare_and_set(self, expected: ServiceState, new_state: ServiceState) -> bool:
        """Change from one state to another; return False if the first is not the present one."""
        with self._state_lock:
            is_so = self.state is expected
            if is_so:
                self.state = new_state
        return is_so

    def after_fork(self) -> None:
        """Become OF_THE_PARENT, if the consumer was started."""
        self._state_lock = reentrant_mutex()
        if self.state in {ServiceState.STARTING, ServiceState.RUNNING}:
            self.state = ServiceState.OF_THE_PARENT
