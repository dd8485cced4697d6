"""Clients that speak gRPC, behind RocketMQ's proxy 5.5.0 in front of our broker.

The client is Apache's for Python, in a virtual environment of its own, as it needs an older
protobuf than others.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv

import pytest
from support.brokers.broker_kinds import NAME, RocketPollBroker
from support.brokers.clusters import Cluster
from support.rocketmq.java_programs import ROOT, unavailable
from support.rocketmq.proxy import Proxy

from rocketpoll.broker.store.config import FlushDiskType

pytestmark = [pytest.mark.interop, pytest.mark.peers]

CLIENT = "rocketmq-python-client==5.1.2"
SECONDS_MAX = 300

_BEGIN = """
import json, sys, time
from rocketmq import *
endpoint, topic = sys.argv[1:]
settings = ClientConfiguration(endpoint, Credentials())

def send(*bodies):
    producer = Producer(settings, (topic,))
    producer.startup()
    for body in bodies:
        message = Message()
        message.topic, message.body, message.tag = topic, body.encode(), "red"
        producer.send(message)
    producer.shutdown()

found, end = [], time.time() + 120
"""

SIMPLE = """
send("a", "b", "c")
consumer = SimpleConsumer(settings, topic + "-simple")
consumer.startup()
consumer.subscribe(topic)
while len(found) < 4 and time.time() < end:
    try:
        messages = consumer.receive(16, 15) or []
    except Exception:  # in the first second, the proxy does not know the consumer yet
        time.sleep(1)
        continue
    for message in messages:
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


@pytest.fixture(scope="module")
def python():
    """The Python of an environment with the client."""
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


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    """Our broker and the proxy in front of it."""
    root = tmp_path_factory.mktemp("grpc")
    broker = RocketPollBroker("5.5.0", root, FlushDiskType.SYNC_FLUSH)
    try:
        proxy = Proxy("5.5.0", root / "proxy", broker.name_server)
        try:
            yield broker, proxy
        finally:
            proxy.close()
    finally:
        broker.close()


@pytest.mark.parametrize("program", [SIMPLE, PUSH], ids=["simple consumer", "push consumer"])
def test_grpc_consumer_gets_each_message_and_a_failed_one_again(brokers, python, program):
    broker, proxy = brokers
    cluster = Cluster(broker.name_server, broker.address, NAME, {"message.type": "NORMAL"})
    topic = cluster.topic()
    cluster.close()
    run = subprocess.run(
        [python, "-c", _BEGIN + program, proxy.grpc_address, topic],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert found == [["a", 1], ["b", 1], ["b", 2], ["c", 1]]
