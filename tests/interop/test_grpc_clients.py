"""Clients that speak gRPC, behind RocketMQ's proxy 5.5.0 in front of our broker, and with
ROCKETPOLL_PEERS=1 in front of a RocketMQ 5.5.0 as well.

The client is Apache's for Python, in a separate virtual environment, because it needs an older
protobuf than other packages.
"""

import json
import subprocess
import sys
import venv

import pytest
from support.brokers.broker_kinds import NAME
from support.brokers.clusters import Cluster, running
from support.rocketmq.java_programs import ROOT, unavailable
from support.rocketmq.proxy import Proxy
from support.rocketmq.real_broker import CLUSTER
from support.suite.selection import PEERS

from rmq_spark.client.admin.access_lists import AclPolicy
from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.transport.remoting_client import Credentials
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig

pytestmark = [pytest.mark.interop, pytest.mark.peers]

CLIENT = "rocketmq-python-client==5.1.2"
SECONDS_MAX = 300

OPERATOR, PROXY = Credentials("the-operator", "12345678"), Credentials("the-proxy", "87654321")
WITH_USERS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps(
        {"username": OPERATOR.access_key, "password": OPERATOR.secret_key}
    ),
}
RIGHTS = (
    ("Topic:*", "Pub", "Sub", "Get"),
    ("Topic:DefaultHeartBeatSyncerTopic", "Pub", "Sub", "Get", "Create"),
    ("Group:*", "Sub", "Get"),
)
SIGNED = {
    "enableAclRpcHookForClusterMode": True,
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": PROXY.access_key, "secretKey": PROXY.secret_key}
    ),
}

_BEGIN = """
import json, sys, time
from rocketmq import *
from rocketmq.grpc_protocol import FilterType
endpoint, topic = sys.argv[1:]
settings = ClientConfiguration(endpoint, Credentials(), request_timeout=30)  # for busy machines
found, end = [], time.time() + 240

def started(client):
    client.startup()
    return client

def message_of(body, **fields):
    message = Message()
    message.topic, message.body, message.tag = topic, body.encode(), "red"
    for name, value in fields.items():
        setattr(message, name, value)
    return message

def send(*bodies):
    producer = started(Producer(settings, (topic,)))
    for body in bodies:
        producer.send(message_of(body))
    producer.shutdown()

def simple(group, *subscription):
    consumer = started(SimpleConsumer(settings, topic + group))
    consumer.subscribe(topic, *subscription)
    return consumer

def receive(consumer, count_max=16):
    try:
        return consumer.receive(count_max, 15) or []
    except Exception:  # in the first second, the proxy does not know the consumer yet
        time.sleep(1)
        return []

def receive_until(consumer, last):
    bodies = []
    while last not in bodies and time.time() < end:
        for message in receive(consumer):
            bodies.append(message.body.decode())
            found.append(message)
            consumer.ack(message)
    return bodies
"""

SIMPLE = """
send("a", "b", "c")
consumer = simple("-simple")
while len(found) < 4 and time.time() < end:
    for message in receive(consumer):
        found.append([message.body.decode(), message.delivery_attempt])
        if found[-1] == ["b", 1]:
            consumer.change_invisible_duration(message, 10)
        else:
            consumer.ack(message)
consumer.shutdown()
print(json.dumps(sorted(found)))
"""

PUSH = """
class Listener(MessageListener):
    def consume(self, message):
        found.append([message.body.decode(), message.delivery_attempt])
        return ConsumeResult.FAILURE if found[-1] == ["b", 1] else ConsumeResult.SUCCESS

send("a", "b", "c")
consumer = PushConsumer(settings, topic + "-push", Listener(), {topic: FilterExpression()})
consumer.startup()
while len(found) < 4 and time.time() < end:
    time.sleep(0.2)
consumer.shutdown()
print(json.dumps(sorted(found)))
"""

NORMAL = """
producer = started(Producer(settings, (topic,)))
sent = message_of("a", keys="key-1")
sent.add_property("color", "green")
receipt = producer.send(sent)
other = message_of("b", tag="blue")
other.add_property("color", "blue")
producer.send_async(other).result(60)
producer.shutdown()
consumer = simple("-sql", FilterExpression("color = 'green'", FilterType.SQL))
receive_until(consumer, "a")
consumer.shutdown()
[message] = found
consumer = simple("-tag", FilterExpression("blue"))
by_tag = receive_until(consumer, "b")
consumer.shutdown()
print(json.dumps([
    message.body.decode(), message.tag, sorted(message.keys), message.properties,
    message.message_id == receipt.message_id, by_tag,
]))
"""

DELAY = """
consumer = simple("-delay")
producer = started(Producer(settings, (topic,)))
due = int(time.time()) + 15
handles = [
    producer.send(message_of(body, delivery_timestamp=due + later)).recall_handle
    for body, later in (("recalled", 0), ("a", 0), ("b", 5))
]
producer.recall_message(topic, handles[0])
bodies, times = [], []
while "b" not in bodies and time.time() < end:
    for message in receive(consumer):
        bodies.append(message.body.decode())
        times.append(time.time() - due)
        consumer.ack(message)
try:
    refusal = producer.recall_message(topic, handles[1])
except Exception as error:
    refusal = "refused"
producer.shutdown()
consumer.shutdown()
print(json.dumps([bodies, times[0] >= 0, times[1] >= 5, refusal]))
"""

TRANSACTION = """
checked = set()

class Checker(TransactionChecker):
    def check(self, message):
        body = message.body.decode()
        checked.add(body)
        is_committed = body.endswith("committed")
        return TransactionResolution.COMMIT if is_committed else TransactionResolution.ROLLBACK

producer = started(Producer(settings, (topic,), Checker()))

def begin(body):
    transaction = producer.begin_transaction()
    producer.send(message_of(body), transaction)
    return transaction

begin("committed").commit()
begin("rolled back").rollback()
for body in ("to be checked and committed", "to be checked and rolled back"):
    begin(body)
consumer = simple("-transactions")
bodies = receive_until(consumer, "to be checked and committed")
while len(checked) < 2 and time.time() < end:
    time.sleep(0.2)
time.sleep(5)  # for the end that follows the check
begin("last, committed").commit()
bodies += receive_until(consumer, "last, committed")
producer.shutdown()
consumer.shutdown()
print(json.dumps([sorted(set(bodies)), sorted(checked)]))
"""

FIFO_PUSH = """
class Listener(MessageListener):
    def consume(self, message):
        found.append([message.message_group, message.body.decode()])
        is_first, body = found.count(found[-1]) == 1, found[-1][1]
        fails = body == "2" and is_first or body == "3"
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS

producer = started(Producer(settings, (topic,)))
for number in range(5):
    for group in ("x", "y"):
        producer.send(message_of(str(number), message_group=group))
producer.shutdown()
consumer = PushConsumer(settings, topic + "-fifo", Listener(), {topic: FilterExpression()})
consumer.startup()
while len(found) < 16 and time.time() < end:
    time.sleep(0.2)
consumer.shutdown()
print(json.dumps({group: [body for owner, body in found if owner == group] for group in "xy"}))
"""

FIFO_SIMPLE = """
producer = started(Producer(settings, (topic,)))
consumer = simple("-fifo")
for body in "abc":
    producer.send(message_of(body, message_group="x"))
producer.shutdown()

def receive_one():
    messages = []
    while not messages and time.time() < end:
        messages = receive(consumer, 1)
    return messages[0]

held = receive_one()  # not acknowledged: what follows it waits until it is visible again
found = [held.body.decode()]
for _ in range(3):
    message = receive_one()
    found.append(message.body.decode())
    consumer.ack(message)
consumer.shutdown()
print(json.dumps(found))
"""

ASSIGNMENTS = """
import grpc
from rocketmq.grpc_protocol import (
    Address, AddressScheme, Endpoints, MessagingServiceStub, QueryAssignmentRequest, Resource
)
host, port = endpoint.split(":")
endpoints = Endpoints(
    scheme=AddressScheme.IPv4, addresses=[Address(host=host, port=int(port))]
)
stub = MessagingServiceStub(grpc.insecure_channel(endpoint))

def assigned(group):
    request = QueryAssignmentRequest(
        topic=Resource(name=topic), group=Resource(name=group), endpoints=endpoints
    )
    answer = stub.QueryAssignment(request, metadata=[("x-mq-client-id", "asks")], timeout=60)
    return sorted(each.message_queue.id for each in answer.assignments)

print(json.dumps([assigned(topic + "-fifo"), assigned(topic + "-any")]))
"""


@pytest.fixture(scope="module")
def python():
    """Return the Python of a virtual environment with the client."""
    home = ROOT / "build" / "grpc-client"
    executable = home / "bin" / "python"
    if not (home / ".built").exists():
        venv.create(home, with_pip=True, clear=True)
        run = subprocess.run(
            [executable, "-m", "pip", "install", "-q", CLIENT],
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            unavailable(f"{CLIENT} cannot be installed on {sys.version}: {run.stderr[-300:]}")
        (home / ".built").touch()
    return executable


class SignedCluster(Cluster):
    """Creates clients that sign with the operator's key."""

    def instance(self, **more):
        return super().instance(credentials=OPERATOR, **more)


@pytest.fixture(
    scope="module", params=["rocketpoll", "rocketpoll with users", *(["5.5.0"] if PEERS else [])]
)
def proxied(request, tmp_path_factory):
    """Run a broker and the proxy in front of it; if there are users, the proxy signs."""
    root = tmp_path_factory.mktemp("grpc")
    kind, has_users, _ = request.param.partition(" with users")
    settings = {
        "brokerClusterName": CLUSTER,
        "brokerIP1": "127.0.0.1",
        "recallMessageEnable": "true",
        "transactionTimeOut": 4_000,
        "transactionCheckInterval": 1_000,
        **(WITH_USERS if has_users else {}),
    }
    with running(kind, root, **settings) as (name_server, address):
        cluster = (SignedCluster if has_users else Cluster)(name_server, address, NAME)
        try:
            if has_users:
                make_user_of_proxy(cluster)
            proxy = Proxy("5.5.0", root / "proxy", name_server, **(SIGNED if has_users else {}))
            try:
                yield cluster, proxy
            finally:
                proxy.close()
        finally:
            cluster.close()


def make_user_of_proxy(cluster):
    """Create the user with which the proxy signs, with the rights that it needs."""
    with Admin(instance=cluster.instance()) as admin:
        admin.create_user(PROXY.access_key, PROXY.secret_key)
        for resource, *actions in RIGHTS:
            admin.create_acl(AclPolicy(PROXY.access_key, resource, tuple(actions)))


@pytest.fixture
def cluster(proxied):
    return proxied[0]


@pytest.fixture
def run(proxied, python):
    """Return a function that runs a program with a topic and returns its output."""

    def run(program, topic):
        done = subprocess.run(
            [python, "-c", _BEGIN + program, proxied[1].grpc_address, topic],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def topic_of(cluster, message_type, queues=4):
    return cluster.topic(queues, attributes={"message.type": message_type})


def ordered_group(cluster, group):
    config = SubscriptionGroupConfig(
        group_name=group, consume_message_orderly=True, retry_max_times=2
    )
    cluster.api.admin.create_group(cluster.address, config)
    return group


@pytest.mark.parametrize("program", [SIMPLE, PUSH], ids=["simple consumer", "push consumer"])
def test_grpc_consumer_gets_each_message_and_a_failed_one_again(cluster, run, program):
    found = run(program, topic_of(cluster, "NORMAL"))
    assert found == [["a", 1], ["b", 1], ["b", 2], ["c", 1]]


def test_grpc_message_keeps_its_fields_and_is_filtered_by_properties_and_tag(cluster, run):
    found = run(NORMAL, topic_of(cluster, "NORMAL"))
    assert found == ["a", "red", ["key-1"], {"color": "green"}, True, ["b"]]


def test_grpc_delayed_messages_arrive_in_time_and_a_recalled_one_never(cluster, run):
    assert run(DELAY, topic_of(cluster, "DELAY")) == [["a", "b"], True, True, "refused"]


def test_grpc_transactions_end_by_their_producer_or_by_its_answer_to_a_check(cluster, run):
    to_check = ["to be checked and committed", "to be checked and rolled back"]
    delivered, checked = run(TRANSACTION, topic_of(cluster, "TRANSACTION", queues=1))
    assert delivered == ["committed", "last, committed", to_check[0]]
    assert set(to_check) <= set(checked)


def test_grpc_fifo_push_consumer_gets_message_groups_in_order_with_dead_letters(cluster, run):
    topic = topic_of(cluster, "FIFO")
    group = ordered_group(cluster, f"{topic}-fifo")
    in_order = ["0", "1", "2", "2", "3", "3", "3", "4"]
    assert run(FIFO_PUSH, topic) == {"x": in_order, "y": in_order}
    assert cluster.dead_letters(group) == 2


def test_grpc_fifo_simple_consumer_gets_nothing_past_an_unacknowledged_message(cluster, run):
    topic = topic_of(cluster, "FIFO")
    ordered_group(cluster, f"{topic}-fifo")
    assert run(FIFO_SIMPLE, topic) == ["a", "a", "b", "c"]


def test_grpc_assignment_of_a_group_in_order_names_each_queue_and_of_others_the_broker(
    cluster, run
):
    topic, any_queue = topic_of(cluster, "FIFO"), -1
    ordered_group(cluster, f"{topic}-fifo")
    assert run(ASSIGNMENTS, topic) == [[0, 1, 2, 3], [any_queue]]
