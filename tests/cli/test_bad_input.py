"""Each verb where nothing is as it should be: one line that says what, and what to do."""

from __future__ import annotations

import pytest
from fake_servers import FakeServer, answering
from name_servers import JoiningNameServer

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.lists import ClusterInfo, TopicList
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rocketpoll import Admin, EmbeddedBroker

VERBS = {
    "topic create": ("topic", "create", "new"),
    "topic alter": ("topic", "alter", "orders", "--queues", "2"),
    "topic list": ("topic", "list"),
    "topic describe": ("topic", "describe", "orders"),
    "topic delete": ("topic", "delete", "orders", "--yes"),
    "produce": ("produce", "orders"),
    "consume": ("consume", "orders"),
    "consume --key": ("consume", "orders", "--key", "k"),
    "consume --follow": ("consume", "orders", "--follow"),
    "tail": ("tail", "orders"),
    "message": ("message", "0" * 32, "--topic", "orders"),
    "group list": ("group", "list"),
    "group describe": ("group", "describe", "billing"),
    "group seek": ("group", "seek", "billing", "--to", "end", "--topic", "orders"),
    "group clone": ("group", "clone", "billing", "other"),
    "group delete": ("group", "delete", "billing", "--yes"),
    "dlq list": ("dlq", "list"),
    "dlq show": ("dlq", "show", "billing"),
    "dlq resend": ("dlq", "resend", "billing", "--all", "--yes"),
    "cluster info": ("cluster", "info"),
    "bench produce": ("bench", "produce", "orders"),
    "bench consume": ("bench", "consume", "orders"),
    "bench latency": ("bench", "latency", "orders"),
    "top": ("top",),
}
"""A call of each verb that asks a cluster; ``cluster health`` tells of the cluster in a table."""

NEED_A_TOPIC = (
    *("topic alter", "topic describe", "topic delete", "consume", "consume --key"),
    *("consume --follow", "tail", "message", "group seek"),
    *("bench produce", "bench consume", "bench latency"),
)
GO_ON = ("cluster info", "produce", "bench produce")
"""Those that do with one of two brokers."""

ASK_ONLY_NAME_SERVERS = ("dlq list", "cluster info")
HELPLESS = ("produce", "dlq show", "dlq resend")
"""Those that know of no topic where there is no broker, and say so."""


def failed(run, verb, *more):
    """The one line with which a verb fails, behind its name."""
    ran = run(*VERBS[verb], *more, stdin=b"x\n")
    assert (ran.code, ran.out) == (1, ""), ran
    [line] = ran.err.splitlines()
    name, _, text = line.partition(": ")
    assert name == f"rocketpoll {verb.partition(' --')[0]}"
    return text


@pytest.fixture(scope="module")
def two_brokers():
    """A cluster with a topic and a group on two brokers, of which one was killed."""
    with (
        EmbeddedBroker(brokerName="a") as first,
        EmbeddedBroker(own_process=True, brokerName="b") as second,
    ):
        for broker in (first, second):
            broker.create_topic("orders")
            broker.create_topic("%DLQ%billing")
        with JoiningNameServer(first, second) as servers:
            with Admin(servers.address) as admin:
                for queue in admin.topic_offsets("orders"):
                    admin.set_offset("billing", queue, 0)
                for topic in ("orders", "%DLQ%billing", "TBW102"):
                    admin.route(topic)
                admin.topics()
            second.kill()
            yield servers.address, second.address
            second.restart()


@pytest.mark.parametrize("verb", VERBS)
def test_no_broker(run, verb):
    assert failed(run, verb, "--namesrv", "127.0.0.1:1").startswith(
        "no name server answers: cannot connect to 127.0.0.1:1: Connection refused; check that a "
        "broker listens there; name another by --namesrv, or start one: rocketpoll broker"
    )


@pytest.mark.parametrize("verb", VERBS)
def test_a_port_of_another_program(run, verb):
    def speak_http(peer):
        peer.socket.recv(1 << 16)
        peer.send("HTTP/1.1 400 Bad Request\r\n\r\n")

    with FakeServer(speak_http) as server:
        said = failed(run, verb, "--namesrv", server.address)
    assert said.startswith(f"no name server answers: {server.address} does not answer as a broker")
    assert "; give the port of a name server, as --namesrv localhost:9876" in said


@pytest.mark.parametrize("verb", VERBS)
def test_a_name_server_without_brokers(run, verb):
    bodies = {
        RequestCode.GET_BROKER_CLUSTER_INFO: ClusterInfo(),
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: TopicList(),
    }

    def answer(request):
        if request.code in bodies:
            return request.respond(ResponseCode.SUCCESS, body=encode_body(bodies[request.code]))
        return request.respond(ResponseCode.TOPIC_NOT_EXIST, "No topic route info")

    with FakeServer(answering(answer)) as server:
        if verb in ASK_ONLY_NAME_SERVERS:
            ran = run(*VERBS[verb], "--namesrv", server.address)
            assert (ran.code, ran.out, len(ran.err.splitlines())) == (0, "", 1)
            return
        said = failed(run, verb, "--namesrv", server.address)
    if verb in NEED_A_TOPIC and verb != "group seek":
        assert said.startswith("there is no topic orders: rocketpoll topic list shows all")
    elif verb not in HELPLESS:
        assert said == (
            "no way to broker any: the cluster has no master that the name servers know; "
            "start one that registers there, or see rocketpoll cluster info"
        )


@pytest.mark.parametrize("verb", NEED_A_TOPIC)
def test_a_topic_that_is_not_there(run, cluster, verb):
    cluster.topic(name="order")
    cluster.store_offset("billing", "order", 0)
    assert failed(run, verb) == (
        "there is no topic orders: did you mean order? rocketpoll topic list shows all, "
        "rocketpoll topic create orders makes it"
    )


@pytest.mark.parametrize(
    ("verb", "perm", "why"),
    [
        ("produce", "r", "no broker with a master lets it be written; let it be (perm 6)"),
        ("consume", "w", "no broker lets it be read; let it be (perm 6)"),
        ("consume --follow", "none", "no broker lets it be read; let it be (perm 6)"),
    ],
)
def test_no_permission(run, cluster, verb, perm, why):
    topic = cluster.topic()
    run("topic", "alter", topic, "--perm", perm)
    ran = run(*(topic if each == "orders" else each for each in VERBS[verb]), stdin=b"x\n")
    assert (ran.code, ran.out) == (1, "")
    assert f"no route to topic {topic}: {why}" in ran.err


@pytest.mark.parametrize("verb", [each for each in VERBS if each not in GO_ON])
def test_half_a_cluster_away(run, verb, two_brokers):
    address, away = two_brokers
    said = failed(run, verb, "--namesrv", address)
    assert (
        f"cannot connect to {away}: Connection refused; check that a broker listens there" in said
    )
    assert "; rocketpoll cluster health shows which brokers answer" in said


def test_half_a_cluster_away_and_messages_go_to_the_other_half(run, two_brokers):
    address, _ = two_brokers
    ran = run("produce", "orders", "--namesrv", address, stdin=b"1\n2\n3\n4\n")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("4 messages were sent to orders; the last is ")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--access-key", "a"), "--secret-key is missing: the keys belong together"),
        (("--tls-ca-file", "/nothing"), "--tls-ca-file: /nothing cannot be read: No such file"),
        (("--profile", "prod"), "--profile prod: /nowhere.ini cannot be read: No such file"),
        (("--namesrv", "http://x:1"), "http://x:1"),
        (("--nmesrv", "x"), "--namesrv"),
    ],
)
def test_a_wrong_option_of_the_connection(run, monkeypatch, arguments, why):
    monkeypatch.setenv("ROCKETPOLL_PROFILES", "/nowhere.ini")
    ran = run("topic", "list", *arguments)
    assert ran.code in (1, 2)
    assert why in ran.err
    assert len(ran.err.splitlines()) == 1
