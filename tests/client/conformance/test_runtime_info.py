"""Runtime information of a broker can be parsed by programs written for RocketMQ.

The test parses the response as rocketmq-exporter does, which drops all of it if one figure is
missing or has another form. The response has the keys of both versions of RocketMQ.
"""

import re
import shutil

import pytest
from support.brokers.broker_kinds import wait_until
from support.brokers.runtime_keys import OURS

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.errors import BrokerRefused

CELLS = [
    *("<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s"),
    *("1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"),
]
QUEUES = [
    f"{name}ThreadPoolQueue{what}"
    for name in ("send", "pull", "query")
    for what in ("Size", "Capacity", "HeadWaitTimeMills")
]
NUMBERS = [
    *QUEUES,
    *("msgPutTotalTodayNow", "msgPutTotalTodayMorning", "msgPutTotalYesterdayMorning"),
    *("msgGetTotalTodayNow", "msgGetTotalTodayMorning", "msgGetTotalYesterdayMorning"),
    *(
        "putMessageTimesTotal",
        "putMessageFailedTimes",
        "putMessageSizeTotal",
        "putMessageEntireTimeMax",
    ),
    *("commitLogMinOffset", "commitLogMaxOffset", "dispatchBehindBytes", "dispatchMaxBuffer"),
    *("getMessageEntireTimeMax", "pageCacheLockTimeMills", "remainTransientStoreBufferNumbs"),
    *("bootTimestamp", "earliestMessageTimeStamp", "startAcceptSendRequestTimeStamp"),
    *("EndTransactionQueueSize", "EndTransactionThreadPoolQueueCapacity"),
]
RATIOS = ["commitLogDiskRatio", "consumeQueueDiskRatio"]
FRACTIONS = [*RATIOS, "putMessageAverageSize", "putLatency99", "putLatency999"]
RATES = ["putTps", "getMissTps", "getFoundTps", "getTotalTps"]
TEXTS = [
    *("runtime", "brokerVersionDesc", "putMessageDistributeTime"),
    *("commitLogDirCapacity", "remainHowManyDataToFlush"),
]

OF_4_9 = {"brokerVersion", "getTransferedTps"}
OF_5_5 = {
    *(
        "getTransferredTps",
        "brokerActive",
        "timerReadBehind",
        "timerOffsetBehind",
        "timerCongestNum",
    ),
    *("timerEnqueueTps", "timerDequeueTps"),
    *(name.replace("send", kind) for kind in ("ack", "litePull") for name in QUEUES[:3]),
}
KEYS = {"4.9.7": OF_4_9, "5.5.0": OF_5_5, "rocketpoll": OF_4_9 | OF_5_5 | OURS}


@pytest.fixture
def told(cluster):
    def figures():
        with Admin(cluster.name_server) as admin:
            try:
                return admin.runtime_info()[cluster.broker_name]
            except BrokerRefused:  # in its first second, a RocketMQ broker has no statistics yet
                return None

    return wait_until("figures", figures)


def test_runtime_info_has_rocketmqs_keys(told, brokers):
    named = {
        name
        for name in told
        if not name.startswith(("scheduleMessageOffset_", "commitLogDiskRatio_"))
    }
    assert named == {*NUMBERS, *FRACTIONS, *RATES, *TEXTS} | KEYS[brokers[0]]


def test_runtime_info_numbers_can_be_parsed(told):
    for name in NUMBERS:
        assert int(told[name]) >= -1, name
    for name in FRACTIONS:
        assert float(told[name]) >= 0, name
    for name in (
        *RATES,
        "getTransferredTps" if "getTransferredTps" in told else "getTransferedTps",
    ):
        assert all(float(each) >= 0 for each in told[name].split(" ") if each), name


def test_runtime_info_delay_levels_show_delivered_and_stored_offsets(told):
    for name in told:
        if name.startswith("scheduleMessageOffset"):
            delivered, stored = map(int, told[name].split(",")[:2])
            assert 0 <= delivered <= stored


def test_runtime_info_counts_send_times_in_rocketmqs_cells(told):
    if told["putMessageDistributeTime"] == "null":  # a RocketMQ broker's value in its first minute
        return
    cells = [each.split(":") for each in told["putMessageDistributeTime"].split(" ") if each]
    assert [name.strip("[]") for name, _ in cells] == CELLS
    assert all(int(count) >= 0 for _, count in cells)


def test_runtime_info_disk_sizes_have_known_units(told):
    words = told["commitLogDirCapacity"].split(" ")
    for amount, unit in ((words[2], words[3][:-1]), (words[6], words[7][:-1])):
        assert float(amount) >= 0
        assert unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    assert float(told["remainHowManyDataToFlush"].split(" ")[0]) >= 0
    assert re.fullmatch(r"\[ \d+ days, \d+ hours, \d+ minutes, \d+ seconds ]", told["runtime"])


def test_runtime_info_disk_ratio_counts_usable_space_only(told):
    """Space reserved for root counts neither as used nor as free."""
    (path,) = [name.partition("_")[2] for name in told if name.startswith("commitLogDiskRatio_")]
    _, used, available = shutil.disk_usage(path)
    expected = pytest.approx(
        used / (used + available), abs=0.02
    )  # RocketMQ rounds up to a hundredth
    for name in told:
        if "DiskRatio" in name:
            assert float(told[name]) == expected, name
