"""Consumer settings: their checks, and Java's defaults."""

import time

import pytest
from support.rocketmq import java_vectors

from rmq_spark.client.consumer.pull.pull_task import PullLimits
from rmq_spark.client.consumer.settings import (
    LitePullSettings,
    PushSettings,
    effective_settings,
)
from rmq_spark.client.errors import MessageRejected
from rmq_spark.wire.bodies.clients import ConsumeFromWhere
from rocketpoll import LitePullConsumer, aio


@pytest.mark.parametrize("kind", [LitePullSettings, PushSettings])
def test_default_consumer_settings_pass_and_start_half_an_hour_ago(kind):
    settings = kind()
    settings.check()
    assert 1_799_000 < time.time() * 1000 - settings.consume_timestamp_ms < 1_900_000


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (LitePullSettings, "pull_batch_size", 0),
        (LitePullSettings, "pull_batch_size", 1_025),
        (LitePullSettings, "auto_commit_interval_ms", 999),
        (LitePullSettings, "topic_metadata_check_interval_ms", 0),
        (LitePullSettings, "rebalance_interval_ms", 0),
        (LitePullSettings, "persist_consumer_offset_interval_ms", 0),
        (PushSettings, "pull_batch_size", 0),
        (PushSettings, "pull_interval_ms", -1),
        (PushSettings, "consume_thread_max", 0),
        (PushSettings, "consume_message_batch_max_size", 1_025),
        (PushSettings, "max_reconsume_times", -2),
        (PushSettings, "max_reconsume_times", 2**31),
        (LitePullSettings, "consume_timestamp_ms", -1),
        (LitePullSettings, "consume_timestamp_ms", 1_750_000_000),
        (LitePullSettings, "poll_timeout_ms", -1),
        (PushSettings, "consume_timeout_ms", 0),
        (PushSettings, "await_termination_ms", 1_501),
        (PushSettings, "suspend_current_queue_time_ms", 9),
    ],
)
def test_invalid_setting_is_refused_by_name(kind, name, value):
    with pytest.raises(MessageRejected, match=f"{name}: needed .*, found {value}"):
        kind(**{name: value}).check()


@pytest.mark.parametrize("name", PullLimits.__dataclass_fields__)
def test_pull_limit_of_zero_is_refused(name):
    with pytest.raises(MessageRejected, match=name):
        LitePullSettings(limits=PullLimits(**{name: 0})).check()


@pytest.mark.parametrize("kind", [LitePullSettings, PushSettings])
def test_consumer_timeout_must_exceed_the_brokers_suspend_time(kind):
    with pytest.raises(
        MessageRejected, match="consumer_timeout_ms_when_suspend: needed 30001 or more"
    ):
        kind(broker_suspend_max_time_ms=30_000).check()


@pytest.mark.parametrize("flag", ["false", "", None, 0, 1])
def test_auto_commit_setting_must_be_bool(flag):
    with pytest.raises(TypeError, match="auto_commit: needed True or False"):
        LitePullSettings(auto_commit=flag).check()


_LIMITS = {
    "pull_threshold_for_all": "pullThresholdForAll",
    "pull_threshold_for_queue": "pullThresholdForQueue",
    "pull_threshold_size_for_queue_mib": "pullThresholdSizeForQueue",
}
_BOTH = {
    "message_model": "messageModel",
    "consume_from_where": "consumeFromWhere",
    "persist_consumer_offset_interval_ms": "persistConsumerOffsetInterval",
    "pull_time_delay_ms_when_exception": "pullTimeDelayMillsWhenException",
    "pull_batch_size": "pullBatchSize",
}
_LITE = {
    **_BOTH,
    **_LIMITS,
    "consume_max_span": "consumeMaxSpan",
    "broker_suspend_max_time_ms": "brokerSuspendMaxTimeMillis",
    "consumer_timeout_ms_when_suspend": "consumerTimeoutMillisWhenSuspend",
    "auto_commit": "autoCommit",
    "auto_commit_interval_ms": "autoCommitIntervalMillis",
    "poll_timeout_ms": "pollTimeoutMillis",
    "topic_metadata_check_interval_ms": "topicMetadataCheckIntervalMillis",
}
_PUSH = {
    **_BOTH,
    **_LIMITS,
    "consume_max_span": "consumeConcurrentlyMaxSpan",
    "pull_interval_ms": "pullInterval",
    "consume_thread_max": "consumeThreadMax",
    "consume_message_batch_max_size": "consumeMessageBatchMaxSize",
    "max_reconsume_times": "maxReconsumeTimes",
    "suspend_current_queue_time_ms": "suspendCurrentQueueTimeMillis",
    "await_termination_ms": "awaitTerminationMillisWhenShutdown",
}
del _PUSH["pull_threshold_for_all"]  # push consumers do not use it
_NOT_ROCKETMQS = {"await_termination_ms"}


@java_vectors.each("defaults", where=lambda vector: "Consumer" in vector["kind"])
def test_consumer_settings_defaults_are_javas_except_documented_ones(vector):
    kind, names = (LitePullSettings, _LITE) if "Lite" in vector["kind"] else (PushSettings, _PUSH)
    settings = kind()
    differ = set()
    for ours, theirs in names.items():
        value = getattr(settings if hasattr(settings, ours) else settings.limits, ours)
        if getattr(value, "name", value) != vector["settings"][theirs]:
            differ.add(ours)
    assert differ == _NOT_ROCKETMQS & names.keys()
    if kind is PushSettings:  # PushSettings counts in minutes
        assert settings.consume_timeout_ms == vector["settings"]["consumeTimeout"] * 60_000


@pytest.mark.parametrize(
    ("start", "where", "timestamp_ms"),
    [
        ("earliest", ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, None),
        ("latest", ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, None),
        ("2026-01-31T12:00Z", ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, 1_769_860_800_000),
        (1_769_860_800_000, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, 1_769_860_800_000),
    ],
)
@pytest.mark.parametrize("kind", [LitePullSettings, PushSettings])
def test_start_replaces_the_first_offset_of_the_settings(kind, start, where, timestamp_ms):
    given = kind(consume_from_where=ConsumeFromWhere.CONSUME_FROM_MIN_OFFSET, pull_batch_size=7)
    settings = effective_settings(kind, given, start)
    assert (settings.consume_from_where, settings.pull_batch_size) == (where, 7)
    assert settings.consume_timestamp_ms == (timestamp_ms or given.consume_timestamp_ms)


@pytest.mark.parametrize("made", [LitePullConsumer, aio.Consumer])
def test_consumer_with_an_unknown_start_is_refused_with_the_forms(made):
    with pytest.raises(MessageRejected, match=r'start: needed "earliest", .*"-1h".*, found \W*new'):
        made("G", "localhost:9876", start="newest")
