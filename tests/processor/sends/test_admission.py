"""Admission of messages: whether a send is permitted, and which topics it creates."""

import pytest
from support.brokers.processors import nobody_waits, saved_at_once
from support.stores.small_store import small_config

from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.codes import ResponseCode
from rocketpoll.broker.processor.request import RequestRejected
from rocketpoll.broker.processor.sends.admission import TopicAdmission
from rocketpoll.broker.settings.config import BrokerConfig

DEFAULT = "TBW102"


def admission_of(parts, permission=6, must_wait=saved_at_once):
    config = BrokerConfig(store=small_config(parts.root), broker_permission=permission)
    return TopicAdmission(config, parts.topics, must_wait, nobody_waits)


def refused(admission, *asked):
    with pytest.raises(RequestRejected) as raised:
        admission.admit(*asked)
    return raised.value.code


def test_send_admission_accepts_existing_queues(parts):
    assert [admission_of(parts).admit("T", queue_id, DEFAULT, 4) for queue_id in range(4)] == [
        0,
        1,
        2,
        3,
    ]
    assert refused(admission_of(parts), "T", 4, DEFAULT, 4) is ResponseCode.SYSTEM_ERROR


def test_send_admission_accepts_a_read_only_queue_by_id(parts):
    parts.topics.put(
        TopicConfig(topic_name="Shrunk", read_queue_nums=4, write_queue_nums=2, perm=6)
    )
    admission = admission_of(parts)
    assert admission.admit("Shrunk", 3, DEFAULT, 4) == 3
    assert {admission.admit("Shrunk", -1, DEFAULT, 4) for _ in range(60)} == {0, 1}


def test_auto_created_topic_is_modelled_on_its_default_topic(parts):
    assert admission_of(parts).admit("New", 2, DEFAULT, 3) == 2
    assert parts.topics.get("New").write_queue_nums == 3
    assert refused(admission_of(parts), "Other", 0, "T", 3) is ResponseCode.TOPIC_NOT_EXIST
    assert refused(admission_of(parts), "Other", 0, None, 3) is ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize(
    ("attributes", "feature"),
    [
        ({"cleanup.policy": "COMPACTION"}, "compaction"),
        ({"queue.type": "BatchCQ"}, "batch queues"),
        ({"message.type": "LITE", "lite.topic.expiration": "30"}, "lite topics"),
        ({"message.type": "PRIORITY", "cleanup.policy": "DELETE"}, None),
    ],
)
def test_topic_that_only_rocketmq_can_write_takes_no_messages(parts, attributes, feature):
    config = TopicConfig(topic_name="Foreign", attributes=attributes)
    parts.topics.put(config)
    assert parts.topics.unserved_feature(config) == feature
    if feature is None:
        assert admission_of(parts).admit("Foreign", 0, DEFAULT, 4) == 0
        return
    with pytest.raises(RequestRejected, match=f"feature {feature}, which") as raised:
        admission_of(parts).admit("Foreign", 0, DEFAULT, 4)
    assert raised.value.code is ResponseCode.NO_PERMISSION


def test_message_to_a_retry_topic_needs_no_default_topic(parts):
    assert admission_of(parts).admit("%RETRY%G", 0, None, 0) == 0


@pytest.mark.parametrize("topic", ["rmq_sys_x", "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"])
def test_message_does_not_create_a_system_topic(parts, topic):
    before = dict(parts.topics.topics)
    assert refused(admission_of(parts), topic, 0, DEFAULT, 4) is ResponseCode.NO_PERMISSION
    assert parts.topics.topics == before


@pytest.mark.parametrize("topic", ["", "a b", "x" * 128])
def test_message_to_an_invalid_topic_name_is_refused(parts, topic):
    assert refused(admission_of(parts), topic, 0, DEFAULT, 4) is ResponseCode.SYSTEM_ERROR
    assert parts.topics.get(topic) is None


def test_send_to_a_broker_only_topic_is_refused(parts):
    assert parts.topics.get("SCHEDULE_TOPIC_XXXX")
    assert (
        refused(admission_of(parts), "SCHEDULE_TOPIC_XXXX", 0, DEFAULT, 4)
        is ResponseCode.NO_PERMISSION
    )


def test_send_admission_refuses_unwritable_topic_or_broker(parts):
    parts.make_topic("R", perm=4)
    assert refused(admission_of(parts), "R", 0, DEFAULT, 4) is ResponseCode.NO_PERMISSION
    assert refused(admission_of(parts, 4), "T", 0, DEFAULT, 4) is ResponseCode.NO_PERMISSION
