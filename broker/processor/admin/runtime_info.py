"""RuntimeInfo: the broker's figures for operators' tools, by GET_BROKER_RUNTIME_INFO.

`rocketpoll cluster health`, `cluster info`, the console, the debug bundle and mqadmin read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from rmq_spark import __version__
from rmq_spark.errors import escape_surrogates, format_bytes
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import version_desc
from rmq_spark.wire.bodies.operators import RECENT_LOSSES
from rmq_spark.wire.message.record import decode_record
from rmq_spark.wire.names import is_system_topic
from rmq_spark.wire.remoting.command import CURRENT_VERSION

from ...store.components import COMMIT_LOG
from ...store.errors import UnreadableFile
from ...store.results import StoreState
from ..processor import BrokerParts

VERSION_DESC: Final = version_desc(CURRENT_VERSION)

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
    """The number of sends that wait for the disk, and how long the first has waited."""

    size: int
    head_wait_ms: int


class RuntimeInfo:
    """The figures of GET_BROKER_RUNTIME_INFO, under the keys of both RocketMQ generations.

    Where RocketMQ counts what does not exist here (queues of thread pools, a pool of buffers, the
    timer wheel), the figure is that of an idle one. All others are measured.
    """

    def __init__(
        self, broker: BrokerParts, send_queue: Callable[[], SendQueue], started_ms: int
    ) -> None:
        self._broker = broker
        self._send_queue = send_queue
        self._started_ms = started_ms

    def table(self, now_ms: int) -> dict[str, str]:
        """Return all figures as text, by RocketMQ's keys, some of which contain a path."""
        figures = {
            "bootTimestamp": self._started_ms,
            "runtime": _runtime(max(now_ms - self._started_ms, 0)),
            "brokerVersion": CURRENT_VERSION,
            "brokerVersionDesc": VERSION_DESC,
            "rocketpollVersion": __version__,  # a key of ours
            **_IDLE,
            **self._traffic(),
            **self._log_and_disk(),
            **self._waiting(),
        }
        return {escape_surrogates(k): escape_surrogates(str(v)) for k, v in figures.items()}

    def _traffic(self) -> dict[str, object]:
        stats = self._broker.stats
        average = stats.put_bytes / stats.put_messages if stats.put_messages else 0.0
        rates = stats.rates()
        cells = stats.put_latency.cells().items()
        return {
            "putMessageEntireTimeMax": stats.put_latency.max_ms,
            "putMessageTimesTotal": stats.put_messages,
            "putMessageFailedTimes": stats.put_failures,
            "putMessageSizeTotal": stats.put_bytes,
            "putMessageAverageSize": round(average, 2),
            "putMessageDistributeTime": " ".join(f"[{cell}]:{count}" for cell, count in cells),
            "putLatency99": f"{stats.put_latency.within_ms(0.99):.2f}",
            "putLatency999": f"{stats.put_latency.within_ms(0.999):.2f}",
            "getMessageEntireTimeMax": stats.get_latency_ms_max,
            "putTps": rates.puts,
            "getFoundTps": rates.found,
            "getMissTps": rates.missed,
            "getTotalTps": rates.gets,
            "getTransferedTps": rates.transferred,  # spelt like this by 4.9
            "getTransferredTps": rates.transferred,
            "msgPutTotalYesterdayMorning": stats.put_totals.yesterday_morning,
            "msgPutTotalTodayMorning": stats.put_totals.today_morning,
            "msgPutTotalTodayNow": stats.put_messages,
            "msgGetTotalYesterdayMorning": stats.get_totals.yesterday_morning,
            "msgGetTotalTodayMorning": stats.get_totals.today_morning,
            "msgGetTotalTodayNow": stats.got_messages,
        }

    def _log_and_disk(self) -> dict[str, object]:
        state, disk = self._broker.store.state(), self._broker.disk_usage()
        losses = encode_body(self._broker.losses.recent(), RECENT_LOSSES)
        available_bytes = disk.used + disk.free
        ratio = round(disk.used / available_bytes, 4) if available_bytes else 0.0
        path = self._broker.config.store.store_path_root_dir / COMMIT_LOG
        return {
            "commitLogMinOffset": state.min_offset,
            "commitLogMaxOffset": state.written_offset,
            "dispatchBehindBytes": max(state.written_offset - state.reput_from_offset, 0),
            "remainHowManyDataToFlush": format_bytes(
                max(state.written_offset - state.flushed_offset, 0)
            ),
            "earliestMessageTimeStamp": self._earliest(state),
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{path}": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": (
                f"Total : {format_bytes(disk.total)}, Free : {format_bytes(disk.free)}."
            ),
            # keys of ours
            "storeFailure": state.failure or state.degradation or "",
            "damagedRanges": len(state.holes),
            "recentLosses": losses.decode(),
        }

    def _earliest(self, state: StoreState) -> int:
        try:
            record = self._broker.store.record_at(state.min_offset)
        except UnreadableFile:  # leave out only this figure
            record = None
        return decode_record(record, check_crc=False).store_timestamp if record is not None else -1

    def _waiting(self) -> dict[str, object]:
        """Return figures of waiting sends, pulls, timers, half messages and popped messages.

        Timers of popped messages, which the broker itself has set, do not count. While there are
        any, the due time of the first timer that counts is unknown.
        """
        broker, queue, timers = self._broker, self._send_queue(), self._broker.timers
        count = sum(each for topic, each in timers.counts().items() if not is_system_topic(topic))
        next_due_ms = timers.next_due_ms if count and count == timers.pending else None
        return {
            "sendThreadPoolQueueSize": queue.size,
            "sendThreadPoolQueueCapacity": broker.config.send_queue_capacity,
            "sendThreadPoolQueueHeadWaitTimeMills": queue.head_wait_ms,
            **{
                f"scheduleMessageOffset_{level}": f"{delivered},{end}"
                for level, delivered, end in broker.schedule.progress()
            },
            # keys of ours
            "pullsHeld": broker.hold_service.hold_count,
            **broker.refusals(),
            "pullsPutOff": broker.hold_service.deferred_total,
            "pullsRescued": broker.hold_service.rescued_total,
            "timersWaiting": count,
            "timersNextDue": -1 if next_due_ms is None else next_due_ms,
            "halfMessages": broker.transactions.pending_count,
            "popsInFlight": broker.pop_counters.in_flight_total,
        }


def _runtime(running_ms: int) -> str:
    minutes, seconds = divmod(running_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
