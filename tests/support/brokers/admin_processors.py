"""All processors of a broker on real tables and a real store, without a server.

`AdminRoom.ask` passes a request to them and returns the answer of the dispatcher.
"""

from __future__ import annotations

from types import SimpleNamespace

from support.brokers.connections import FakeConnection, finished
from support.brokers.hold_service import Hold
from support.brokers.state_tables import room, table_in
from support.disks.faulty_disk import FaultyDisk, ManualClock
from support.stores.small_store import message, open_store, small_config

from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.bodies.clients import ConsumerData, SubscriptionData
from rmq_spark.wire.bodies.configs import DelayOffsetSerializeWrapper, TopicConfig
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.message.hosts import parse_host
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.auth.access_control import AccessControl
from rocketpoll.broker.common.recent_losses import RecentLosses
from rocketpoll.broker.filter.subscription import message_filter
from rocketpoll.broker.pop.pop_counters import PopCounters
from rocketpoll.broker.processor.admin.access_admin import AccessAdminProcessor
from rocketpoll.broker.processor.admin.broker_admin import BrokerAdminProcessor
from rocketpoll.broker.processor.admin.runtime_info import SendQueue
from rocketpoll.broker.processor.groups.consume_stats import ConsumeStatsProcessor
from rocketpoll.broker.processor.groups.group_admin import GroupAdminProcessor
from rocketpoll.broker.processor.pulls.query_message import (
    QueryConsumeQueueProcessor,
    QueryMessageProcessor,
)
from rocketpoll.broker.processor.reply_after_save import ReplyAfterSave
from rocketpoll.broker.processor.request import RequestRejected
from rocketpoll.broker.processor.topics.route import KVConfigProcessor, RouteProcessor
from rocketpoll.broker.processor.topics.topic_admin import TopicAdminProcessor
from rocketpoll.broker.runtime.state_tables import StateTables
from rocketpoll.broker.settings.config import BrokerConfig
from rocketpoll.broker.state.broker_stats import BrokerStats
from rocketpoll.broker.state.members.client_channel_info import ClientChannelInfo
from rocketpoll.broker.state.members.consumers import ConsumerManager
from rocketpoll.broker.store.files.disk import DiskUsage

ADVERTISED = parse_host("10.0.0.2:9876")


class AdminRoom:
    """The processors, and the tables that operators change, in one directory."""

    def __init__(self, root, **settings):
        self.clock = ManualClock()
        store_settings = settings.pop("store", {})
        self.config = BrokerConfig(store=small_config(root, **store_settings), **settings)
        self.disk = FaultyDisk()
        self.store = open_store(root, self.disk, clock=self.clock, **store_settings)
        self._directory = root / "config"
        tables = StateTables.load(
            self.config,
            self.disk,
            self.clock,
            half_deleted_topics=lambda: self.store.half_deleted_topics,
            finish_deletion=self.store.finish_deletion,
        )
        self.topics, self.groups, self.offsets = tables.topics, tables.groups, tables.offsets
        self.kv_configs, self.users, self.acls = tables.kv_configs, tables.users, tables.acls
        self.consumers = ConsumerManager(lambda _: None, room())
        self.stats = BrokerStats(self.config.broker_cluster_name, self.clock())
        self.holds = Hold()
        self.delay_offsets = {}
        self.send_queue = SendQueue(0, 0)
        self.timers = SimpleNamespace(pending=0, next_due_ms=None, counts=dict)
        self.transactions = SimpleNamespace(pending_count=0)
        self.pop_counters = PopCounters(self.clock())
        self.losses = RecentLosses(self.clock)
        self.disk_usage = DiskUsage(100 << 30, 25 << 30, 75 << 30)
        self.cleanings = 0
        self.access = AccessControl()
        self.connection = FakeConnection()
        self.after_saving = ReplyAfterSave(run_at_once)
        self.processors = self._processors()
        self.handlers = {}
        for processor in self.processors:
            self.handlers.update(processor.handlers())

    def saved(self, name, body_type):
        """Return the content of a saved table, as a restart would load it."""
        return table_in(self._directory, name, body_type).load(None)

    def _clean(self):
        self.cleanings += 1

    def _processors(self):
        broker = SimpleNamespace(
            config=self.config,
            access=self.access,
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            kv_configs=self.kv_configs,
            users=self.users,
            acls=self.acls,
            consumers=self.consumers,
            stats=self.stats,
            hold_service=self.holds.service,
            schedule=SimpleNamespace(
                offsets=lambda: DelayOffsetSerializeWrapper(offset_table=self.delay_offsets),
                progress=lambda: iter(()),
            ),
            timers=self.timers,
            transactions=self.transactions,
            pop_counters=self.pop_counters,
            reply_after_save=self.after_saving,
            advertised_host=lambda _: ADVERTISED,
            now_ms=self.clock,
            run_steps=finished,
            clean=self._clean,
            disk_usage=lambda: self.disk_usage,
            losses=self.losses,
            refusals=lambda: dict.fromkeys(
                ("requestsRefused", "clientsRefused", "connectionsCut"), 0
            ),
        )
        return (
            RouteProcessor(broker),
            KVConfigProcessor(broker),
            TopicAdminProcessor(broker),
            GroupAdminProcessor(broker),
            ConsumeStatsProcessor(broker),
            AccessAdminProcessor(broker),
            BrokerAdminProcessor(broker, lambda: self.send_queue),
            QueryMessageProcessor(broker),
            QueryConsumeQueueProcessor(broker, message_filter),
        )

    def ask(self, code, ext_fields=None, body=None) -> RemotingCommand:
        """Return the response to a request."""
        __tracebackhide__ = True
        data = body if isinstance(body, bytes) else encode_body(body) if body is not None else b""
        request = RemotingCommand(code, opaque=7, ext_fields=ext_fields or {}, body=data)
        try:
            answer = (
                finished(self.handlers[code](self.connection, request))
                or self.connection.sent.pop()
            )
        except RequestRejected as refused:
            answer = request.respond(refused.code, refused.remark)
        assert answer.opaque == 7
        return answer

    def asked(self, body_type, code, ext_fields=None, body=None):
        """Send a request that must succeed; return the decoded body of the response."""
        __tracebackhide__ = True
        answer = self.ask(code, ext_fields, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return decode_body(body_type, answer.body)

    def refused(self, code, ext_fields=None, body=None) -> tuple[ResponseCode, str]:
        """Send a request that must be refused; return code and remark."""
        __tracebackhide__ = True
        answer = self.ask(code, ext_fields, body)
        assert answer.code != ResponseCode.SUCCESS
        assert answer.body == b""
        return ResponseCode(answer.code), answer.remark

    def create_topic(self, topic="T", queue_nums=2, **settings) -> TopicConfig:
        """Create a topic as an operator does."""
        config = TopicConfig(
            topic_name=topic,
            **{"read_queue_nums": queue_nums, "write_queue_nums": queue_nums, **settings},
        )
        self.topics.put(config)
        self.topics.save()
        return config

    def put(self, body, at_ms=None, **settings):
        """Store one message."""
        __tracebackhide__ = True
        if at_ms is not None:
            self.clock.now_ms = at_ms
        result = self.store.put_message(message(body, **settings))
        assert result.status.name == "PUT_OK"
        return result

    def consume(self, group, *topics, sub_string="*"):
        """Register a member of a group."""
        subscriptions = tuple(
            SubscriptionData(
                topic=topic,
                sub_string=sub_string,
                tags_set=frozenset() if sub_string == "*" else frozenset(sub_string.split(" || ")),
            )
            for topic in topics
        )
        channel = ClientChannelInfo(
            FakeConnection(), f"client of {group}", "JAVA", 409, self.clock()
        )
        self.consumers.register(
            channel,
            ConsumerData(group_name=group, subscription_data_set=subscriptions),
            notify=False,
        )

    def shutdown(self):
        self.store.shutdown()


def run_at_once(work, then):
    """Run a job immediately instead of in another thread."""
    try:
        work()
    except OSError as error:
        then(error)
    else:
        then(None)
