"""TLS clients after a fork work in the child or raise an error; the parent's connection keeps
working.
"""

from pathlib import Path

import pytest
from support.brokers.tls_cluster import TlsCluster, behind_tls
from support.clients.conformance_clients import Clients
from support.programs.python_programs import last_line_of

PATIENCE_S = 90
HEAD = """
import asyncio, json, os, signal, sys
sys.path[:0] = [{root!r}, {tests!r}]
from support.brokers.tls_cluster import KNOWN
from rocketpoll import ClientInstance, ConsumeFromWhere, LitePullSettings, Message, Producer, aio

address, topic, group = sys.argv[1:]
settings = LitePullSettings(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)

def in_child(action):
    "What an action says in a child of this process."
    reading, writing = os.pipe()
    if os.fork() == 0:
        signal.alarm(40)
        try:
            said = action()
        except Exception as error:
            said = f"{{type(error).__name__}}: {{error}}"
        os.write(writing, json.dumps(said).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return json.loads(pipe.read())

def say(**found):
    print(json.dumps(found))
"""

SENDS = """
producer = Producer("P", instance=ClientInstance(address, tls=KNOWN))
producer.start()

def send(who):
    return [producer.send(Message(topic, f"{who}-{n}".encode())).send_status.name for n in range(9)]

def sockets():
    links = [os.readlink(each.path) for each in os.scandir("/proc/self/fd") if each.is_symlink()]
    return sum(link.startswith("socket:") for link in links)

before = send("before")
own = producer.instance.connections.get(address).connection
left = [sockets(), in_child(sockets)]
child = in_child(lambda: send("child"))
behind = send("behind")
say(sent=[before, child, behind], left=left,
    is_kept=producer.instance.connections.get(address).connection is own)
producer.shutdown()
"""

CONSUMES = """
async def polled(consumer, count):
    bodies = []
    while len(bodies) < count:
        bodies += [each.body.decode() for each in await consumer.poll(500)]
    return sorted(bodies)

def a_life(consumer):
    async def live():
        await consumer.subscribe(topic)
        async with consumer:
            return await polled(consumer, 9)
    return asyncio.run(live())

made_before = aio.Consumer(group + "-made", None, settings, client=aio.Client(address, tls=KNOWN))

async def main():
    async with (
        aio.Client(address, tls=KNOWN) as client,
        aio.Producer("P", client=client) as producer,
    ):
        async with aio.Consumer(group, None, settings, client=client) as consumer:
            await consumer.subscribe(topic)
            for n in range(9):
                await producer.send(Message(topic, f"{n}".encode()))
            seen = await polled(consumer, 9)

            def started():
                def refused(coroutine):
                    try:
                        return f"nothing, but gave {asyncio.run(coroutine)!r}"
                    except Exception as error:
                        return f"{type(error).__name__}: {error}"
                return [refused(consumer.poll(10)), refused(producer.send(Message(topic, b"x")))]

            refused = in_child(started)
            for n in range(9, 18):
                await producer.send(Message(topic, f"{n}".encode()))
            return seen, refused, await polled(consumer, 9)

seen, refused, behind = asyncio.run(main())
say(seen=seen, refused=refused, behind=behind, made=in_child(lambda: a_life(made_before)))
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    with behind_tls(tmp_path_factory.mktemp("broker")) as both:
        yield both


@pytest.fixture
def run(both):
    cluster = TlsCluster(both[1].address, both[1].address)
    clients = Clients(cluster)
    topic = cluster.topic(queues=1)
    tests = Path(__file__).parents[1]
    head = HEAD.format(root=str(tests.parent), tests=str(tests))

    def run(program):
        about = (cluster.address, topic, cluster.group())
        return last_line_of("-c", head + program, *about, seconds=PATIENCE_S), clients, topic

    yield run
    cluster.close()


def test_producer_over_tls_sends_before_and_after_a_fork_in_both_processes(run):
    found, clients, topic = run(SENDS)
    assert found["sent"] == [["SEND_OK"] * 9] * 3
    assert found["is_kept"]
    of_parent, of_child = found["left"]
    assert of_parent > of_child == 0  # otherwise no broker notices the end of the parent
    bodies = sorted(message.body.decode() for message in clients.read(topic, 27, queues=1))
    assert bodies == sorted(f"{who}-{n}" for who in ("before", "child", "behind") for n in range(9))


def test_asyncio_client_over_tls_is_refused_in_a_forked_child(run):
    found, _, _ = run(CONSUMES)
    assert found["seen"] == sorted(map(str, range(9)))
    assert found["behind"] == sorted(map(str, range(9, 18)))
    for refused in (*found["refused"], found["made"]):
        assert refused.startswith("ClientShutDown: "), refused
        assert refused.endswith("Make a new one here")
        assert "\n" not in refused
