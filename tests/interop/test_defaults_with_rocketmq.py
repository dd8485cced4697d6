"""Classes that from-rocketmq.md calls the same have the members and defaults of
RocketMQ's classes."""

import dataclasses
import enum
import json
import re
import subprocess
from functools import cache

import pytest
from support.rocketmq.java_programs import ROOT, START_QUICKLY, java_program
from test_from_rocketmq import ROWS, linked, module_at

from rmq_spark.client.consumer.pull.pull_task import PullLimits
from rmq_spark.client.consumer.settings import LitePullSettings, PushSettings
from rocketpoll.broker.settings.settings import KEYS, config_of

pytestmark = pytest.mark.interop

VERSION = "4.9.7"
SECONDS_MAX = 120
SOURCE = ROOT / "tests" / "java" / "defaults" / "Defaults.java"
CLASSES = {
    name.rpartition(".")[2]: f"org.apache.rocketmq.{name}"
    for name in (
        "client.consumer.DefaultLitePullConsumer",
        "client.consumer.DefaultMQPushConsumer",
        "client.consumer.PullStatus",
        "client.consumer.listener.ConsumeConcurrentlyStatus",
        "client.consumer.listener.ConsumeOrderlyStatus",
        "client.impl.consumer.DefaultLitePullConsumerImpl",
        "client.impl.consumer.DefaultMQPushConsumerImpl",
        "client.ClientConfig",
        "common.BrokerConfig",
        "common.ServiceState",
        "common.consumer.ConsumeFromWhere",
        "common.protocol.ResponseCode",
        "common.protocol.heartbeat.MessageModel",
        "store.ConsumeQueue",
        "store.GetMessageStatus",
        "store.config.BrokerRole",
        "store.config.FlushDiskType",
        "store.config.MessageStoreConfig",
    )
}
DIFFERENT_SETTINGS = {
    "brokerName",
    "brokerIP1",
    "enablePropertyFilter",
    "flushDiskType",
    "namesrvAddr",
    "transactionCheckInterval",
}
"""Settings with intentionally different defaults; the first two are the machine's in RocketMQ, the
fifth is null there, and the last is that of 5.x."""


@cache
def javas():
    """Return the members and values of RocketMQ's classes, by simple class names."""
    program = java_program("peers", VERSION)
    command = [program.executable, *START_QUICKLY, "-cp", program.class_path, str(SOURCE)]
    run = subprocess.run(
        [*command, *CLASSES.values()],
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS_MAX,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    (line,) = (line for line in run.stdout.splitlines() if line.startswith("defaults "))
    return json.loads(line.removeprefix("defaults "))


def as_java(value):
    """Return a value of ours as Java prints it."""
    if isinstance(value, enum.Enum):
        return value.name
    return str(value).lower() if isinstance(value, bool) else str(value)


def default_of(owner, name):
    """Return the default of a settings class's field."""
    return next(each.default for each in dataclasses.fields(owner) if each.name == name)


def test_enums_called_the_same_have_rocketmqs_members():
    compared = []
    for row in ROWS:
        for name in row.rocketmqs:
            members = javas().get(name, {}).get("members")
            if row.verdict == "same" and members is not None:
                ours, path = linked(row.here)
                assert set(members) == {each.name for each in getattr(module_at(path), ours)}, name
                compared.append(name)
    assert {"PullStatus", "ConsumeConcurrentlyStatus"} <= set(compared)


def test_setting_defaults_equal_those_of_rocketmq_fields_of_the_same_name():
    compared = []
    for row in ROWS:
        for name in row.rocketmqs:
            java_class, _, member = name.partition("#")
            field = re.sub(r"^[gs]et([A-Z])", lambda found: found[1].lower(), member)
            java = javas().get(java_class, {}).get(field)
            if row.verdict == "same" and java is not None:
                ours, path = linked(row.here)
                kind, _, attribute = ours.partition(".")
                owner = getattr(module_at(path), kind)
                if dataclasses.is_dataclass(owner):
                    assert as_java(default_of(owner, attribute)) == java, name
                    compared.append(name)
    assert {"BrokerConfig#shortPollingTimeMills", "BrokerConfig#longPollingEnable"} <= set(compared)


@pytest.mark.parametrize(
    ("settings", "field", "java"),
    [
        (PushSettings, "pull_batch_size", "DefaultMQPushConsumer#pullBatchSize"),
        (PushSettings, "pull_interval_ms", "DefaultMQPushConsumer#pullInterval"),
        (PushSettings, "consume_thread_max", "DefaultMQPushConsumer#consumeThreadMax"),
        (
            PushSettings,
            "consume_message_batch_max_size",
            "DefaultMQPushConsumer#consumeMessageBatchMaxSize",
        ),
        (PushSettings, "max_reconsume_times", "DefaultMQPushConsumer#maxReconsumeTimes"),
        (
            PushSettings,
            "suspend_current_queue_time_ms",
            "DefaultMQPushConsumer#suspendCurrentQueueTimeMillis",
        ),
        (
            PushSettings,
            "broker_suspend_max_time_ms",
            "DefaultMQPushConsumerImpl#BROKER_SUSPEND_MAX_TIME_MILLIS",
        ),
        (
            PushSettings,
            "consumer_timeout_ms_when_suspend",
            "DefaultMQPushConsumerImpl#CONSUMER_TIMEOUT_MILLIS_WHEN_SUSPEND",
        ),
        (
            PushSettings,
            "persist_consumer_offset_interval_ms",
            "ClientConfig#persistConsumerOffsetInterval",
        ),
        (LitePullSettings, "pull_batch_size", "DefaultLitePullConsumer#pullBatchSize"),
        (
            LitePullSettings,
            "broker_suspend_max_time_ms",
            "DefaultLitePullConsumer#brokerSuspendMaxTimeMillis",
        ),
        (
            LitePullSettings,
            "consumer_timeout_ms_when_suspend",
            "DefaultLitePullConsumer#consumerTimeoutMillisWhenSuspend",
        ),
        (LitePullSettings, "auto_commit", "DefaultLitePullConsumer#autoCommit"),
        (
            LitePullSettings,
            "auto_commit_interval_ms",
            "DefaultLitePullConsumer#autoCommitIntervalMillis",
        ),
        (LitePullSettings, "poll_timeout_ms", "DefaultLitePullConsumer#pollTimeoutMillis"),
        (
            LitePullSettings,
            "topic_metadata_check_interval_ms",
            "DefaultLitePullConsumer#topicMetadataCheckIntervalMillis",
        ),
        (
            LitePullSettings,
            "pull_time_delay_ms_when_exception",
            "DefaultLitePullConsumerImpl#pullTimeDelayMillsWhenException",
        ),
        (PullLimits, "pull_threshold_for_all", "DefaultLitePullConsumer#pullThresholdForAll"),
        (PullLimits, "pull_threshold_for_queue", "DefaultMQPushConsumer#pullThresholdForQueue"),
        (
            PullLimits,
            "pull_threshold_size_for_queue_mib",
            "DefaultMQPushConsumer#pullThresholdSizeForQueue",
        ),
        (PullLimits, "consume_max_span", "DefaultMQPushConsumer#consumeConcurrentlyMaxSpan"),
    ],
)
def test_consumer_setting_has_rocketmqs_default(settings, field, java):
    owner, _, name = java.partition("#")
    assert as_java(default_of(settings, field)) == javas()[owner][name]


def test_broker_settings_have_rocketmqs_defaults_but_for_a_few():
    """Each of our defaults equals RocketMQ's default parsed by the same setting."""
    theirs = javas()["MessageStoreConfig"] | javas()["BrokerConfig"]
    shared = KEYS.keys() & theirs.keys()
    different = {
        key for key in shared - DIFFERENT_SETTINGS if config_of({key: theirs[key]}) != config_of({})
    }
    assert len(shared) > len(DIFFERENT_SETTINGS) + 20
    assert different == set()
