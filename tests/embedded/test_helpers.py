"""Test helpers of the embedded broker: send, read everything, wait for messages."""

import threading
from contextlib import contextmanager

import pytest

from rmq_spark.client.errors import MessageRejected, RouteNotFound
from rocketpoll import LitePullConsumer, Message
from rocketpoll.broker.embedded import NotInTime
from rocketpoll.broker.testing import wait_until


def bodies(broker, topic):
    return [message.body for message in broker.messages(topic)]


def held(broker):
    return broker._runner._controller.hold_service.hold_count


@contextmanager
def waiting(broker, *arguments):
    """Run a thread that waits for messages; it must have ended after the test."""
    thread = threading.Thread(target=broker.wait_until_arrived, args=arguments)
    thread.start()
    yield
    thread.join(10)
    assert not thread.is_alive()


def test_embedded_messages_are_in_stored_order_across_queues(broker):
    broker.create_topic("orders", queues=3)
    sent = broker.send("orders", *map(str, range(20)), tags="created", keys="a b")
    assert {result.queue.queue_id for result in sent} == {0, 1, 2}
    seen = broker.messages("orders")
    assert [message.body.decode() for message in seen] == [str(number) for number in range(20)]
    assert {(message.tags, message.keys) for message in seen} == {("created", ("a", "b"))}


def test_helper_send_uses_the_current_queues_of_the_topic(broker):
    broker.create_topic("grown", 1)
    broker.send("grown", "a")
    broker.create_topic("grown", 3)
    assert {result.queue.queue_id for result in broker.send("grown", *"bcd")} == {0, 1, 2}
    broker.create_topic("grown", 1)
    assert {result.queue.queue_id for result in broker.send("grown", *"efg")} == {0}


def test_has_topic_tells_whether_a_topic_exists(broker, topic):
    assert broker.has_topic(topic)
    assert not broker.has_topic("missing")


def test_embedded_messages_lists_many_and_large_messages(broker, topic):
    with broker.producer() as producer:
        producer.send_batch([Message(topic, b"%d" % number) for number in range(5_000)])
        producer.send(Message(topic, b"x" * 1_000_000))  # compressed on the wire
    assert bodies(broker, topic) == [b"%d" % number for number in range(5_000)] + [b"x" * 1_000_000]


def test_embedded_broker_reads_a_topic_as_a_table(broker, topic):
    broker.send(topic, "one", "two", tags="a")
    broker.send(topic, "three", tags="b")
    table = broker.read_table(topic, columns=["body", "tags"])
    assert table.to_pydict() == {"body": [b"one", b"two", b"three"], "tags": ["a", "a", "b"]}
    results = broker.send(topic, "four")
    start = {result.queue: result.queue_offset for result in results}
    assert broker.read_table(topic, start=start).to_pydict()["body"] == [b"four"]
    assert broker.read_table(topic, tags="b", end="latest").num_rows == 1
    with pytest.raises(RouteNotFound, match="ordres"):
        broker.read_table("ordres")


def test_embedded_producers_have_distinct_groups_unless_named(broker, topic):
    first, second, third = broker.producer(), broker.producer(), broker.producer("billing")
    assert first.group != second.group
    assert third.group == "billing"
    for producer in (first, second, third):
        producer.send(Message(topic, b"one"))
    assert len(bodies(broker, topic)) == 3


def test_helper_errors_are_those_of_the_client(broker):
    with pytest.raises(RouteNotFound, match="ordres"):
        broker.messages("ordres")
    with pytest.raises(MessageRejected, match="topic"):
        broker.create_topic("no spaces")
    with pytest.raises(MessageRejected, match="at least one byte"):
        broker.send("orders", "")


WRONG = {
    "body: a dict": (
        lambda broker: broker.send("t", "x", {"id": 1}),
        r"body: .* or bytes.*json\.dumps",
    ),
    "body: int": (
        lambda broker: broker.send("t", 5),
        r"body: .*found int 5; for example: str\(5\)",
    ),
    "body: several": (lambda broker: broker.send("t", ["a", "b"]), r"body: .*\*bodies"),
    "body: a list": (lambda broker: broker.send("t", [1]), r"body: .*json\.dumps"),
    "body: none": (lambda broker: broker.send("t", None), "body: .*found NoneType"),
    "body: a message": (
        lambda broker: broker.send("t", Message("t", b"x")),
        r"body: .*found Message .*producer\(\)\.send\(Message\(",
    ),
    "topic: a message": (
        lambda broker: broker.send(Message("t", b"x")),
        r"topic: .*followed by bodies.*producer\(\)\.send\(Message\(",
    ),
    "topic: a number": (
        lambda broker: broker.send(5),
        r"topic: needed a string \(str\), followed by bodies, found int 5; for example: send\(",
    ),
    "tags: a list": (lambda broker: broker.send("t", "x", tags=["a"]), "tags: needed one tag"),
    "topic: a list": (lambda broker: broker.send(["t"], "x"), "topic: needed a string"),
    "queues: text": (
        lambda broker: broker.create_topic("t", "2"),
        "queues: needed a whole number",
    ),
    "count: text": (
        lambda broker: broker.wait_until_arrived("t", "2"),
        "count: needed a whole number",
    ),
    "timeout: text": (
        lambda broker: broker.wait_until_arrived("t", 2, "1"),
        "timeout: needed a number",
    ),
    "timeout, consumed": (
        lambda broker: broker.wait_until_consumed("g", "t", "1"),
        "timeout: needed a number",
    ),
}


@pytest.mark.parametrize(("ask", "why"), WRONG.values(), ids=WRONG)
def test_helper_arguments_of_wrong_type_are_refused_before_sending(broker, ask, why):
    with pytest.raises(TypeError, match=why) as raised:
        ask(broker)
    assert "; for example: " in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(RouteNotFound):
        broker.messages("t")


def test_embedded_send_without_bodies_is_refused(broker, topic):
    with pytest.raises(ValueError, match=r"bodies: needed at least one .*found none; for example:"):
        broker.send(topic)
    assert bodies(broker, topic) == []


WRONG_CALLS = {
    "send": (lambda broker: broker.send("t", "x", tag="a"), "argument 'tag'"),
    "create_topic": (lambda broker: broker.create_topic(), "argument: 'name'"),
    "slow": (lambda broker: broker.slow(second=1), "argument 'second'"),
}


@pytest.mark.parametrize(("call", "why"), WRONG_CALLS.values(), ids=WRONG_CALLS)
def test_wrong_call_of_an_embedded_broker_names_its_class(broker, request, call, why):
    name = request.node.callspec.id
    with pytest.raises(TypeError, match=rf"^EmbeddedBroker\.{name}\(\) .*{why}"):
        call(broker)


def test_embedded_message_keeps_several_keys_apart(broker, topic):
    broker.send(topic, "x", keys=["a", "b"])
    assert [message.keys for message in broker.messages(topic)] == [("a", "b")]


def test_wait_until_arrived_ends_with_the_message_by_a_held_pull(broker, topic):
    with waiting(broker, topic, 3):
        wait_until(lambda: held(broker) == 1)
        broker.send(topic, "one", "two")
        wait_until(lambda: held(broker) == 1)
        broker.send(topic, "three")
    wait_until(lambda: held(broker) == 0)
    broker.wait_until_arrived(topic, 3, timeout=0)


def test_wait_until_arrived_covers_all_queues(broker):
    broker.create_topic("many", queues=4)
    with waiting(broker, "many", 4):
        broker.send("many", *"1234")
    assert {message.queue.queue_id for message in broker.messages("many")} == {0, 1, 2, 3}


def test_wait_until_arrived_accepts_a_topic_created_meanwhile(broker):
    with waiting(broker, "made-later", 1):
        broker.send("made-later", "one")


def test_wait_timeout_reports_arrived_messages_and_leaves_no_held_pull(broker, topic):
    with pytest.raises(NotInTime, match=r"1 message .* there is no topic elsewhere"):
        broker.wait_until_arrived("elsewhere", 1, timeout=0)
    broker.send(topic, "one", "two")
    with pytest.raises(
        NotInTime, match=r"3 messages .* within 0.05 s: 2 have arrived, 2 in queue 0"
    ):
        broker.wait_until_arrived(topic, 3, timeout=0.05)
    wait_until(lambda: held(broker) == 0)


def test_wait_until_consumed_checks_committed_offsets(broker, topic):
    broker.send(topic, "one", "two")
    with pytest.raises(
        NotInTime, match=r"it has committed 0 of 2 in queue 0; 0 of its consumers are online"
    ):
        broker.wait_until_consumed("billing", topic, timeout=0)
    with LitePullConsumer("billing", broker.address) as consumer:
        consumer.subscribe(topic)
        seen = []
        while len(seen) < 2:
            seen += consumer.poll(1_000)
        consumer.commit()
        broker.wait_until_consumed("billing", topic)
        broker.send(topic, "three")
        with pytest.raises(
            NotInTime, match=r"it has committed 2 of 3 in queue 0; 1 of its consumers are online"
        ):
            broker.wait_until_consumed("billing", topic, timeout=0.05)


def test_deleted_topic_is_forgotten_by_the_helper(broker, topic):
    broker.send(topic, "one")
    broker.delete_topic(topic)
    with pytest.raises(RouteNotFound):
        broker.messages(topic)
    assert topic not in broker._connect().admin.instance.routes.topics
