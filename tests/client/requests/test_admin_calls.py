import pytest

from rmq_spark.client.errors import BrokerRefused, ConsumerNotOnline, TopicNotFound
from rmq_spark.wire.bodies.clients import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_spark.wire.headers.members import SendMessageRequestHeader
from rmq_spark.wire.headers.operators import (
    CloneGroupOffsetRequestHeader,
    ConsumeMessageDirectlyResultRequestHeader,
    QueryMessageRequestHeader,
    ResetOffsetRequestHeader,
)
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.record import decode_record, decode_records

QUEUE = MessageQueue("T", "broker-a", 0)
FOREVER = (1 << 63) - 1


@pytest.fixture
def address(running_broker, api):
    api.admin.create_topic(
        running_broker.address, TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)
    )
    return running_broker.address


def send(api, address, body=b"x", key="k"):
    header = SendMessageRequestHeader("P", "T", "TBW102", 4, 0, 0, 1_000, 0, f"KEYS\x01{key}\x02")
    return api.send(address, header, body, "ID")


def test_topics_come_and_go(api, address):
    assert api.admin.topic_configs(address)["T"].write_queue_nums == 2
    send(api, address)
    stats = api.admin.topic_stats(address, "T").offset_table
    assert {queue.queue_id: offset.max_offset for queue, offset in stats.items()} == {0: 1, 1: 0}
    api.admin.delete_topic(address, "T")
    with pytest.raises(TopicNotFound):
        api.admin.topic_stats(address, "T")


def test_groups_come_and_go_and_have_offsets(api, address):
    api.admin.create_group(address, SubscriptionGroupConfig(group_name="G", retry_max_times=3))
    assert api.admin.group_configs(address)["G"].retry_max_times == 3
    send(api, address)
    api.update_consumer_offset(address, "G", QUEUE, 1)
    assert api.admin.groups_of_topic(address, "T") == {"G"}
    assert api.admin.consume_stats(address, "G", "T").offset_table[QUEUE].consumer_offset == 1
    api.admin.create_group(address, SubscriptionGroupConfig(group_name="H"))
    api.admin.clone_group_offset(
        address, CloneGroupOffsetRequestHeader("G", "H", "T", offline=True)
    )
    assert api.query_consumer_offset(address, "H", QUEUE) == 1
    with pytest.raises(ConsumerNotOnline):
        api.admin.reset_offset(address, ResetOffsetRequestHeader("T", "G", 0, is_force=True))
    api.admin.delete_group(address, "G", with_offsets=True)
    assert api.query_consumer_offset(address, "G", QUEUE, zero_if_young=False) is None


def test_messages_are_found_by_key_and_by_place(api, address):
    send(api, address, b"found", "needle")
    records = api.admin.query_message(
        address, QueryMessageRequestHeader("T", "needle", 8, 0, FOREVER, False)
    )
    (stored,) = decode_records(records)
    assert stored.body == b"found"
    assert decode_record(api.admin.view_message(address, stored.physical_offset)).body == b"found"
    assert (
        bytes(
            api.admin.query_message(address, QueryMessageRequestHeader("T", "hay", 8, 0, FOREVER))
        )
        == b""
    )
    with pytest.raises(BrokerRefused):
        api.admin.view_message(address, 1_000_000)


def test_clients_are_seen_and_asked(api, address):
    with pytest.raises(ConsumerNotOnline):
        api.admin.consumer_connection(address, "G")
    consumer = ConsumerData(group_name="G", subscription_data_set=(SubscriptionData(topic="T"),))
    producer = ProducerData(group_name="P")
    api.heartbeat(
        address,
        HeartbeatData(client_id="c", producer_data_set=(producer,), consumer_data_set=(consumer,)),
    )
    assert [
        each.client_id for each in api.admin.consumer_connection(address, "G").connection_set
    ] == ["c"]
    assert [
        each.client_id for each in api.admin.producer_connection(address, "P").connection_set
    ] == ["c"]
    assert set(api.admin.producers(address).data) == {"P"}
    with pytest.raises(BrokerRefused):
        api.admin.consumer_running_info(address, "G", "somebody else")
    with pytest.raises(BrokerRefused):
        api.admin.consume_message_directly(
            address, ConsumeMessageDirectlyResultRequestHeader("G", "somebody else", "0" * 32)
        )


def test_broker_runtime_info_config_and_stats_are_read(api, address, running_broker):
    send(api, address)
    assert api.admin.runtime_info(address)["brokerVersionDesc"].startswith("V4_9")
    assert api.admin.broker_config(address)["brokerName"] == "broker-a"
    with pytest.raises(BrokerRefused):
        api.admin.broker_stats(address, "TOPIC_PUT_NUMS", "Nobody")
    running_broker.ask(lambda controller: controller.processors.sample_stats())
    assert api.admin.broker_stats(address, "TOPIC_PUT_NUMS", "T").stats_day.sum == 1
