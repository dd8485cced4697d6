"""Request-reply on every kind of broker: the reply of a consumer reaches the waiting producer."""

import threading

import pytest
from support.brokers.broker_kinds import wait_until

from rmq_spark.client.errors import (
    BrokerRefused,
    ClientShutDown,
    MessageRejected,
    ReplyTimeout,
    RouteNotFound,
)
from rmq_spark.client.message import Message

LONG = "".join(f"line {number}\n" for number in range(100_000)).encode()
PATIENCE_MS = 20_000


@pytest.fixture
def clients(both_clients):
    return both_clients


@pytest.fixture
def topic(cluster):
    return cluster.topic()


@pytest.fixture
def replies(clients, topic):
    """Start a consumer that replies to each request with a function's result."""

    def start(reply):
        replier = clients.producer()
        consumer = clients.lite(topic=topic)
        end = threading.Event()

        def run():
            while not end.is_set():
                for message in consumer.poll(100):
                    reply(replier, message)

        thread = threading.Thread(target=run)
        thread.start()
        started.append((end, thread))

    started = []
    yield start
    for end, thread in started:
        end.set()
        thread.join()


def echo(replier, message):
    replier.reply(message, b"answer to " + message.body, {"colour": "red"})


def test_request_returns_the_reply_of_the_consumer(clients, topic, replies):
    replies(echo)
    producer = clients.producer()
    for number in range(3):
        sent = Message(topic, b"%d" % number, tags="blue", keys="k", properties={"a": "b"})
        reply = producer.request(sent, timeout_ms=PATIENCE_MS)
        assert reply.body == b"answer to %d" % number
        assert reply.properties["colour"] == "red"
        assert reply.born_host.startswith("127.0.0.1:")
        assert reply.born_timestamp <= int(reply.properties["ARRIVE_TIME"])
    found = clients.read(topic, 3)
    assert {(each.tags, each.keys, each.properties["a"]) for each in found} == {
        ("blue", ("k",), "b")
    }
    assert {each.properties["REPLY_TO_CLIENT"] for each in found} == {producer.instance.client_id}
    assert len({each.correlation_id for each in found}) == 3


def test_request_goes_to_the_chosen_queue_or_that_of_its_sharding_key(
    cluster, clients, topic, replies
):
    replies(lambda replier, asked: replier.reply(asked, b"%d" % asked.queue.queue_id))
    producer = clients.producer()
    chosen = (cluster.queue(topic, 2), lambda queues: queues[-1])
    found = [producer.request(Message(topic, b"x"), each, PATIENCE_MS).body for each in chosen]
    assert found == [b"2", b"3"]
    sharded = Message(topic, b"x", sharding_key="k")
    assert len({producer.request(sharded, None, PATIENCE_MS).body for _ in range(3)}) == 1


def test_concurrent_requests_get_each_its_own_reply(clients, topic, replies):
    replies(lambda replier, message: replier.reply(message, message.body * 2))
    producer = clients.producer()
    found = {}

    def ask(number):
        body = b"%d" % number
        found[body] = producer.request(Message(topic, body), timeout_ms=PATIENCE_MS).body

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(30)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 30
    assert all(reply == body * 2 for body, reply in found.items())
    assert producer.health().pending_requests == 0


def test_compressed_reply_arrives_whole(clients, topic, replies):
    replies(lambda replier, message: replier.reply(message, LONG))
    reply = clients.producer().request(Message(topic, LONG), timeout_ms=PATIENCE_MS)
    assert reply.body == LONG


def test_reply_can_be_sent_like_any_message(clients, topic, replies):
    replies(lambda replier, message: replier.send_one_way(message.reply(b"one-way")))
    assert clients.producer().request(Message(topic, b"x"), None, PATIENCE_MS).body == b"one-way"


def test_request_without_a_reply_times_out_and_names_where_it_is_stored(clients, topic):
    with pytest.raises(
        ReplyTimeout, match=r"within 1000 ms: the request is stored at offset 0 of queue"
    ):
        clients.producer().request(Message(topic, b"x"), timeout_ms=1_000)
    (found,) = clients.read(topic, 1)
    assert found.properties["TTL"] == "1000"


def test_request_to_a_missing_topic_fails_as_a_send_does(cluster, clients):
    producer = clients.producer(rules={"create_topic_key": "NoSuchTemplate"})
    with pytest.raises(RouteNotFound):
        producer.request(Message(f"{cluster.topic()}-missing", b"x"))
    assert producer.health().pending_requests == 0


def test_shutdown_fails_requests_that_wait(clients, topic):
    producer, errors = clients.producer(), []

    def ask():
        try:
            producer.request(Message(topic, b"x"), timeout_ms=PATIENCE_MS)
        except ClientShutDown as error:
            errors.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    clients.read(topic, 1)
    producer.shutdown()
    asking.join()
    assert len(errors) == 1


def test_reply_to_a_gone_requester_is_refused(clients, topic):
    asker, replier = clients.producer(), clients.producer()
    with pytest.raises(ReplyTimeout):
        asker.request(Message(topic, b"x"), timeout_ms=500)
    (asked,) = clients.read(topic, 1)
    replier.reply(asked, b"too late")  # accepted, as by Java's clients
    asker.shutdown()

    def is_refused():
        try:
            replier.reply(asked, b"much too late")
        except BrokerRefused as error:
            return "not found" in str(error)
        return False

    wait_until("the broker knows", is_refused)


def test_reply_to_an_ordinary_message_is_rejected(clients, topic):
    producer = clients.producer()
    producer.send(Message(topic, b"x"))
    (found,) = clients.read(topic, 1)
    with pytest.raises(MessageRejected, match=r"Producer\.request\(\)"):
        producer.reply(found, b"answer")


def test_replies_cannot_be_sent_in_a_batch(clients, topic):
    producer = clients.producer()
    with pytest.raises(ReplyTimeout):
        producer.request(Message(topic, b"x"), timeout_ms=500)
    (found,) = clients.read(topic, 1)
    with pytest.raises(MessageRejected, match="no reply"):
        producer.send_batch([found.reply(b"one"), found.reply(b"two")])
