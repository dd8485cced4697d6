"""GroupConsumer: what both kinds of consumers have in common, as members of a group.

    CREATE_JUST ──start──▶ RUNNING ──shutdown──▶ SHUTDOWN_ALREADY
         └────────── start failed ──▶ START_FAILED

It registers with the client's instance (connections, routes, heartbeats), rebalances when the broker says
that the group has changed and every 20 s, persists offsets every 5 s, and answers what brokers ask of
consumers. What a share of queues means is the business of the kinds: `lite_pull_consumer`, `push_consumer`.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeVar

from rmq_spark.client.broker_api import BrokerApi
from rmq_spark.client.consumer.first_offset import FirstOffset
from rmq_spark.client.consumer.group_brokers import GroupBrokers
from rmq_spark.client.consumer.offset_table import OffsetStore
from rmq_spark.client.consumer.remote_offset_store import RemoteBrokerOffsetStore
from rmq_spark.client.consumer.scheduled_tasks import Repeated, ScheduledTasks
from rmq_spark.client.consumer.settings import ConsumerSettings
from rmq_spark.client.consumer.subscriptions import ALL, MessageSelector, by_tag, subscription_data
from rmq_spark.client.errors import ClientError, ClientShutDown
from rmq_spark.client.instance import ClientInstance
from rmq_spark.client.members import ConsumerMember
from rmq_spark.client.message import MessageExt
from rmq_spark.client.name_servers import NameServers
from rmq_spark.client.names import check_group
from rmq_spark.client.rebalance.rebalance import Rebalance, Share
from rmq_spark.client.routes import Routes
from rmq_spark.errors import RocketPollError
from rmq_spark.wire.bodies.clients import ConsumerData, ConsumeType, MessageModel, SubscriptionData
from rmq_spark.wire.command import CURRENT_VERSION
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import RETRY_PREFIX

if TYPE_CHECKING:
    from rmq_spark.wire.bodies.client_info import (
        ConsumeMessageDirectlyResult,
        ConsumerRunningInfo,
        ProcessQueueInfo,
    )

_log = logging.getLogger(__name__)

_Consumer = TypeVar("_Consumer", bound="GroupConsumer")

SHUTDOWN_MS = 2_000
"""Whatever is under way, `shutdown` comes back after so long."""

UNBALANCED_MS = 1_000
"""Until the next try, where a share could not be found out or taken over."""


class ServiceState(Enum):
    """Where in its life a consumer is."""

    CREATE_JUST = "was not started yet"
    RUNNING = "is running"
    START_FAILED = "could not be started: make a new one"
    SHUTDOWN_ALREADY = "was shut down: make a new one"


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


class GroupConsumer(ABC):
    """A member of a group. Its methods may be called from any thread."""

    consume_type: ConsumeType

    def __init__(
        self, group: str, instance: ConsumerInstance | str | None, settings: ConsumerSettings
    ) -> None:
        """The instance, or the addresses of name servers for one of its own (None: NAMESRV_ADDR)."""
        self.group = check_group(group)
        settings.check()
        self._settings = settings
        if instance is None or isinstance(instance, str):
            instance = _own_instance(instance, settings.message_model)
        self._instance: ConsumerInstance = instance
        self._state = ServiceState.CREATE_JUST
        self._changing_state = threading.Lock()
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._brokers = GroupBrokers(instance.api, instance.routes, group, instance.client_id)
        self._offset_store = self._new_offset_store()
        self._first_offset = FirstOffset(settings.consume_from_where, settings.consume_timestamp_ms)
        self._rule = Rebalance(
            instance.client_id, settings.message_model, settings.allocate_message_queue_strategy
        )
        self._services = ScheduledTasks(f"{group}-services", threads_max=3)
        self._rebalancing = Repeated(self._services, self._rebalance, settings.rebalance_interval_ms)
        self._persisting = Repeated(
            self._services, self._persist, settings.persist_consumer_offset_interval_ms
        )
        self._started_ms = 0
        self._is_registered = False

    def _new_offset_store(self) -> OffsetStore:
        if self._settings.message_model is MessageModel.BROADCASTING:
            from rmq_spark.client.consumer.local_offset_store import (  # noqa: PLC0415  # few consumers do
                LocalFileOffsetStore,
                offset_file,
            )

            directory = self._settings.local_offset_directory
            return LocalFileOffsetStore(offset_file(self._instance.client_id, self.group, directory))
        return RemoteBrokerOffsetStore(self._brokers.consumer_offset, self._brokers.update_consumer_offset)

    # ---- life

    @property
    def service_state(self) -> ServiceState:
        """Where in its life this consumer is."""
        return self._state

    @property
    def is_running(self) -> bool:
        """Whether it was started and not shut down."""
        return self._state is ServiceState.RUNNING

    def start(self) -> None:
        """Join the group, once.

        Raises:
            ClientShutDown: It was started before.
            ClientError: The brokers cannot be reached, or refuse the subscriptions.
        """
        with self._changing_state:
            if self._state is not ServiceState.CREATE_JUST:
                raise ClientShutDown(f"cannot start: the consumer {self._state.value}")
            self._state = ServiceState.START_FAILED
            try:
                self._offset_store.load()
                self._instance.start()
            except BaseException:
                self._services.stop(0)
                raise
            try:
                self._join()
            except BaseException:  # only now: a start that failed did not count, and is not to be taken back
                self._services.stop(0)
                if self._is_registered:  # otherwise somebody else may be, in this group
                    self._instance.unregister_consumer(self.group)
                self._instance.stop()
                raise
            self._started_ms = time.time_ns() // 1_000_000
            self._state = ServiceState.RUNNING
        self._persisting.start(self._settings.persist_consumer_offset_interval_ms)
        self._rebalancing.start(0)

    def _join(self) -> None:
        for subscription in self._subscriptions.values():
            if not subscription.topic.startswith(RETRY_PREFIX):  # the first heartbeat makes that one
                self._instance.routes.route(subscription.topic)
                self._brokers.check_subscription(subscription)
        self._instance.register_consumer(self.group, self)
        self._is_registered = True
        self._instance.heartbeat()

    def shutdown(self) -> None:
        """Leave the group: within two seconds, whatever is under way. What was acknowledged stays so."""
        with self._changing_state:
            if self._state is not ServiceState.RUNNING:
                return
            self._state = ServiceState.SHUTDOWN_ALREADY
        self._rebalancing.stop()
        self._persisting.stop()
        # A broker that does not answer must not keep anybody from ending.
        leaving = threading.Thread(target=self._leave, name=f"{self.group}-leaves", daemon=True)
        leaving.start()
        leaving.join(SHUTDOWN_MS / 1000)

    def _leave(self) -> None:
        try:
            self._stop_consuming()
            self._offset_store.persist_all(self._queues())
            self._instance.unregister_consumer(self.group)
        except RocketPollError as error:
            _log.warning("%s could not leave in order: %s", self.group, error)
        finally:
            self._services.stop(0)
            self._instance.stop()

    def _check_running(self) -> None:
        if self._state is not ServiceState.RUNNING:
            raise ClientShutDown(f"the consumer {self._state.value}")

    # ---- subscriptions

    def subscribe(self, topic: str, selector: MessageSelector | str = ALL) -> None:
        """Consume a topic: all of it, by tags (``red || blue``), or by a selector (`by_sql`)."""
        if isinstance(selector, str):
            selector = by_tag(selector)
        made_ms = time.time_ns() // 1_000_000
        self._subscriptions = {
            **self._subscriptions,
            topic: subscription_data(topic, selector, made_ms),
        }
        self._subscriptions_changed()

    def unsubscribe(self, topic: str) -> None:
        """Consume it no more."""
        self._subscriptions = {name: each for name, each in self._subscriptions.items() if name != topic}
        self._take_share(topic, Share((), ()))
        self._subscriptions_changed()

    def _subscriptions_changed(self) -> None:
        if self.is_running:
            for subscription in self._subscriptions.values():
                self._brokers.check_subscription(subscription)
            self._instance.heartbeat()
            self._rebalancing.wake()

    @property
    def topics(self) -> frozenset[str]:
        """Those that are subscribed to."""
        return frozenset(self._subscriptions)

    def consumer_data(self) -> ConsumerData:
        """What heartbeats say of this consumer."""
        return ConsumerData(
            group_name=self.group,
            consume_type=self.consume_type,
            message_model=self._settings.message_model,
            consume_from_where=self._settings.consume_from_where,
            subscription_data_set=tuple(self._subscriptions.values()),
        )

    # ---- rebalancing and offsets

    def _rebalance(self) -> int | None:
        balanced = True
        for topic in sorted(self._subscriptions):
            balanced &= self._rebalance_topic(topic)
        return None if balanced else UNBALANCED_MS

    def _rebalance_topic(self, topic: str) -> bool:
        try:
            share = self._rule.share(topic, self._brokers)
            if share is None:
                self._instance.heartbeat()
                return False
        except ClientError as error:
            _log.warning("%s keeps its queues of %s as they are: %s", self.group, topic, error)
            return False
        return topic not in self._subscriptions or not self.is_running or self._take_share(topic, share)

    def _persist(self) -> None:
        self._offset_store.persist_all(self._queues())

    @abstractmethod
    def _take_share(self, topic: str, share: Share) -> bool:
        """These queues of a topic are ours now, and no others; False: try again soon."""

    @abstractmethod
    def _queues(self) -> frozenset[MessageQueue]:
        """The queues that are ours."""

    @abstractmethod
    def _stop_consuming(self) -> None:
        """Pull nothing more, and put the last offsets into the store."""

    # ---- what brokers ask

    def rebalance_soon(self) -> None:
        """The group has changed."""
        if self.is_running:
            self._rebalancing.wake()

    def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """An operator wants the group to go on elsewhere: so it does, in the queues that are ours."""
        for queue, offset in offsets.items():
            if queue.topic == topic and offset >= 0 and self.is_running and self._go_on_at(queue, offset):
                _log.warning("%s: %s was reset to %d", self.group, queue, offset)
                self._offset_store.update_offset(queue, offset, increase_only=False)
                self._offset_store.persist(queue)

    @abstractmethod
    def _go_on_at(self, queue: MessageQueue, offset: int) -> bool:
        """Forget what is under way in a queue, and go on there; False if the queue is not ours."""

    def consume_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """How far this consumer has come in a topic, by what it has in memory."""
        return self._offset_store.offsets(topic)

    def running_info(self) -> ConsumerRunningInfo:
        """What operators are shown of this consumer."""
        from rmq_spark.wire.bodies.client_info import ConsumerRunningInfo  # noqa: PLC0415  # operators seldom ask

        return ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": ";".join(self._instance.name_servers.addresses),
                "PROP_CONSUME_TYPE": self.consume_type.name,
                "PROP_CLIENT_VERSION": f"V{CURRENT_VERSION}",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                **self._more_properties(),
            },
            subscription_set=tuple(self._subscriptions.values()),
            mq_table=self._queue_infos(time.time_ns() // 1_000_000),
        )

    @abstractmethod
    def consume_directly(self, message: MessageExt, broker_name: str) -> ConsumeMessageDirectlyResult:
        """Consume a message that an operator has sent."""

    def _more_properties(self) -> Mapping[str, str]:
        return {"PROP_CONSUMEORDERLY": "false", "PROP_THREADPOOL_CORE_SIZE": "0"}

    @abstractmethod
    def _queue_infos(self, now_ms: int) -> Mapping[MessageQueue, ProcessQueueInfo]:
        """The state of each queue."""

    def __enter__(self: _Consumer) -> _Consumer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def _own_instance(name_servers: str | None, message_model: MessageModel) -> ClientInstance:
    if message_model is MessageModel.CLUSTERING:
        return ClientInstance(name_servers)
    # Its offsets are kept by its id, and must be found again after a restart: the id names no process.
    found = ClientInstance(name_servers)
    return ClientInstance(name_servers, client_id=f"{found.local_address}@DEFAULT")
