"""PopConfig: the settings of consumers that pop, by RocketMQ's names."""

from __future__ import annotations

from dataclasses import dataclass

from rmq_spark.wire.bodies.clients import MessageRequestMode

from ..common.setting import COUNT, FLAG, choice, number, setting


@dataclass(frozen=True, kw_only=True)
class PopConfig:
    """The settings of pops, of their retries, and of the queues assigned to consumers."""

    revive_queue_nums: int = setting(
        "reviveQueueNum",
        number(1, 256),
        "queues over which check points and acknowledgements of pops are spread",
        default=8,
    )
    retry_topic_v2: bool = setting(
        "enableRetryTopicV2",
        FLAG,
        "true: retry topics of pops are named %RETRY%group+topic; false: %RETRY%group_topic",
        default=False,
    )
    retrieve_from_retry_topic_v1: bool = setting(
        "retrieveMessageFromPopRetryTopicV1",
        FLAG,
        "whether pops also read retry topics of the old name with enableRetryTopicV2=true",
        default=True,
    )
    from_retry_percent: int = setting(
        "popFromRetryProbability",
        number(0, 100),
        "percent of pops that read the retry topic before the topic; all others read it after that",
        default=20,
    )
    is_threshold_enabled: bool = setting(
        "enablePopMessageThreshold",
        FLAG,
        "whether popInflightMessageThreshold is enforced",
        default=False,
    )
    in_flight_max: int = setting(
        "popInflightMessageThreshold",
        COUNT,
        "maximum unacknowledged messages of one group and queue; past it, pops skip the queue",
        default=10_000,
    )
    default_request_mode: MessageRequestMode = setting(
        "defaultMessageRequestMode",
        choice(MessageRequestMode),
        "PULL or POP: for consumers that leave the assignment of queues to the broker",
        default=MessageRequestMode.PULL,
    )
    default_share_queue_num: int = setting(
        "defaultPopShareQueueNum",
        number(0, 1 << 20),
        "other members whose queues a member may pop, too; 0: every member pops all queues",
        default=0,
        rocketmq="-1, which means the same",
    )
