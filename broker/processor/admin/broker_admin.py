"""BrokerAdminProcessor: answers operators' requests about the whole broker.

No request changes a setting, because attackers have exploited that in other brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from rmq_spark import __version__
from rmq_spark.errors import escape_surrogates, format_bytes
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import version_desc
from rmq_spark.wire.bodies.configs import (
    DataVersion,
    TimerMetric,
    TimerMetricsSerializeWrapper,
)
from rmq_spark.wire.bodies.operators import KVTable
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.command import CURRENT_VERSION, RemotingCommand
from rmq_spark.wire.headers.operators import GetBrokerConfigResponseHeader
from rmq_spark.wire.names import is_system_topic, reply_topic
from rmq_spark.wire.record import decode_record

from ...common.channel import Channel
from ...settings.config import BrokerConfig
from ...settings.settings import settings_of
from ...state.stats.broker_stats import STATS_NAMES
from ...store.components import COMMIT_LOG
from ...store.errors import UnreadableFile
from ...store.results import StoreState
from ..processor import BrokerParts, Processor, handles
from ..request import RequestRejected, header_of, success_response, system_error

# ---- Runtime info.

VERSION_DESC: Final = version_desc(CURRENT_VERSION)
"""The name of `CURRENT_VERSION`."""

_NO_BUFFER_POOL: Final = 0x7FFFFFFF
_IDLE: Final[Mapping[str, str]] = {
    "dispatchMaxBuffer": "0",
    "pullThreadPoolQueueSize": "0",
    "pullThreadPoolQueueCapacity": "0",
    "pullThreadPoolQueueHeadWaitTimeMills": "0",
    "queryThreadPoolQueueSize": "0",
    "queryThreadPoolQueueCapacity": "0",
    "queryThreadPoolQueueHeadWaitTimeMills": "0",
    "litePullThreadPoolQueueSize": "0",
    "litePullThreadPoolQueueCapacity": "0",
    "litePullThreadPoolQueueHeadWaitTimeMills": "0",
    "ackThreadPoolQueueSize": "0",
    "ackThreadPoolQueueCapacity": "0",
    "ackThreadPoolQueueHeadWaitTimeMills": "0",
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "0",
    "pageCacheLockTimeMills": "0",
    "startAcceptSendRequestTimeStamp": "0",
    "remainTransientStoreBufferNumbs": str(_NO_BUFFER_POOL),
    "brokerActive": "true",
    "timerReadBehind": "0",
    "timerOffsetBehind": "0",
    "timerCongestNum": "0",
    "timerEnqueueTps": "0.0",
    "timerDequeueTps": "0.0",
}


class SendQueue(NamedTuple):
    """Sends that wait for the disk: their number, and how long the first has waited."""

    size: int
    head_wait_ms: int


class RuntimeInfo:
    """The figures of GET_BROKER_RUNTIME_INFO, under the keys of both RocketMQ generations.

    Every figure is measured or true by construction; where RocketMQ counts what does not exist here
    (thread pools with queues, a pool of buffers, the timer wheel), the figure is that of an idle
    one.
    """

    def __init__(
        self, broker: BrokerParts, send_queue: Callable[[], SendQueue], started_ms: int
    ) -> None:
        self._broker = broker
        self._send_queue = send_queue
        self._started_ms = started_ms

    def table(self, now_ms: int) -> dict[str, str]:
        """Return all figures, as text, by RocketMQ's keys, some of which are paths."""
        figures = {
            "bootTimestamp": str(self._started_ms),
            "runtime": _runtime(max(now_ms - self._started_ms, 0)),
            "brokerVersion": str(CURRENT_VERSION),
            "brokerVersionDesc": VERSION_DESC,
            "rocketpollVersion": __version__,  # a key of ours
            **_IDLE,
            **self._puts(),
            **self._rates(),
            **self._days(),
            **self._log(),
            **self._disk(),
            **self._sends(),
            **self._delays(),
            **self._pulls(),
            **self._waiting(),
        }
        return {escape_surrogates(key): escape_surrogates(value) for key, value in figures.items()}

    def _puts(self) -> dict[str, str]:
        stats = self._broker.stats
        average = stats.put_bytes / stats.put_messages if stats.put_messages else 0.0
        return {
            "putMessageEntireTimeMax": str(stats.put_latency.max_ms),
            "putMessageTimesTotal": str(stats.put_messages),
            "putMessageFailedTimes": str(stats.put_failures),
            "putMessageSizeTotal": str(stats.put_bytes),
            "putMessageAverageSize": str(round(average, 2)),
            "putMessageDistributeTime": " ".join(
                f"[{cell}]:{count}" for cell, count in stats.put_latency.cells().items()
            ),
            "putLatency99": f"{stats.put_latency.within_ms(0.99):.2f}",
            "putLatency999": f"{stats.put_latency.within_ms(0.999):.2f}",
            "getMessageEntireTimeMax": str(stats.get_latency_ms_max),
        }

    def _rates(self) -> dict[str, str]:
        rates = self._broker.stats.rates()
        return {
            "putTps": str(rates.puts),
            "getFoundTps": str(rates.found),
            "getMissTps": str(rates.missed),
            "getTotalTps": str(rates.gets),
            "getTransferedTps": str(rates.transferred),  # spelt like this by 4.9
            "getTransferredTps": str(rates.transferred),
        }

    def _days(self) -> dict[str, str]:
        puts, gets = self._broker.stats.put_totals, self._broker.stats.get_totals
        return {
            "msgPutTotalYesterdayMorning": str(puts.yesterday_morning),
            "msgPutTotalTodayMorning": str(puts.today_morning),
            "msgPutTotalTodayNow": str(self._broker.stats.put_messages),
            "msgGetTotalYesterdayMorning": str(gets.yesterday_morning),
            "msgGetTotalTodayMorning": str(gets.today_morning),
            "msgGetTotalTodayNow": str(self._broker.stats.got_messages),
        }

    def _log(self) -> dict[str, str]:
        state = self._broker.store.state()
        return {
            "commitLogMinOffset": str(state.min_offset),
            "commitLogMaxOffset": str(state.written_offset),
            "dispatchBehindBytes": str(max(state.written_offset - state.reput_from_offset, 0)),
            "remainHowManyDataToFlush": format_bytes(
                max(state.written_offset - state.flushed_offset, 0)
            ),
            "earliestMessageTimeStamp": str(self._earliest(state)),
            "storeFailure": state.failure or state.degradation or "",  # a key of ours
        }

    def _earliest(self, state: StoreState) -> int:
        try:
            record = self._broker.store.record_at(state.min_offset)
        except UnreadableFile:  # all other figures are known
            record = None
        return decode_record(record, check_crc=False).store_timestamp if record is not None else -1

    def _disk(self) -> dict[str, str]:
        disk = self._broker.disk_usage()
        ours = disk.used + disk.free
        ratio = str(round(disk.used / ours, 4)) if ours else "0.0"
        path = self._broker.config.store.store_path_root_dir / COMMIT_LOG
        return {
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{path}": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": (
                f"Total : {format_bytes(disk.total)}, Free : {format_bytes(disk.free)}."
            ),
            "recentLoss": self._broker.losses.text(),  # a key of ours
        }

    def _sends(self) -> dict[str, str]:
        queue = self._send_queue()
        return {
            "sendThreadPoolQueueSize": str(queue.size),
            "sendThreadPoolQueueCapacity": str(self._broker.config.send_queue_capacity),
            "sendThreadPoolQueueHeadWaitTimeMills": str(queue.head_wait_ms),
        }

    def _pulls(self) -> dict[str, str]:
        """Return figures on pulls under our own keys, because RocketMQ has none."""
        return {
            "pullsHeld": str(self._broker.hold_service.hold_count),
            "pullsPutOff": str(self._broker.hold_service.deferred_total),
            "pullsRescued": str(self._broker.hold_service.rescued_total),
        }

    def _waiting(self) -> dict[str, str]:
        """Return figures on what waits for its time, its end or its acknowledgement; ours.

        Timers of the broker itself, those of popped messages, do not count. While there are any,
        it is not known which timer is due next.
        """
        timers, next_due_ms = self._broker.timers, None
        count = sum(each for topic, each in timers.counts().items() if not is_system_topic(topic))
        if count and count == timers.pending:
            next_due_ms = timers.next_due_ms
        return {
            "timersWaiting": str(count),
            "timersNextDue": str(-1 if next_due_ms is None else next_due_ms),
            "halfMessages": str(self._broker.transactions.pending_count),
            "popsInFlight": str(self._broker.pop_counters.in_flight_total),
        }

    def _delays(self) -> dict[str, str]:
        return {
            f"scheduleMessageOffset_{level}": f"{delivered},{end}"
            for level, delivered, end in self._broker.schedule.progress()
        }


def _runtime(running_ms: int) -> str:
    minutes, seconds = divmod(running_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


# ---- Settings as text.

_MQADMIN_DEFAULTS: Final[Mapping[str, str]] = {
    "brokerId": "0",
    "filterServerNums": "0",
    "msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC",
    "slaveReadEnable": "false",
    "traceTopicEnable": "false",
    "useTLS": "false",
}
"""Values for settings that this broker does not have; exportConfigs of 4.9 requires them."""


def properties_text(config: BrokerConfig) -> bytes:
    """Return all settings as ``key=value`` lines; secret ones are hidden."""
    return _lines(settings_of(config))


def properties_text_for_operators(config: BrokerConfig) -> bytes:
    """Return all settings, and those of RocketMQ that mqadmin's exportConfigs requires."""
    return _lines({**_MQADMIN_DEFAULTS, **settings_of(config)})


def _lines(settings: Mapping[str, object]) -> bytes:
    return escape_surrogates(
        "".join(f"{name}={value}\n" for name, value in settings.items())
    ).encode()


def read_only_error(request: RemotingCommand) -> RequestRejected:
    """Return the refusal of a remote change of settings."""
    return RequestRejected(
        ResponseCode.NO_PERMISSION,
        f"remote configuration is read-only ({RequestCode(request.code).name}): change the "
        "broker's file, and send it SIGHUP or restart it",
    )


def reserved_topics(config: BrokerConfig) -> frozenset[str]:
    """Return the topics named after cluster and broker; created at a start, and read-only."""
    cluster = config.broker_cluster_name
    return frozenset({cluster, config.broker_name, reply_topic(cluster)})


class BrokerAdminProcessor(Processor):
    """The responses to requests about settings, figures and housekeeping."""

    def __init__(self, broker: BrokerParts, send_queue: Callable[[], SendQueue]) -> None:
        super().__init__(broker)
        self.config = broker.config
        started_ms = broker.now_ms()
        self._runtime_info = RuntimeInfo(broker, send_queue, started_ms)
        self._config_version = DataVersion(timestamp=started_ms)

    @handles(RequestCode.UPDATE_BROKER_CONFIG)
    def update_config(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Refuse UPDATE_BROKER_CONFIG: settings cannot be changed remotely."""
        raise read_only_error(request)

    @handles(RequestCode.GET_BROKER_CONFIG)
    def get_config(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_BROKER_CONFIG; its version is the start, because settings do not change."""
        header = GetBrokerConfigResponseHeader(encode_body(self._config_version).decode())
        return success_response(request, header)._replace(
            body=properties_text_for_operators(self.config)
        )

    @handles(RequestCode.GET_BROKER_RUNTIME_INFO)
    def get_runtime_info(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_BROKER_RUNTIME_INFO with all current figures."""
        return success_response(
            request, body=KVTable(table=self._runtime_info.table(self._broker.now_ms()))
        )

    @handles(RequestCode.GET_TIMER_METRICS)
    def timer_metrics(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_TIMER_METRICS with the number of waiting timer messages of each topic."""
        now_ms = self._broker.now_ms()
        counts = self._broker.timers.counts()
        body = TimerMetricsSerializeWrapper(
            timing_count={topic: TimerMetric(count, now_ms) for topic, count in counts.items()}
        )
        return success_response(request, body=body)

    @handles(RequestCode.GET_ALL_DELAY_OFFSET)
    def get_delay_offsets(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_ALL_DELAY_OFFSET with the offset up to which each delay level is delivered."""
        return success_response(request, body=self._broker.schedule.offsets())

    @handles(RequestCode.VIEW_BROKER_STATS_DATA)
    def view_stats(self, connection: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer VIEW_BROKER_STATS_DATA with one counter over a minute, an hour and a day.

        There are no counters of topics and groups that the client may not see.
        """
        header = header_of(request)
        data = self._broker.stats.data(header.stats_name, header.stats_key)
        if data is None or not self._may_see(connection, header.stats_key):
            known = (
                "" if header.stats_name in STATS_NAMES else f"; there are {', '.join(STATS_NAMES)}"
            )
            raise system_error(
                f"The stats <{header.stats_name}> <{header.stats_key}> not exist{known}"
            )
        return success_response(request, body=data)

    def _may_see(self, connection: Channel, stats_key: str) -> bool:
        """Return whether a client may see a counter's owner: all, a topic, or topic and group."""
        if stats_key == self.config.broker_cluster_name:
            return True
        visible = self._broker.access.visible_to(connection)
        topic, _, group = stats_key.partition("@")
        return visible.has_topic(topic) and (not group or visible.has_group(group))

    @handles(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.DELETE_EXPIRED_COMMITLOG)
    def clean(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer DELETE_EXPIRED_COMMITLOG and CLEAN_EXPIRED_CONSUMEQUEUE by starting a cleanup."""
        self._broker.clean()
        return success_response(request)
