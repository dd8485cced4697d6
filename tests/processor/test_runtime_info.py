"""Runtime info: keys, numbers and figures that tools read."""

import pytest
from support.brokers.connections import finished
from support.brokers.hold_service import Client, a_pull
from support.brokers.runtime_keys import OURS

from rmq_spark.wire.bodies.operators import KVTable
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.remoting.command import CURRENT_VERSION
from rocketpoll.broker.processor.admin.runtime_info import VERSION_DESC, SendQueue
from rocketpoll.broker.store.files.disk import DiskUsage

START = 1_700_000_000_000

# Keys that mqadmin or dashboards of either generation read.
READ_BY_TOOLS = [
    "bootTimestamp",
    "runtime",
    "brokerVersionDesc",
    "brokerVersion",
    "putMessageEntireTimeMax",
    "putMessageTimesTotal",
    "putMessageFailedTimes",
    "putMessageSizeTotal",
    "putMessageDistributeTime",
    "putMessageAverageSize",
    "dispatchMaxBuffer",
    "getMessageEntireTimeMax",
    "putTps",
    "getFoundTps",
    "getMissTps",
    "getTotalTps",
    "getTransferedTps",
    "getTransferredTps",
    "putLatency99",
    "putLatency999",
    "commitLogDiskRatio",
    "consumeQueueDiskRatio",
    "commitLogMinOffset",
    "commitLogMaxOffset",
    "msgPutTotalYesterdayMorning",
    "msgPutTotalTodayMorning",
    "msgPutTotalTodayNow",
    "msgGetTotalYesterdayMorning",
    "msgGetTotalTodayMorning",
    "msgGetTotalTodayNow",
    "sendThreadPoolQueueSize",
    "sendThreadPoolQueueCapacity",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueSize",
    "pullThreadPoolQueueCapacity",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueSize",
    "queryThreadPoolQueueCapacity",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "EndTransactionQueueSize",
    "EndTransactionThreadPoolQueueCapacity",
    "dispatchBehindBytes",
    "pageCacheLockTimeMills",
    "earliestMessageTimeStamp",
    "startAcceptSendRequestTimeStamp",
    "remainTransientStoreBufferNumbs",
    "remainHowManyDataToFlush",
    "commitLogDirCapacity",
    "brokerActive",
    "timerReadBehind",
    "timerOffsetBehind",
    "timerCongestNum",
    "timerEnqueueTps",
    "timerDequeueTps",
    "litePullThreadPoolQueueSize",
    "litePullThreadPoolQueueCapacity",
    "litePullThreadPoolQueueHeadWaitTimeMills",
    "ackThreadPoolQueueSize",
    "ackThreadPoolQueueCapacity",
    "ackThreadPoolQueueHeadWaitTimeMills",
]


def figures(room) -> dict[str, str]:
    return dict(room.asked(KVTable, RequestCode.GET_BROKER_RUNTIME_INFO).table)


def test_runtime_info_has_every_key_that_tools_read(room, tmp_path):
    assert set(figures(room)) == {
        *READ_BY_TOOLS,
        *OURS,
        f"commitLogDiskRatio_{tmp_path / 'commitlog'}",
    }


def test_runtime_info_numbers_are_valid_in_java(room):
    found = figures(room)
    texts = {
        "runtime",
        "brokerVersionDesc",
        "rocketpollVersion",
        "putMessageDistributeTime",
        "commitLogDirCapacity",
        "brokerActive",
        "storeFailure",
        "recentLosses",
    }
    for name, value in found.items():
        if name not in texts and not name.startswith("remainHowMany"):
            assert all(float(part) >= -1 for part in value.split(" ")), name
    assert len(found["putTps"].split(" ")) == 3


def test_runtime_info_has_the_version_of_the_answers(room):
    found = figures(room)
    assert (found["brokerVersion"], found["brokerVersionDesc"]) == (
        str(CURRENT_VERSION),
        VERSION_DESC,
    )


def test_runtime_info_shows_boot_time_and_uptime(room):
    room.clock.now_ms = START + ((3 * 24 + 4) * 60 + 5) * 60_000 + 6_999
    found = figures(room)
    assert found["bootTimestamp"] == str(START)
    assert found["runtime"] == "[ 3 days, 4 hours, 5 minutes, 6 seconds ]"


def test_runtime_info_shows_counted_sends_and_gets(room):
    room.stats.record_put("T", 30, 3000)
    room.stats.put_latency.add(4)
    room.stats.record_put_failure()
    room.stats.record_get("T", "G", 20, 2000, elapsed_ms=7)
    room.stats.record_get("T", "G", 0, 0, elapsed_ms=1)
    finished(room.stats.sample(START + 10_000))
    found = figures(room)
    assert found["putTps"] == found["putTps"] == "3.0 3.0 3.0"
    assert found["getTransferedTps"] == found["getTransferredTps"] == "2.0 2.0 2.0"
    assert (found["getFoundTps"], found["getMissTps"]) == ("0.1 0.1 0.1", "0.1 0.1 0.1")
    assert found["getTotalTps"] == "0.2 0.2 0.2"
    assert (found["putMessageTimesTotal"], found["putMessageFailedTimes"]) == ("30", "1")
    assert (found["putMessageSizeTotal"], found["putMessageAverageSize"]) == ("3000", "100.0")
    assert (found["putMessageEntireTimeMax"], found["getMessageEntireTimeMax"]) == ("4", "7")
    assert (found["putLatency99"], found["putLatency999"]) == ("4.00", "4.00")
    assert found["putMessageDistributeTime"].startswith("[<=0ms]:0 [0~10ms]:1 [10~50ms]:0 ")
    assert (found["msgPutTotalTodayNow"], found["msgGetTotalTodayNow"]) == ("30", "20")


def test_runtime_info_of_an_empty_log_has_no_earliest_message(room):
    found = figures(room)
    assert (found["commitLogMinOffset"], found["commitLogMaxOffset"]) == ("0", "0")
    assert found["earliestMessageTimeStamp"] == "-1"


def test_runtime_info_shows_log_end_and_earliest_time(room):
    for number in range(3):
        room.put(number, at_ms=START + number)
    found = figures(room)
    assert found["commitLogMaxOffset"] == str(room.store.state().written_offset)
    assert found["earliestMessageTimeStamp"] == str(START)
    assert found["dispatchBehindBytes"] == "0"


def test_runtime_info_shows_unflushed_bytes(room):
    room.put("x" * 2000)
    state = room.store.state()
    behind = state.written_offset - state.flushed_offset
    assert figures(room)["remainHowManyDataToFlush"] in (f"{behind / 1024:.1f} KiB", "0 B")


@pytest.mark.parametrize(
    ("total", "used", "available", "shown", "ratio"),
    [
        (100 << 30, 25 << 30, 75 << 30, "Total : 100.0 GiB, Free : 75.0 GiB.", "0.25"),
        (100 << 30, 20 << 30, 60 << 30, "Total : 100.0 GiB, Free : 60.0 GiB.", "0.25"),
        (1023, 1022, 1, "Total : 1023 B, Free : 1 B.", "0.999"),
        (1 << 20, (1 << 20) - 1536, 1536, "Total : 1.0 MiB, Free : 1.5 KiB.", "0.9985"),
        (0, 0, 0, "Total : 0 B, Free : 0 B.", "0.0"),
    ],
)
def test_runtime_info_disk_ratios_are_computed_as_by_rocketmq(
    room, tmp_path, total, used, available, shown, ratio
):
    """Space reserved for root, which only the total includes, is of no use to a broker."""
    room.disk_usage = DiskUsage(total, used, available)
    found = figures(room)
    assert found["commitLogDirCapacity"] == shown
    names = (
        "commitLogDiskRatio",
        "consumeQueueDiskRatio",
        f"commitLogDiskRatio_{tmp_path / 'commitlog'}",
    )
    assert {found[name] for name in names} == {ratio}


def test_runtime_info_queue_size_counts_sends_that_wait_for_the_disk(room):
    room.send_queue = SendQueue(12, 34)
    found = figures(room)
    assert found["sendThreadPoolQueueSize"] == "12"
    assert found["sendThreadPoolQueueHeadWaitTimeMills"] == "34"
    assert found["sendThreadPoolQueueCapacity"] == str(room.config.send_queue_capacity)


def test_runtime_info_shows_held_and_deferred_pulls(room):
    client = Client()
    for _ in range(17):
        room.holds.service.suspend_pull_request(a_pull(client))
    found = figures(room)
    assert (found["pullsHeld"], found["pullsPutOff"], found["pullsRescued"]) == ("16", "1", "0")


def test_runtime_info_shows_what_waits_for_a_timer_an_end_or_an_acknowledgement(room):
    assert figures(room)["timersNextDue"] == "-1"
    room.timers.pending, room.timers.next_due_ms = 5, START + 1_000
    room.timers.counts = lambda: {"T": 3, "U": 2}
    room.transactions.pending_count = 4
    room.pop_counters.pop(("T", "G", 0), 6)
    room.pop_counters.pop(("T", "H", 1), 1)
    found = figures(room)
    assert (found["timersWaiting"], found["timersNextDue"]) == ("5", str(START + 1_000))
    assert (found["halfMessages"], found["popsInFlight"]) == ("4", "7")


def test_timers_of_popped_messages_do_not_count_as_waiting(room):
    room.timers.pending, room.timers.next_due_ms = 5, START + 1_000
    room.timers.counts = lambda: {"T": 3, "rmq_sys_REVIVE_LOG_DefaultCluster": 2}
    found = figures(room)
    assert (found["timersWaiting"], found["timersNextDue"]) == ("3", "-1")
