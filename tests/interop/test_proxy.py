"""Our clients, source and sink behind RocketMQ's proxy, by its remoting port.

The conformance suite of our clients runs behind the proxy as well: tests/client/conformance, with
``make peers``.
"""

import pytest
from support.brokers.broker_kinds import NAME, wait_until
from support.brokers.clusters import PROXY, Cluster, running
from support.clients.conformance_clients import Clients, Listener, numbers, polled
from support.spark.sessions import started_session
from support.spark.sink_fixture import SinkRoom

from rmq_spark.cli.main import main
from rmq_spark.client.errors import MessageIllegal, NotSupported
from rmq_spark.client.manifest import commits_topic_name
from rmq_spark.client.message import Message
from rocketpoll import read_table


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    """Run the proxy, which is the clients' name server, and the broker behind it."""
    with running(f"{PROXY}5.5.0", tmp_path_factory.mktemp("proxy")) as found:
        yield found


@pytest.fixture
def cluster(addresses):
    cluster = Cluster(*addresses, NAME)
    yield cluster
    cluster.close()


@pytest.fixture
def clients(cluster):
    return Clients(cluster)


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    session = started_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def room(spark, cluster, tmp_path):
    room = SinkRoom(spark, cluster, tmp_path)
    yield room
    room.close()


def send(clients, topic, *bodies):
    producer = clients.producer()
    for body in bodies:
        producer.send(Message(topic, body.encode()))


def test_producers_and_both_kinds_of_consumers_work_behind_the_proxy(cluster, clients):
    topic, group = cluster.topic(), cluster.group()
    send(clients, topic, *numbers(20))
    consumer = clients.lite(group, topic)
    assert sorted(polled(consumer, 20)) == numbers(20)
    consumer.commit()
    listener = Listener()
    clients.push(listener, topic=topic)
    assert sorted(listener.wait_for(numbers(20))) == numbers(20)
    wait_until("offsets", lambda: cluster.stored_offset(group, topic) == 5)
    assert read_table(topic, cluster.name_server).num_rows == 20


def test_batch_reads_and_streams_read_and_write_behind_the_proxy(room):
    topic, out = room.cluster.topic(), room.cluster.topic()
    send(room.clients, topic, *numbers(30))
    assert room.bodies(topic=topic) == numbers(30)
    rows = room.stream(topic=topic, startingOffsets="earliest", columns="body")
    query = (
        rows.writeStream.format("rocketpoll")
        .options(namesrvAddr=room.cluster.name_server, topic=out)
        .option("checkpointLocation", str(room.checkpoint()))
        .start()
    )
    try:
        wait_until("the first rows", lambda: room.bodies(topic=out) == numbers(30), 90)
        send(room.clients, topic, "new")
        wait_until("the new row", lambda: room.bodies(topic=out) == [*numbers(30), "new"], 90)
    finally:
        query.stop()


def test_sink_writes_exactly_once_behind_the_proxy_where_the_commits_topic_exists(room):
    topic, out = room.cluster.topic(), room.cluster.topic()
    room.cluster.topic(queues=1, name=commits_topic_name(out))
    send(room.clients, topic, *numbers(30))
    rows = room.stream(topic=topic, startingOffsets="earliest", columns="body")
    query = (
        rows.writeStream.format("rocketpoll")
        .options(namesrvAddr=room.cluster.name_server, topic=out, delivery="exactly_once")
        .option("checkpointLocation", str(room.checkpoint()))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert room.bodies(topic=out, isolation="committed") == numbers(30)


def test_requests_of_operators_are_refused_and_the_error_names_a_name_server(
    cluster, clients, capsys
):
    with pytest.raises(NotSupported, match=r"Give the address of a name server: a proxy of"):
        clients.admin().topics()
    assert main(["topic", "list", "--namesrv", cluster.name_server]) == 1
    said = capsys.readouterr().err
    assert said.endswith("a proxy of RocketMQ answers producers and consumers only\n")


def test_refused_message_type_names_the_attribute_of_the_topic(cluster, clients):
    producer = clients.producer()
    with pytest.raises(MessageIllegal, match=r"a topic with the attribute message\.type=DELAY"):
        producer.send(Message(cluster.topic(), b"late", delay_level=1))
    with pytest.raises(MessageIllegal, match=r"but actual type is NORMAL\. Create the topic first"):
        producer.send(Message("NobodyCreatedIt", b"x"))
