"""Unmodified Java clients with TLS and keys do what access lists permit, and nothing else.

Each kind of producer and consumer of both versions, with both header codecs, on a real RocketMQ
with the same users and lists, and on our broker with each kind of lists.
"""

import itertools

import pytest
from support.access.answers import OPERATOR
from support.access.secured_brokers import (
    GROUPS,
    IDLE,
    NOBODY,
    READER,
    TOPICS,
    UNLISTED,
    WRITER,
    WRONG,
    every_secured,
    secured_broker,
    tls_options,
)
from support.access.signed_client import Key
from support.brokers.broker_kinds import NAME, wait_until
from support.rocketmq.java_clients import (
    JavaClients,
    JavaError,
    LiteConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    bodies_of,
    numbered,
    to_send,
)

pytestmark = pytest.mark.interop

NO_KEY = Key("", "")

REFUSED = {"users": 16, "accounts": 1}
"""The code of a refusal: that of 5.x, and that of 4.9."""

NOT_FOUND = -1
"""The code that a client reports if it got no route, and so knows no broker."""

FOR_EVER = (1 << 63) - 1


@pytest.fixture(scope="module", params=every_secured(), ids=str)
def secured(request):
    return request.param


@pytest.fixture(scope="module")
def broker(secured, tmp_path_factory):
    yield from secured_broker(secured, tmp_path_factory.mktemp("secured"))


@pytest.fixture(scope="module")
def java(secured, broker, tmp_path_factory):
    """Start a JVM whose own requests are signed by the operator."""
    home = tmp_path_factory.mktemp("clients")
    options = (
        *tls_options(home),
        f"-Drocketmq.serialize.type={secured.codec}",
        f"-Drocketpoll.accessKey={OPERATOR.name}",
        f"-Drocketpoll.secretKey={OPERATOR.secret}",
    )
    with JavaClients(secured.version, home, broker.name_server, *options) as clients:
        wait_until(
            "routes of the topics",
            lambda: all(
                clients.ask("admin queues", topic=topic) == {NAME: 1}
                for topic in (*TOPICS, UNLISTED)
            ),
        )
        yield clients


_numbers = itertools.count()


@pytest.fixture
def start(java):
    """Return a function that starts a client with a key, and stops it after the test."""
    started = []

    def start(kind, key, group, **options):
        keys = {"accessKey": key.name, "secretKey": key.secret}
        started.append(kind(java, group, **keys, **options))
        return started[-1]

    yield start
    for client in reversed(started):
        client.stop()


@pytest.fixture
def topic(request):
    """Return the names of a topic and a group of this test, which the access lists contain."""
    return TOPICS[_place(request)]


@pytest.fixture
def group(request):
    return GROUPS[_place(request)]


def _place(request):
    tests = [name for name in vars(request.module) if name.startswith("test_java")]
    return tests.index(request.node.originalname)


def test_java_producer_sends_in_every_way_and_lite_consumer_reads(start, topic, group):
    producer = start(Producer, WRITER, "senders")
    results = [
        *producer.send(topic, to_send("sync", keys="k")),
        *producer.send_asynchronously(topic, to_send("async")),
        producer.send_batch(topic, *numbered(3)),
    ]
    producer.send_one_way(topic, to_send("one-way"))
    assert [each["status"] for each in results] == ["SEND_OK"] * 3
    lite = start(LiteConsumer, READER, group, topic=topic)
    lite.wait_for(["sync", "async", "one-way", *bodies_of(numbered(3))])
    lite.ask("commit")
    wait_until("the committed offset", lambda: lite.committed(topic, 0) == 6)


def test_java_push_consumer_gets_messages_and_retries(java, start, topic, group):
    # As in test_java_clients_push.py, the retry topic must exist when the consumer starts.
    first = start(PushConsumer, READER, group, topic=topic)
    retry = f"%RETRY%{group}"
    wait_until(f"a route to {retry}", lambda: java.ask("admin queues", topic=retry))
    first.stop()
    push = start(PushConsumer, READER, group, topic=topic, failTimes=1, failBody="fails")
    start(Producer, WRITER, "senders").send(topic, to_send("works"), to_send("fails"))
    push.wait_for(["works", "fails"])
    wait_until("the retry", lambda: push.look() is not None and push.bodies.count("fails") == 2)


def test_java_pull_consumer_pulls_and_commits(start, topic, group):
    start(Producer, WRITER, "senders").send(topic, *numbered(3))
    pull = start(PullConsumer, READER, group)
    assert bodies_of(pull.pull(topic, 0)) == bodies_of(numbered(3))
    assert bodies_of(pull.pull(topic, 1)) == bodies_of(numbered(3))[1:]
    pull.commit(topic, 3)


def test_java_reply_of_a_consumer_reaches_its_requester(start, topic, group):
    asker = start(Producer, WRITER, "askers")
    consumer = start(PushConsumer, READER, group, topic=topic)
    asker.request(topic, to_send("question"))
    (asked,) = consumer.wait_for(["question"])
    start(Producer, READER, "repliers").reply(asked, "answer")
    assert asker.replied()["body"] == "answer"


def test_java_operator_queries_messages_and_offsets(secured, java, start, topic):
    (sent,) = start(Producer, WRITER, "senders").send(topic, to_send("found", keys="k7"))
    place = {"topic": topic, "brokerName": NAME, "queueId": 0}
    assert java.ask("admin offsets", **place)["max"] == 1
    assert java.ask("admin view", topic=topic, id=sent["offsetMessageIds"][0])["body"] == "found"

    def by_key():
        return bodies_of(java.ask("admin query", topic=topic, key="k7", begin=0, end=FOR_EVER))

    if secured.kind == "rocketmq" and secured.lists == "accounts":
        # 4.9.7 leaves a field out of its verification that its own clients sign.
        assert by_key() == []
    else:
        wait_until("its key", lambda: by_key() == ["found"])


def told_by(ask):
    """Return code and text of the error of a refused client."""
    with pytest.raises(JavaError) as refused:
        ask()
    return refused.value.code, str(refused.value)


def told_of_sending(start, key, topic):
    producer = start(Producer, key, "senders")
    return told_by(lambda: producer.send_to_queue(topic, 0, to_send("x")))


def is_without_route(secured, key):
    """Return whether the route itself is refused: our name server requires a key, RocketMQ's do
    not."""
    return secured.kind == "rocketpoll" and key in (NO_KEY, NOBODY, WRONG)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (NO_KEY, {"users": "username cannot be null", "accounts": "No accessKey is configured"}),
        (NOBODY, {"users": "not found", "accounts": "No acl config for nobody-knows"}),
        (WRONG, {"users": "check signature failed", "accounts": "Check signature failed"}),
        (IDLE, {"users": "no permission to access Topic:Topic0", "accounts": "No default perm"}),
        (READER, {"users": "no permission to access Topic:Topic0", "accounts": "No default perm"}),
    ],
    ids=["no key", "unknown", "wrong secret", "no right", "another right"],
)
def test_refused_java_producer_learns_why(secured, start, key, says):
    code, text = told_of_sending(start, key, TOPICS[0])
    if is_without_route(secured, key):
        assert (code, "The broker[broker-a] not exist" in text) == (NOT_FOUND, True)
    else:
        assert code == REFUSED[secured.lists], text
        assert says[secured.lists] in text


@pytest.mark.parametrize("key", [IDLE, WRITER], ids=["no right", "another right"])
def test_refused_java_pull_consumer_pulls_nothing(secured, start, key):
    has_route = secured.kind == "rocketmq" or key is WRITER
    code = REFUSED[secured.lists]
    if not has_route and secured.version == "5.5.0":
        code = NOT_FOUND
    # Soon after its start a client of 4.9 asks for the route of TBW102, which IDLE gets as well.
    consumer = start(PullConsumer, key, GROUPS[0])
    wait_until("the refusal", lambda: told_by(lambda: consumer.pull(TOPICS[0], 0))[0] == code)


def test_topic_that_no_list_names_is_closed_to_java_clients(secured, start):
    code, _ = told_of_sending(start, WRITER, UNLISTED)
    assert code == REFUSED[secured.lists]
    consumer = start(PullConsumer, READER, GROUPS[0])
    consumer.pull(TOPICS[0], 0)  # it knows the broker from then on
    code, _ = told_by(lambda: consumer.pull(UNLISTED, 0))
    assert code == REFUSED[secured.lists]


def test_java_client_without_tls_is_shut_out(broker, secured, tmp_path):
    with (
        JavaClients(secured.version, tmp_path, broker.name_server) as plain,
        pytest.raises(JavaError),
    ):
        plain.ask("admin queues", topic=TOPICS[0])
