"""Each command with bad input prints one line that names the problem and the remedy."""

import json

import pytest
from support.programs.cli_commands import EVERY
from support.servers.fake_servers import FakeServer, answering
from support.servers.joining_name_server import JoiningNameServer
from support.suite.selection import spread

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import QueueData, TopicRouteData
from rmq_spark.wire.bodies.operators import BrokerData, ClusterInfo, TopicList
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.message.message_id import RecallHandle
from rocketpoll import Admin, EmbeddedBroker

CHECKPOINT = "the directory of a checkpoint"
LAKE = "the directory of a table"
HANDLE = RecallHandle("orders", "a", 1, "0" * 32).encode()

VERBS = {
    "topic create": ("topic", "create", "new"),
    "topic alter": ("topic", "alter", "orders", "--queues", "2"),
    "topic list": ("topic", "list"),
    "topic describe": ("topic", "describe", "orders"),
    "topic copy": ("topic", "copy", "orders", "other"),
    "topic delete": ("topic", "delete", "orders", "--yes"),
    "produce": ("produce", "orders"),
    "request": ("request", "orders"),
    "consume": ("consume", "orders"),
    "consume --key": ("consume", "orders", "--key", "k"),
    "consume --follow": ("consume", "orders", "--follow"),
    "tail": ("tail", "orders"),
    "message": ("message", "0" * 32, "--topic", "orders"),
    "recall": ("recall", HANDLE),
    "group list": ("group", "list"),
    "group describe": ("group", "describe", "billing"),
    "group seek": ("group", "seek", "billing", "--to", "end", "--topic", "orders", "--yes"),
    "group clone": ("group", "clone", "billing", "other"),
    "group delete": ("group", "delete", "billing", "--yes"),
    "dlq list": ("dlq", "list"),
    "dlq show": ("dlq", "show", "billing"),
    "dlq resend": ("dlq", "resend", "billing", "--all", "--yes"),
    "cluster info": ("cluster", "info"),
    "user list": ("user", "list"),
    "user show": ("user", "show", "billing"),
    "user create": ("user", "create", "billing", "--password-stdin"),
    "user update": ("user", "update", "billing", "--disable"),
    "user delete": ("user", "delete", "billing", "--yes"),
    "acl list": ("acl", "list"),
    "acl grant": ("acl", "grant", "billing", "Topic:orders", "--actions", "Pub"),
    "acl deny": ("acl", "deny", "billing", "Topic:orders", "--actions", "Pub"),
    "acl revoke": ("acl", "revoke", "billing", "--all", "--yes"),
    "bench produce": ("bench", "produce", "orders"),
    "bench consume": ("bench", "consume", "orders"),
    "bench latency": ("bench", "latency", "orders"),
    "top": ("top",),
    "sql init": ("sql", "init"),
    "lake": ("lake", "orders", LAKE),
    "sink list": ("sink", "list"),
    "sink list TOPIC": ("sink", "list", "orders"),
    "sink show": ("sink", "show", "orders"),
    "sink forget": ("sink", "forget", "query", "--yes"),
    "checkpoint --lag": ("checkpoint", CHECKPOINT, "--lag"),
    "checkpoint --to-group": ("checkpoint", CHECKPOINT, "--to-group", "billing", "--yes"),
}
"""A call of each verb that queries a cluster."""

GO_ON_AND_TELL = {"cluster health", "console", "exporter", "doctor"}
"""Commands that report the state of the cluster; each has its own tests."""
ASK_NO_CLUSTER = {
    *("broker", "demo", "archive", "completion", "store dump", "store verify", "store stat"),
    *("profile list", "profile show", "profile create", "profile use", "profile delete"),
}

NEED_A_TOPIC = (
    *("topic alter", "topic describe", "topic copy", "topic delete", "consume", "consume --key"),
    *("consume --follow", "tail", "message", "group seek"),
    *("bench produce", "bench consume", "bench latency", "sink list TOPIC", "sink show", "lake"),
    *("checkpoint --lag", "checkpoint --to-group"),
)
GO_ON = ("cluster info", "produce", "request", "bench produce", "recall")
"""Commands that succeed with one of two brokers; recall uses the broker of its handle."""

NOT_REFUSED = ("cluster info", "sink list", "sink forget")
"""Commands that do not fail on refusals: the first shows them in a table; the others query only
brokers of ours, which refuse nobody."""

NEED_USERS = ("user ", "acl ")
"""Commands that a broker without authentication refuses."""

ASK_ONLY_NAME_SERVERS = ("cluster info",)
HELPLESS = ("produce", "request", "recall")
"""Commands that find no topic without a broker, and report that."""


@pytest.fixture
def checkpoint(tmp_path):
    """Write a checkpoint with one batch, which ends at offset 2 of topic orders."""
    began = json.dumps({"batchTimestampMs": 1})
    place = json.dumps({"v": 1, "offsets": {"orders": {"a": {"0": 2}}}})
    for folder, lines in (("offsets", ("v1", began, place)), ("commits", ("v1", "{}"))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0").write_text("\n".join(lines), encoding="utf-8")
    return str(tmp_path)


@pytest.fixture
def called(run, checkpoint, tmp_path):
    """Return a function that runs a command of the table with more arguments."""

    def called(verb, *more):
        places = {CHECKPOINT: checkpoint, LAKE: str(tmp_path / "lake")}
        words = [places.get(each, each) for each in VERBS[verb]]
        return run(*words, *more, stdin=b"x\n")

    return called


@pytest.fixture
def failed(called):
    """Return a function that runs a command of the table, and returns its one error line without
    the command's name."""

    def failed(verb, *more):
        ran = called(verb, *more)
        assert (ran.code, ran.out) == (1, ""), ran
        [line] = ran.err.splitlines()
        name, _, text = line.partition(": ")
        assert verb.startswith(name.removeprefix("rocketpoll "))
        return text

    return failed


def test_bad_input_table_covers_each_command():
    asking = {verb for verb in EVERY for row in VERBS if f"{row} ".startswith(f"{verb} ")}
    assert asking == EVERY.keys() - GO_ON_AND_TELL - ASK_NO_CLUSTER
    assert EVERY.keys() >= GO_ON_AND_TELL | ASK_NO_CLUSTER


@pytest.fixture(scope="module")
def two_brokers():
    """Run a cluster whose topic and group are on two brokers, one of which was killed."""
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
                    admin.set_offset("billing", queue, 0, missing_ok=True)
                for topic in ("orders", "%DLQ%billing", "TBW102"):
                    admin.route(topic)
                admin.topics()
            second.kill()
            yield servers.address, second.address
            second.restart()


@pytest.mark.parametrize("verb", VERBS)
def test_command_without_a_broker_says_how_to_start_one(failed, verb):
    assert failed(verb, "--namesrv", "127.0.0.1:1").startswith(
        "no name server answers: cannot connect to 127.0.0.1:1: Connection refused. "
        "Start one (rocketpoll broker), or give another address with --namesrv"
    )


@pytest.mark.parametrize("verb", spread(5, VERBS))
def test_command_on_a_port_of_another_program_asks_for_a_name_server(failed, verb):
    def speak_http(peer):
        peer.socket.recv(1 << 16)
        peer.send("HTTP/1.1 400 Bad Request\r\n\r\n")

    with FakeServer(speak_http) as server:
        said = failed(verb, "--namesrv", server.address)
    assert said.startswith(f"no name server answers: {server.address} does not answer")
    assert ". Give the port of a name server, for example --namesrv localhost:9876" in said


def name_server_of(bodies, others):
    """Run a name server that answers some requests with these bodies, and all others alike."""

    def answer(request):
        if request.code in bodies:
            return request.respond(ResponseCode.SUCCESS, body=encode_body(bodies[request.code]))
        return request.respond(*others)

    return FakeServer(answering(answer))


@pytest.mark.parametrize("verb", spread(8, VERBS))
def test_command_on_a_name_server_without_brokers_says_what_to_do(called, failed, verb):
    bodies = {
        RequestCode.GET_BROKER_CLUSTER_INFO: ClusterInfo(),
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: TopicList(),
    }
    missing = (ResponseCode.TOPIC_NOT_EXIST, "No topic route info")
    with name_server_of(bodies, missing) as server:
        if verb in ASK_ONLY_NAME_SERVERS:
            ran = called(verb, "--namesrv", server.address)
            assert (ran.code, ran.out, len(ran.err.splitlines())) == (0, "", 1)
            return
        said = failed(verb, "--namesrv", server.address)
    if verb not in HELPLESS:
        assert said == (
            "cannot reach any broker: the cluster has no master that the name servers know. Start "
            "a broker that registers there, or list known brokers with rocketpoll cluster info"
        )


@pytest.mark.parametrize("verb", NEED_A_TOPIC)
def test_command_on_a_missing_topic_suggests_the_nearest_name(cluster, failed, verb):
    cluster.topic(name="order")
    cluster.store_offset("billing", "order", 0)
    assert failed(verb) == (
        "there is no topic orders. Did you mean order? List all with rocketpoll topic list, "
        "or create it with rocketpoll topic create orders"
    )


READ = "no broker allows reading it. Set its perm to 6 (rw)"
WRITTEN = "no broker with a master allows writing to it. Set its perm to 6 (rw)"


@pytest.mark.parametrize(
    ("verb", "perm", "why"),
    [
        ("produce", "r", WRITTEN),
        ("request", "r", WRITTEN),
        ("bench produce", "r", WRITTEN),
        ("consume", "w", READ),
        ("consume --follow", "none", READ),
        ("tail", "w", READ),
        ("bench consume", "w", READ),
        ("bench latency", "w", READ),
    ],
)
def test_command_without_topic_permission_says_why(run, cluster, verb, perm, why):
    topic = cluster.topic()
    run("topic", "alter", topic, "--perm", perm)
    ran = run(*(topic if each == "orders" else each for each in VERBS[verb]), stdin=b"x\n")
    assert (ran.code, ran.out) == (1, "")
    assert f"no route to topic {topic}: {why}" in ran.err


@pytest.mark.parametrize("verb", [each for each in VERBS if each not in NOT_REFUSED])
def test_command_without_account_permission_asks_for_other_keys(failed, verb):
    """RocketMQ's access lists may deny the request code itself."""
    refused = (ResponseCode.NO_PERMISSION, "billing may not do this")
    bodies = {}
    with name_server_of(bodies, refused) as server:
        node = BrokerData(cluster="C", broker_name="a", broker_addrs={0: server.address})
        queues = QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6)
        bodies |= {
            RequestCode.GET_BROKER_CLUSTER_INFO: ClusterInfo(
                broker_addr_table={"a": node}, cluster_addr_table={"C": frozenset("a")}
            ),
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: TopicList(
                topic_list=frozenset({"orders", "%DLQ%billing"})
            ),
            RequestCode.GET_ROUTEINFO_BY_TOPIC: TopicRouteData(
                queue_datas=(queues,), broker_datas=(node,)
            ),
        }
        said = failed(verb, "--namesrv", server.address)
    assert "billing may not do this" in said
    assert ". Use keys that have the permission (--access-key, --profile)" in said


@pytest.mark.parametrize(
    "verb", [each for each in VERBS if each not in GO_ON and not each.startswith(NEED_USERS)]
)
def test_command_on_a_cluster_with_one_broker_down_names_it(failed, verb, two_brokers):
    address, away = two_brokers
    said = failed(verb, "--namesrv", address)
    assert f"cannot connect to {away}: Connection refused" in said
    assert ". Run rocketpoll cluster health to see which brokers answer" in said


def test_produce_with_one_broker_down_sends_to_the_other(run, two_brokers):
    address, _ = two_brokers
    ran = run("produce", "orders", "--namesrv", address, stdin=b"1\n2\n3\n4\n")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("4 messages were sent to orders; the last one is ")
    ran = run("bench", "produce", "orders", "--seconds", 0.1, "--namesrv", address, "-o", "json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.json["messages"] > 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ("--access-key", "a"),
            "--secret-key is missing. Give --access-key and --secret-key together",
        ),
        (("--tls-ca-file", "/nothing"), "--tls-ca-file: /nothing cannot be read: No such file"),
        (("--profile", "prod"), "--profile prod: cannot read /nowhere.ini: No such file"),
        (("--namesrv", "http://x:1"), "http://x:1"),
        (("--nmesrv", "x"), "--namesrv"),
    ],
)
def test_wrong_connection_option_is_refused_in_one_line(run, monkeypatch, arguments, why):
    monkeypatch.setenv("ROCKETPOLL_PROFILES", "/nowhere.ini")
    ran = run("topic", "list", *arguments)
    assert ran.code in (1, 2)
    assert why in ran.err
    assert len(ran.err.splitlines()) == 1
