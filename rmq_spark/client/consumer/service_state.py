"""Where in its life a consumer is, and the client that it lives in.

    CREATE_JUST ──start──▶ STARTING ──▶ RUNNING ──shutdown──▶ SHUTDOWN_ALREADY
                              └── start failed ──▶ START_FAILED

In a process that was forked a consumer that had been started is OF_THE_PARENT. It knows no consumer.
"""

from __future__ import annotations

import threading
from enum import Enum
from typing import Protocol

from rmq_spark.client.broker_api import BrokerApi
from rmq_spark.client.instance import ClientInstance
from rmq_spark.client.members import ConsumerMember
from rmq_spark.client.name_servers import NameServers
from rmq_spark.client.routes import Routes
from rmq_spark.wire.bodies.clients import MessageModel


class ServiceState(Enum):
    """Where in its life a consumer is."""

    CREATE_JUST = "was not started yet"
    STARTING = "is being started"
    RUNNING = "is running"
    START_FAILED = "could not be started: make a new one"
    SHUTDOWN_ALREADY = "was shut down: make a new one"
    OF_THE_PARENT = "was started before this process was forked: make a new one here"


class Life:
    """The state of one consumer. Signal handlers may change it, also in the midst of a change."""

    def __init__(self) -> None:
        self.state = ServiceState.CREATE_JUST
        self._changing = threading.RLock()

    def change(self, before: ServiceState, after: ServiceState) -> bool:
        """Go from one state to another; whether it was the first of them."""
        with self._changing:
            is_so = self.state is before
            if is_so:
                self.state = after
        return is_so

    def forked(self) -> None:
        """Be the parent's, if it had begun."""
        self._changing = threading.RLock()
        if self.state in {ServiceState.STARTING, ServiceState.RUNNING}:
            self.state = ServiceState.OF_THE_PARENT


class ConsumerInstance(Protocol):
    """What several clients of a process share, as consumers need it."""

    @property
    def client_id(self) -> str:
        """Who this is, among the members of a group."""

    @property
    def name_servers(self) -> NameServers:
        """Who knows where topics are."""

    @property
    def api(self) -> BrokerApi:
        """To ask brokers."""

    @property
    def routes(self) -> Routes:
        """Where topics are."""

    @property
    def is_shut_down(self) -> bool:
        """Whether it has ended, for all of its users."""

    def start(self) -> None:
        """One more user; the first one starts it."""

    def stop(self) -> None:
        """One user fewer; the last one ends it."""

    def register_consumer(self, group: str, consumer: ConsumerMember, /) -> None:
        """Heartbeats name it, and brokers' requests reach it, from now on."""

    def unregister_consumer(self, group: str, /) -> None:
        """Tell all brokers that it leaves its group."""

    def heartbeat(self) -> None:
        """Tell all brokers now what has changed."""


def own_instance(name_servers: str | None, message_model: MessageModel) -> ClientInstance:
    """A client for one consumer alone."""
    if message_model is MessageModel.CLUSTERING:
        return ClientInstance(name_servers)
    # Its offsets are kept by its id, and must be found again after a restart: the id names no process.
    found = ClientInstance(name_servers)
    return ClientInstance(name_servers, client_id=f"{found.local_address}@DEFAULT")
