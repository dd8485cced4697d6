"""GroupLifecycle: a consumer joins its group once, and leaves it once.

    start ──> the instance starts ──> the consumer joins its group ──> it runs
    close ──> it leaves the group ──> the instance stops, if nobody else uses it

A signal handler or another thread may close a consumer at any time, even during `start`, which then
gives up. A consumer that has stopped cannot be started again.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Enum

from rmq_spark.client.arguments import check_topic, wrong_kind
from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.concurrency.lifecycle import SafeStop
from rmq_spark.client.errors import ClientShutDown
from rmq_spark.client.instance.instance import SHUTDOWN_MS, ClientInstance
from rmq_spark.client.namespace import Namespace
from rmq_spark.client.subscriptions import (
    MessageSelector,
    by_tag,
    check_selector,
    subscription_data,
)
from rmq_spark.errors import excerpt
from rmq_spark.wire.bodies.clients import SubscriptionData


class ServiceState(Enum):
    """State of a consumer; the values are phrases for error messages.

        CREATE_JUST ──start──▶ STARTING ──▶ RUNNING ──shutdown──▶ SHUTDOWN_ALREADY
                                  └── start failed ──▶ START_FAILED

    In a forked process, a consumer that was started before the fork is OF_THE_PARENT.
    """

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
        """Change to another state if the present one is ``expected``; return whether it was."""
        with self._state_lock:
            is_expected = self.state is expected
            if is_expected:
                self.state = new_state
        return is_expected

    def after_fork(self) -> None:
        """Become OF_THE_PARENT, if the consumer was started."""
        self._state_lock = threading.RLock()
        if self.state in {ServiceState.STARTING, ServiceState.RUNNING}:
            self.state = ServiceState.OF_THE_PARENT


class GroupLifecycle(ForkAware, ABC):
    """The start and the end of a consumer. All methods may be called from any thread."""

    def __init__(
        self,
        group: str,
        namesrv: str | Iterable[str] | None,
        instance: ClientInstance | None,
        namespace: str | None,
    ) -> None:
        """Create the parts; the caller has checked the ``group``.

        Subclasses call `ForkAware.__init__` last, because a fork may come at any time.
        """
        is_instance = hasattr(instance, "register_consumer") and not isinstance(instance, type)
        if instance is not None and not is_instance:
            example = "ClientInstance('localhost:9876')"
            raise wrong_kind("instance", "a ClientInstance", excerpt(instance), example)
        Namespace.check_unshared(namespace, instance, "instance")
        self._private_instance: ClientInstance | None = None
        if instance is None:
            instance = self._private_instance = ClientInstance(namesrv, namespace=namespace)
        self._instance: ClientInstance = instance
        self._full_group = instance.namespace.wrap(group)
        self._subscriptions: dict[str, SubscriptionData] = {}  # replaced, never modified
        self._subscriptions_lock = threading.Lock()
        self._state_machine = ServiceStateMachine()
        self._safe_stop = self._new_safe_stop()
        self._is_registered = self._has_joined = False

    @abstractmethod
    def _join_group(self) -> None:
        """Register with the instance, set `_is_registered`, and make the group known to brokers."""

    @abstractmethod
    def _leave_group(self) -> None:
        """Leave the group, if `_has_joined`, and stop the instance."""

    def _prepare_start(self) -> None:
        """Load what the consumer needs before it joins."""

    def _abandon_start(self) -> None:
        """Clean up after a failed start."""

    def _new_safe_stop(self) -> SafeStop:
        return SafeStop(f"{self._full_group} leaves", self._leave_group, SHUTDOWN_MS / 1000)

    @property
    def is_running(self) -> bool:
        """True if the consumer was started in this process, and it and its instance still run."""
        return self._state_machine.state is ServiceState.RUNNING and not self._instance.is_shut_down

    def _check_running(self) -> None:
        if self._state_machine.state is not ServiceState.RUNNING:
            raise ClientShutDown(f"the consumer {self._state_machine.state.value}")
        if self._instance.is_shut_down:
            raise ClientShutDown("the instance of the consumer was shut down: make a new one")

    def _new_subscription(self, topic: str, selector: MessageSelector | str) -> SubscriptionData:
        selector = by_tag(selector) if isinstance(selector, str) else selector
        check_selector(selector)
        topic = self._instance.namespace.wrap(check_topic(topic))
        return subscription_data(topic, selector, time.time_ns() // 1_000_000)

    def _set_subscription(self, data: SubscriptionData) -> SubscriptionData | None:
        """Subscribe to a topic; return the subscription that this replaces, if any."""
        with self._subscriptions_lock:
            before = self._subscriptions.get(data.topic)
            self._subscriptions = {**self._subscriptions, data.topic: data}
        return before

    def _remove_subscription(self, topic: str) -> None:
        with self._subscriptions_lock:
            known = self._subscriptions.items()
            self._subscriptions = {name: each for name, each in known if name != topic}

    def _start(self) -> None:
        if not self._state_machine.compare_and_set(ServiceState.CREATE_JUST, ServiceState.STARTING):
            raise ClientShutDown(f"cannot start: the consumer {self._state_machine.state.value}")
        try:
            self._prepare_start()
            self._instance.start()
            try:
                self._join_group()
            except BaseException:  # nested: an instance that failed to start needs no `stop`
                if self._is_registered:  # otherwise the group may belong to another consumer
                    self._instance.unregister_consumer(self._full_group)
                self._instance.stop()
                raise
            self._has_joined = True
        except BaseException:
            self._abandon_start()
            self._state_machine.compare_and_set(ServiceState.STARTING, ServiceState.START_FAILED)
            raise
        if not self._state_machine.compare_and_set(ServiceState.STARTING, ServiceState.RUNNING):
            self._safe_stop.run()
            raise ClientShutDown("the consumer was shut down while it was being started")

    def _shut_down(self) -> None:
        if self._state_machine.compare_and_set(
            ServiceState.STARTING, ServiceState.SHUTDOWN_ALREADY
        ):
            if self._private_instance is not None:
                self._private_instance.shutdown()  # so that `start` does not wait for brokers
            return
        self._state_machine.compare_and_set(ServiceState.RUNNING, ServiceState.SHUTDOWN_ALREADY)
        is_over = self._state_machine.state is ServiceState.SHUTDOWN_ALREADY
        if is_over and self._has_joined:  # otherwise a running `start` leaves the group
            self._safe_stop.run()

    def _after_fork(self) -> None:
        """Leave a started consumer to the parent process; in the child it does nothing."""
        self._state_machine.after_fork()
        self._subscriptions_lock = threading.Lock()
        # A shutdown that was requested and had not begun belongs to the parent as well.
        self._has_joined = False
        self._safe_stop = self._new_safe_stop()
