"""Processors: builds every request processor from the parts of the broker, with one dispatcher."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from rmq_spark.wire.remoting.command import RemotingCommand

from ..common.channel import BackgroundSteps, Channel, ResponseSteps
from ..longpolling.pop_request import PopRequest
from ..longpolling.pull_request import PullRequest
from ..processor.admin.access_admin import AccessAdminProcessor
from ..processor.admin.broker_admin import BrokerAdminProcessor
from ..processor.clients.client_manage import ClientManageProcessor
from ..processor.clients.client_relay import ClientRelayProcessor
from ..processor.clients.pending_replies import PendingReplies
from ..processor.clients.reply_message import ReplyMessageProcessor
from ..processor.dispatcher import RequestDispatcher
from ..processor.extensions.extensions import ExtensionsProcessor
from ..processor.extensions.staged_batches import StagedBatchesProcessor
from ..processor.groups.consume_stats import ConsumeStatsProcessor
from ..processor.groups.consumer_group import ConsumerGroupProcessor
from ..processor.groups.consumer_offset import ConsumerOffsetProcessor
from ..processor.groups.group_admin import GroupAdminProcessor
from ..processor.groups.group_offsets import GroupOffsetsProcessor
from ..processor.pop.ack_message import AckMessageProcessor
from ..processor.pop.notification import NotificationProcessor
from ..processor.pop.order_releases import OrderReleases
from ..processor.pop.pop_message import PopMessageProcessor
from ..processor.pop.pop_offsets import PopOffsets
from ..processor.processor import BrokerParts, Processor
from ..processor.pulls.fast_pull import FastPull
from ..processor.pulls.pull_message import PullMessageProcessor
from ..processor.pulls.query_message import QueryConsumeQueueProcessor, QueryMessageProcessor
from ..processor.pulls.subscription_filters import SubscriptionFilters
from ..processor.request import HandlerResult
from ..processor.sends.acknowledger import Acknowledger
from ..processor.sends.admission import RetryRules, TopicAdmission
from ..processor.sends.end_transaction import EndTransactionProcessor
from ..processor.sends.message_back import MessageBackProcessor
from ..processor.sends.pending_topic_sends import PendingTopicSends
from ..processor.sends.recall_message import RecallMessageProcessor
from ..processor.sends.send_message import SendMessageProcessor, SendParts
from ..processor.topics.route import KVConfigProcessor, RouteProcessor
from ..processor.topics.topic_admin import TopicAdminProcessor
from ..schedule.real_topic_delivery import RealTopicDelivery

_log = logging.getLogger(__name__)


class Processors:
    """All processors of a broker."""

    def __init__(
        self, broker: BrokerParts, commits: RealTopicDelivery, choose: Callable[[int], int]
    ) -> None:
        """Build them; ``choose(n)`` returns a random number below n."""
        self.broker = broker
        self._is_busy = False
        self._closed_connections: deque[Channel] = deque()
        self._is_unregistering = False
        self.stats, self.locks = broker.stats, broker.locks
        self.producers, self.consumers = broker.producers, broker.consumers
        self.pending_replies = PendingReplies()
        self.filters = SubscriptionFilters(broker.config.filters)
        self.pending_sends = PendingTopicSends(broker, self._redispatch, self.end_turn)
        admission = TopicAdmission(
            broker.config, broker.topics, self.pending_sends.must_wait, self.pending_sends.has
        )
        self.acknowledger = Acknowledger(broker)
        sends = SendParts(admission, RetryRules(admission, broker.groups), self.acknowledger)
        self.sends = SendMessageProcessor(broker, sends)
        self.transactions = EndTransactionProcessor(broker, sends, commits)
        self.extensions = ExtensionsProcessor(broker, sends)
        self.pull = PullMessageProcessor(broker, self.filters)
        pop_offsets = PopOffsets(broker.offsets)
        self.order_releases = OrderReleases(
            broker.loop, broker.order_info, broker.pop_waiters, broker.now_ms
        )
        self.pop = PopMessageProcessor(
            broker, self.filters, self.acknowledger, pop_offsets, self.order_releases, choose
        )
        self.notification = NotificationProcessor(broker, self.pop, pop_offsets)
        self.clients = ClientManageProcessor(broker, self.filters.check)
        self.admin = BrokerAdminProcessor(broker, self.acknowledger.queue)
        processors: tuple[Processor, ...] = (
            self.sends,
            self.transactions,
            ReplyMessageProcessor(broker, self.pending_replies, self._store_reply),
            self.extensions,
            StagedBatchesProcessor(broker, admission, self._wrap_errors),
            MessageBackProcessor(broker, sends),
            RecallMessageProcessor(broker, sends, self.sends.properties),
            QueryMessageProcessor(broker),
            QueryConsumeQueueProcessor(broker, self.filters.for_subscription),
            self.pull,
            self.pop,
            AckMessageProcessor(broker, self.pop, self.acknowledger, self.order_releases),
            self.notification,
            self.clients,
            ConsumerGroupProcessor(broker),
            ConsumerOffsetProcessor(broker),
            GroupOffsetsProcessor(broker),
            ClientRelayProcessor(broker, self.pending_replies),
            RouteProcessor(broker),
            KVConfigProcessor(broker),
            TopicAdminProcessor(broker),
            GroupAdminProcessor(broker),
            ConsumeStatsProcessor(broker),
            AccessAdminProcessor(broker),
            self.admin,
        )
        self.dispatch = RequestDispatcher(
            (processor.handlers() for processor in processors),
            broker.config.server.json_body_bytes_max,
            self.pending_sends.suspend,
            broker.loop.time,
            self._client_id_of,
            broker.access,
            broker.losses,
        )
        self.fast_pull = FastPull(broker, self.pull, self.dispatch.run_handler)
        self.fast_paths = (self.sends.fast_path, self.fast_pull)

    def _client_id_of(self, connection: Channel) -> str | None:
        return self.consumers.client_id_of(connection) or self.producers.client_id_of(connection)

    def replay(self, held: PullRequest) -> RemotingCommand | None:
        """Return the response to a held pull, or None if it was sent already."""
        try:
            if not isinstance(held, PopRequest):
                return self.pull.execute_request_when_wakeup(held)
            if held.is_notification:
                return self.notification.execute_request_when_wakeup(held)
            return self.pop.execute_request_when_wakeup(held)
        except Exception as error:  # noqa: BLE001  # any error is reported to the client
            return self.dispatch.error_response(held.connection, held.request, error)

    def _wrap_errors(
        self, connection: Channel, request: RemotingCommand, steps: ResponseSteps
    ) -> ResponseSteps:
        return self.dispatch.wrap_errors(connection, request, steps)

    def _redispatch(self, connection: Channel, request: RemotingCommand) -> ResponseSteps | None:
        """Dispatch a request again, outside its connection's turns; return the remaining steps."""
        return self._send_later(connection, self.dispatch(connection, request))

    def _store_reply(self, connection: Channel, request: RemotingCommand, code: int) -> None:
        steps = self._send_later(connection, self.dispatch.dispatch_as(code, connection, request))
        if steps is not None:
            self.broker.run_steps(steps)

    def _send_later(self, connection: Channel, response: HandlerResult) -> ResponseSteps | None:
        if response is None:
            return None
        if not isinstance(response, RemotingCommand):
            return self._send_response(connection, response)
        connection.send(response)
        return None

    def _send_response(self, connection: Channel, steps: ResponseSteps) -> ResponseSteps:
        response = yield from steps
        if response is not None:
            connection.send(response)
        return None

    def connection_closed(self, connection: Channel) -> None:
        """Remove a disconnected client from its groups, at once or in steps."""
        self.fast_pull.connection_closed(connection)
        self.sends.connection_closed(connection)
        self.extensions.connection_closed(connection)
        self._closed_connections.append(connection)
        if not self._is_unregistering:  # one generator serves all clients that disconnect together
            self._is_unregistering = True
            self.broker.run_steps(self._unregister_closed())

    def _unregister_closed(self) -> BackgroundSteps:
        try:
            while self._closed_connections:
                connection = self._closed_connections.popleft()
                yield from self.clients.connection_closed(connection)
                yield from self.locks.connection_closed(
                    connection, lambda *member: self.consumers.find(*member) is not None
                )
                yield None
        finally:
            self._is_unregistering = False

    def end_turn(self) -> None:
        """Write the messages of a turn after all its requests are dispatched."""
        self.sends.end_turn()

    def expire_clients(self) -> None:
        """Remove clients whose heartbeats have stopped from their groups."""
        self.broker.run_steps(self.clients.expire(self.broker.monotonic_ms()))

    def skip_time(self, milliseconds: int) -> None:
        """Ignore a jump of the clock, so that no client counts as silent during it."""
        self.producers.skip_time(milliseconds)
        self.consumers.skip_time(milliseconds)
        self.locks.skip_time(milliseconds)

    def sample_stats(self) -> None:
        """Add the current values of the counters to their windows."""
        self.broker.run_steps(self.stats.sample(self.broker.now_ms()))

    def log_busy(self) -> None:
        """Log when sends begin to be refused as busy, and when they are accepted again."""
        why = self.broker.busy_reason()
        if why is not None and not self._is_busy:
            _log.warning("refusing sends: %s", why.rpartition("]")[2])
        elif why is None and self._is_busy:
            _log.warning("accepting sends again")
        self._is_busy = why is not None
