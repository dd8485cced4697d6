"""RocketMQ's metrics, as its dashboards query them."""

from support.brokers.in_process import on_broker, tell
from support.brokers.metrics_endpoint import scrape
from support.clients.pops import ack, pop
from support.clients.remoting_clients import pull_request, pulled

from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.names import dlq_topic

ALL = {"cluster", "node_type", "node_id"}


@on_broker(metricsPort=0)
async def test_message_counter_metrics_have_topic_and_group_labels(broker):
    broker.controller.tables.topics.put(
        TopicConfig(topic_name="T", attributes={"message.type": "FIFO"})
    )
    client = await broker.connect()
    for body in ("a", "b"):
        await client.put(body)
    client.send(pull_request(0))
    assert pulled(await client.receive()).bodies == ["a", "b"]
    samples = await scrape(broker.controller.metrics_port)
    labels = {"topic": "T", "cluster": "DefaultCluster", "node_id": "broker-a"}
    assert samples("rocketmq_messages_in_total", message_type="fifo", **labels) == 2
    assert samples("rocketmq_throughput_in_total", **labels) > 150
    assert samples("rocketmq_messages_out_total", consumer_group="G", **labels) == 2
    assert samples("rocketmq_throughput_out_total", **labels) == samples(
        "rocketmq_throughput_in_total", **labels
    )
    assert samples.labels("rocketmq_messages_in_total") == ALL | {
        "topic",
        "message_type",
        "is_system",
    }


@on_broker(metricsPort=0)
async def test_consumer_group_lag_is_shown_online_and_offline(broker):
    tables = broker.controller.tables
    client = await broker.connect()
    for number in range(5):
        await client.put(str(number))
    tables.groups.find_or_create("billing")
    tables.offsets.commit("billing", "T", 0, 2)
    samples = await scrape(broker.controller.metrics_port)
    lag = {"consumer_group": "billing", "topic": "T", "is_retry": "false"}
    assert samples("rocketmq_consumer_lag_messages", **lag) == 3
    assert samples("rocketmq_consumer_lag_latency_milliseconds", **lag) >= 0
    assert samples.labels("rocketmq_consumer_lag_messages") == ALL | {
        "consumer_group",
        "topic",
        "is_retry",
        "is_system",
    }
    assert samples("rocketmq_consumer_connections") is None


@on_broker(metricsPort=0)
async def test_popped_messages_are_in_flight_until_they_are_acknowledged(broker):
    client = await broker.connect()
    for body in ("a", "b", "c"):
        await client.put(body)
    for group, acknowledged in (("slow", 1), ("done", 3)):
        popped = await pop(client, group=group, invisible_time=600_000)
        for each in popped[:acknowledged]:
            assert await ack(client, each) == ResponseCode.SUCCESS
    samples = await scrape(broker.controller.metrics_port)
    name, labels = "rocketmq_consumer_inflight_messages", {"topic": "T", "is_retry": "false"}
    assert samples(name, consumer_group="slow", **labels) == 2
    assert samples(name, consumer_group="done") is None
    assert samples.labels(name) == samples.labels("rocketmq_consumer_lag_messages")


def test_dead_letters_are_counted_by_group_and_outlast_a_restart(tmp_path):
    async def story(broker):
        client = await broker.connect()
        broker.make_topic(dlq_topic("billing"), queues=1)
        await client.put("dead", topic=dlq_topic("billing"))

    async def later(broker):
        samples = await scrape(broker.controller.metrics_port)
        assert samples("rocketmq_send_to_dlq_messages_total", consumer_group="billing") == 1

    tell(story, tmp_path, metricsPort=0)
    tell(later, tmp_path, metricsPort=0)


@on_broker(metricsPort=0)
async def test_storage_metrics_show_size_and_dispatch_lag(broker):
    client = await broker.connect()
    await client.put("a")
    samples = await scrape(broker.controller.metrics_port)
    size = samples("rocketmq_storage_size_bytes", storage_type="local", storage_medium="disk")
    assert size == broker.store.state().written_offset
    assert samples("rocketmq_storage_dispatch_behind_bytes") == 0
    assert samples("rocketmq_storage_flush_behind_bytes") >= 0
    assert samples("rocketmq_storage_message_reserve_time_milliseconds") >= 0
    assert samples("rocketmq_broker_permission") == 6
    assert samples("rocketmq_processor_watermark", processor="send") == 0
