"""A store with compaction, priorities, lite and static topics of RocketMQ 5, served by
our broker."""

import logging
from contextlib import contextmanager

import pytest
from support.brokers.broker_kinds import store_config, wait_until
from support.rocketmq.java_clients import JavaClients
from support.rocketmq.mqadmin import MqAdmin
from support.rocketmq.real_broker import CLUSTER, free_broker_port

from rmq_spark.client.errors import ClientError
from rmq_spark.wire.bodies.configs import TopicConfig
from rocketpoll import Admin, EmbeddedBroker, Message, Producer
from rocketpoll.broker.store.config import FlushDiskType

NAME = "broker-a"
ATTRIBUTES = {
    "Compacted": {"cleanup.policy": "COMPACTION"},
    "Prioritized": {"message.type": "PRIORITY"},
    "Lite": {"message.type": "LITE"},
}
REFUSED = {"Compacted": "compaction", "Lite": "lite topics", "Static": "static topics"}
SETTINGS = {"enableLmq": "true", "enableMultiDispatch": "true", "flushDiskType": "SYNC_FLUSH"}


def foreign_files(root):
    """Return the files of these features, up to their last non-zero byte."""
    places = ("compaction", "config/topicQueueMapping.json*", "consumequeue/%LMQ%*")
    return {
        str(file.relative_to(root)): file.read_bytes().rstrip(b"\0")
        for place in places
        for found in root.glob(place)
        for file in ([found] if found.is_file() else found.rglob("*"))
        if file.is_file()
    }


def bodies(admin, topic):
    return [bytes(body) for body in admin.read_table(topic).to_pydict()["body"]]


@contextmanager
def java_broker(rocketmq, root, port):
    process = rocketmq.start_broker(NAME, port, store_config(root), SETTINGS)
    try:
        with Admin(rocketmq.address) as admin:

            def is_up():
                try:
                    return NAME in admin.masters()
                except ClientError:
                    return False

            wait_until("the broker", is_up, 120)
            yield admin
            process.stop()
    finally:
        process.kill()


def test_store_with_features_that_we_do_not_serve_is_unharmed(rocketmq, tmp_path, caplog):
    if rocketmq.version == "4.9.7":
        pytest.skip("4.9 has none of them")
    root, port = tmp_path / "store", free_broker_port()
    with java_broker(rocketmq, root, port) as admin:
        for topic, attributes in ATTRIBUTES.items():
            config = TopicConfig(
                topic_name=topic, read_queue_nums=1, write_queue_nums=1, attributes=attributes
            )
            admin.create_topic(topic, config=config)
        with JavaClients(rocketmq.version, tmp_path / "clients", rocketmq.address) as clients:
            mqadmin = MqAdmin(clients, rocketmq.version)
            mqadmin.run("updateStaticTopic", "-t", "Static", "-qn", "2", "-c", CLUSTER)
        with Producer("p", rocketmq.address) as producer:
            for topic in ("Compacted", "Prioritized"):
                wait_until("the route", lambda topic=topic: topic in admin.topics())
                for number in range(6):
                    producer.send(Message(topic, b"m%d" % number, keys=[f"k{number % 2}"]))
        wait_until("the compaction log", lambda: any((root / "compaction").rglob("*")))
        compacted = bodies(admin, "Compacted")
    before = foreign_files(root)
    assert any(name.startswith("compaction/") for name in before)
    assert "config/topicQueueMapping.json" in before

    caplog.set_level(logging.WARNING)
    sizes = store_config(root)
    with (
        EmbeddedBroker(
            root,
            brokerName=NAME,
            brokerClusterName=CLUSTER,
            flushDiskType=FlushDiskType.SYNC_FLUSH.value,
            mappedFileSizeCommitLog=sizes.mapped_file_size_commit_log,
            mappedFileSizeConsumeQueue=sizes.mapped_file_size_consume_queue,
            maxHashSlotNum=sizes.max_hash_slot_num,
            maxIndexNum=sizes.max_index_num,
        ) as broker,
        Admin(broker.address) as admin,
        Producer("p", broker.address) as producer,
    ):
        assert bodies(admin, "Compacted") == [b"m%d" % number for number in range(6)]
        assert bodies(admin, "Prioritized") == [b"m%d" % number for number in range(6)]
        for topic, feature in REFUSED.items():
            with pytest.raises(ClientError, match=f"feature {feature}, which"):
                producer.send(Message(topic, b"ours"))
        producer.send(Message("Prioritized", b"ours"))
    said = " ".join(caplog.messages)
    for topic, feature in REFUSED.items():
        assert f"feature {feature} is not served: 1 topic ({topic})" in said
    assert "priorities of RocketMQ 5 are not served: 1 topic (Prioritized)" in said
    assert foreign_files(root) == before

    with java_broker(rocketmq, root, port) as admin:
        assert bodies(admin, "Compacted") == compacted
        assert bodies(admin, "Prioritized")[-1] == b"ours"
