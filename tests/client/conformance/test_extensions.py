"""Extensions are negotiated with our broker and not with RocketMQ; results are equal."""

import pytest
from support.clients.conformance_clients import bodies_of, messages, numbers, polled

from rmq_spark.client.errors import NotSupported
from rmq_spark.client.message import Message
from rmq_spark.wire.codes import SerializeType
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers.members import PullMessageRequestHeader

NONE = {"extensions": frozenset()}


def test_extension_agreement_has_the_extensions_of_the_broker(cluster, is_ours):
    agreement = cluster.api.agreement(cluster.address)
    if is_ours:
        assert agreement.extensions == frozenset(Extension)
        assert agreement.store_host == cluster.address
        assert agreement.born_host.startswith("127.0.0.1:")
    else:
        assert agreement.extensions == frozenset()
        assert agreement.serialize_type is SerializeType.ROCKETMQ
    assert cluster.api.supports_chunks(cluster.address) is is_ours


def test_client_without_extensions_agrees_on_none_with_any_broker(cluster):
    agreement = cluster.instance(**NONE).api.agreement(cluster.address)
    assert agreement.extensions == frozenset()
    assert agreement.serialize_type is SerializeType.ROCKETMQ


@pytest.mark.parametrize("sender", [{}, NONE], ids=["extended", "plain"])
@pytest.mark.parametrize("receiver", [{}, NONE], ids=["extended", "plain"])
def test_extended_and_plain_clients_understand_each_other(cluster, both_clients, sender, receiver):
    clients = both_clients
    pa = pytest.importorskip("pyarrow")
    topic = cluster.topic(queues=2)
    producer = clients.producer(instance=sender)
    for each in messages(topic, numbers(20), tags="t", keys="k", properties={"é": "ü"}):
        producer.send(each)
    producer.send(Message(topic, b"z" * 10_000))
    table = pa.table({"body": numbers(20, start=20), "tags": ["t"] * 20, "keys": ["k"] * 20})
    producer.send_table(table, topic)
    consumer = clients.lite(topic=topic, instance=receiver)
    assert sorted(polled(consumer, 41)) == [*numbers(40), "z" * 10_000]
    found = clients.read(topic, 41, queues=2)
    assert {(each.tags, each.keys) for each in found if len(each.body) == 3} == {("t", ("k",))}
    assert len(bodies_of(found)) == 41


def test_chunk_pull_from_a_broker_without_chunks_is_refused_and_keeps_the_connection(
    cluster, is_ours
):
    topic = cluster.topic(queues=1)
    header = PullMessageRequestHeader("G", topic, 0, 0, 32, 4, 0, 0, 0, "*", "TAG", 1 << 20)
    instance = cluster.instance(**NONE)
    answer = instance.api.pull_async(cluster.address, header, is_chunk=True)
    with pytest.raises(NotSupported):
        answer.result(10)
    assert instance.api.max_offset(cluster.address, cluster.queue(topic)) == 0
    assert is_ours is cluster.api.supports_chunks(cluster.address)
