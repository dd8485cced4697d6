"""ServiceState: the lifecycle state of a consumer; ConsumerInstance: the client that it needs.

    CREATE_JUST ──start──▶ STARTING ──▶ RUNNING ──shutdown──▶ SHUTDOWN_ALREADY
                              └── start failed ──▶ START_FAILED

In a forked process, a consumer that was started before the fork is OF_THE_PARENT.
"""

from __future__ import annotations

import threading
from enum import Enum
from typing import Protocol

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.api.name_servers import NameServers
from rmq_spark.client.instance.instance import RegisteredConsumer
from rmq_spark.client.instance.routes import Routes


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
        self._state_lock = threading.RLock()

    def compare_and_set(self, expected: ServiceState, new_state: ServiceState) -> bool:
        """Change from one state to another; return False if the first is not the present one."""
        with self._state_lock:
            is_so = self.state is expected
            if is_so:
                self.state = new_state
        return is_so

    def after_fork(self) -> None:
        """Become OF_THE_PARENT, if the consumer was started."""
        self._state_lock = threading.RLock()
        if self.state in {ServiceState.STARTING, ServiceState.RUNNING}:
            self.state = ServiceState.OF_THE_PARENT


class ConsumerInstance(Protocol):
    """The part of a `ClientInstance` that consumers need."""

    @property
    def client_id(self) -> str:
        """Name of this client among the members of a group."""

    @property
    def lasting_id(self) -> str:
        """Name that this client keeps when its program is restarted."""

    @property
    def name_servers(self) -> NameServers:
        """Name servers, which know the routes of topics."""

    @property
    def api(self) -> BrokerApi:
        """The requests to brokers."""

    @property
    def routes(self) -> Routes:
        """The routes of topics."""

    @property
    def is_shut_down(self) -> bool:
        """True if the instance has ended, for all of its users."""

    @property
    def thread_count(self) -> int:
        """Number of threads that are alive: for routes, heartbeats and connections."""

    def start(self) -> None:
        """Add a user; the first one starts the instance."""

    def stop(self) -> None:
        """Remove a user; the last one ends the instance."""

    def register_consumer(self, group: str, consumer: RegisteredConsumer, /) -> None:
        """Include a consumer in heartbeats, and pass brokers' requests to it, from now on."""

    def unregister_consumer(self, group: str, /) -> None:
        """Unregister this client from a group at all brokers."""

    def heartbeat(self) -> None:
        """Send a heartbeat to all brokers now."""
