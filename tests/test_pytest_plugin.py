"""The pytest plugin, run in small projects of one or two files."""

import re
import subprocess
import sys

import pytest
from support.programs.python_programs import python_program

pytestmark = pytest.mark.deep

_PATIENCE_SECONDS = 120


@pytest.fixture
def project(tmp_path):
    """Return a function that runs a project's tests, and returns pytest's output."""

    def run(tests, *arguments, conftest=""):
        (tmp_path / "test_it.py").write_text(tests, encoding="utf-8")
        (tmp_path / "conftest.py").write_text(conftest, encoding="utf-8")
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-p",
                "no:cacheprovider",
                "--strict-markers",
                "-W",
                "error",
                *arguments,
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
        return done.stdout + done.stderr

    return run


def outcome(said):
    """Return the counts in pytest's last line."""
    (line,) = re.findall(r"=+ (.*) in [\d.]+s.* =+", said)[-1:] or [said]
    return line


def test_topic_fixture_gives_each_test_its_own_topic(project):
    said = project("""
import pytest

def test_one(rocketpoll_broker, rocketpoll_topic):
    assert rocketpoll_topic.startswith("test_one-")
    sent = rocketpoll_broker.send(rocketpoll_topic, *"abcdefgh")
    assert {result.queue.queue_id for result in sent} == {0, 1, 2, 3}

@pytest.mark.parametrize("text", ["first", "second", "ümläut / and % more" + 200 * "x"])
@pytest.mark.rocketpoll_topic(queues=1)
def test_another(rocketpoll_broker, rocketpoll_topic, text):
    assert rocketpoll_topic.startswith("test_another-")
    (sent,) = rocketpoll_broker.send(rocketpoll_topic, text)
    assert (sent.queue.queue_id, sent.queue_offset) == (0, 0)
    topics = rocketpoll_broker._connect().admin.topics()
    old = [topic for topic in topics if topic.startswith("test_")]
    assert old == [rocketpoll_topic]
""")
    assert outcome(said) == "4 passed", said


def test_broker_fixture_uses_the_settings_of_the_project(project):
    conftest = """
import pytest

@pytest.fixture(scope="session")
def rocketpoll_settings():
    return {"brokerName": "mine", "own_process": True}
"""
    tests = """
def test_it(rocketpoll_broker, rocketpoll_topic):
    (sent,) = rocketpoll_broker.send(rocketpoll_topic, "one")
    assert sent.queue.broker_name == "mine"
    rocketpoll_broker.kill()
    rocketpoll_broker.restart()
"""
    said = project(tests, conftest=conftest)
    assert outcome(said) == "1 passed", said


@pytest.mark.wide
def test_workers_beside_each_other_have_a_broker_each(project):
    tests = """
import pytest

@pytest.mark.parametrize("number", range(6))
def test_it(rocketpoll_broker, rocketpoll_topic, number, tmp_path_factory, worker_id):
    rocketpoll_broker.send(rocketpoll_topic, str(number))
    (message,) = rocketpoll_broker.messages(rocketpoll_topic)
    assert message.body == str(number).encode()
    shared = tmp_path_factory.getbasetemp().parent
    (shared / f"{worker_id}-{rocketpoll_broker.port}").touch()

def test_ports(worker_id, tmp_path_factory, rocketpoll_broker):
    (tmp_path_factory.getbasetemp().parent / f"{worker_id}-{rocketpoll_broker.port}").touch()
"""
    conftest = """
def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        place = session.config._tmp_path_factory.getbasetemp()
        files = [path.name for path in place.iterdir() if path.is_file()]
        names = sorted(name for name in files if name.startswith("gw"))
        print("\\nbrokers:", *names)
"""
    said = project(tests, "-n", "2", "--dist", "each", conftest=conftest)
    assert outcome(said) == "14 passed", said
    brokers = re.search(r"brokers: (.*)", said)[1].split()
    workers, ports = zip(*(name.split("-") for name in brokers), strict=True)
    assert workers == ("gw0", "gw1")
    assert len(set(ports)) == 2


def test_pytest_xdist_workers_have_their_own_clock_and_faults(project):
    tests = """
from datetime import timedelta

import pytest
from rocketpoll import Message
from rocketpoll.errors import SendFailed

@pytest.mark.parametrize("number", range(4))
def test_it(rocketpoll_broker, rocketpoll_topic, number):
    with rocketpoll_broker.producer() as producer:
        producer.send(Message(rocketpoll_topic, b"later", delay_level=18))
        with rocketpoll_broker.away(), pytest.raises(SendFailed):
            producer.send(Message(rocketpoll_topic, b"lost"))
    rocketpoll_broker.clock.advance(timedelta(hours=2))
    assert [message.body for message in rocketpoll_broker.messages(rocketpoll_topic)] == [b"later"]
"""
    assert outcome(project(tests, "-n", "2")) == "4 passed"


ASYNCIO = """
import asyncio, logging, threading

import pytest
from rocketpoll import ConsumeFromWhere, LitePullSettings, Message, aio

FIRST = LitePullSettings(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
LEFT_OPEN = []

@pytest.fixture
def anyio_backend():
    return "asyncio"

async def there_and_back(client, topic):
    async with aio.Producer("shop", client=client) as producer:
        await producer.send(Message(topic, b"one"))
    async with aio.Consumer("billing", None, FIRST, client=client) as consumer:
        await consumer.subscribe(topic)
        assert (await anext(consumer)).body == b"one"

@pytest.mark.anyio
async def test_by_a_plugin(rocketpoll_aio, rocketpoll_topic):
    await there_and_back(rocketpoll_aio, rocketpoll_topic)

def test_by_itself(rocketpoll_aio, rocketpoll_topic):
    asyncio.run(there_and_back(rocketpoll_aio, rocketpoll_topic))

@pytest.mark.parametrize("how_often", [1, 2])
def test_that_leaves_one_open(rocketpoll_aio, rocketpoll_broker, rocketpoll_topic, how_often):
    async def leave_open():
        consumer = aio.Consumer("members", None, FIRST, client=rocketpoll_aio)
        LEFT_OPEN.append(consumer)
        await consumer.start()
        await consumer.subscribe(rocketpoll_topic)
        async with aio.Admin(client=rocketpoll_aio) as admin:
            await admin.create_group("members")
            while not (members := await admin.members("members")):
                await asyncio.sleep(0)
            assert len(members) == 1  # and none of the test before

    asyncio.run(leave_open())

def test_that_fails(rocketpoll_aio):
    raise KeyError

def test_nothing_is_left_of_those_before(rocketpoll_broker):
    assert not any(consumer.is_running for consumer in LEFT_OPEN)
    names = [thread.name for thread in threading.enumerate() if "asyncio" in thread.name]
    assert names == []
"""


def test_aio_client_fixture_closes_what_a_test_left_open(project):
    said = project(ASYNCIO, "-p", "anyio")
    assert outcome(said) == "1 failed, 5 passed", said
    assert "closed before" not in said, said


def test_wrong_rocketpoll_topic_marker_is_refused(project):
    said = project("""
import pytest

@pytest.mark.rocketpoll_topic(queue=1)
def test_it(rocketpoll_topic):
    pass
""")
    assert "unexpected keyword argument 'queue'" in said
    assert outcome(said) == "1 error"


def test_unused_plugin_costs_nothing_and_allows_a_module_named_broker(project, tmp_path):
    (tmp_path / "broker.py").write_text("NAME = 'of the project'\n", encoding="utf-8")
    said = project("""
import sys

def test_it():
    import broker
    assert broker.NAME == "of the project"
    seldom = {"rocketpoll.broker", "rmq_spark", "numpy", "pyarrow", "pyspark", "uvloop"}
    loaded = seldom & set(sys.modules)
    assert "rocketpoll.pytest_plugin" in sys.modules
    assert not loaded

def test_ours(rocketpoll_broker, rocketpoll_topic):
    rocketpoll_broker.send(rocketpoll_topic, "one")
""")
    assert outcome(said) == "2 passed", said


def test_pytest_plugin_imports_only_pytest(tmp_path):
    done = python_program(
        """
        import sys, pytest
        before = set(sys.modules)
        import rocketpoll.pytest_plugin
        print(sorted(set(sys.modules) - before))
        """,
        cwd=tmp_path,
    )
    assert done.stdout == "['rocketpoll', 'rocketpoll.pytest_plugin']\n", done.stderr


def test_our_own_tests_can_use_it(rocketpoll_broker, rocketpoll_topic):
    rocketpoll_broker.send(rocketpoll_topic, "one")
    assert [message.body for message in rocketpoll_broker.messages(rocketpoll_topic)] == [b"one"]


def test_fault_left_by_a_test_is_reported_as_its_own_error(project):
    said = project("""
import pytest

@pytest.fixture(scope="class")
def slow(rocketpoll_broker):
    with rocketpoll_broker.slow(0.01):
        yield

class TestSlow:
    def test_that_fails(self, slow, rocketpoll_broker, rocketpoll_topic):
        rocketpoll_broker.away().__enter__()
        assert False

    def test_behind_it(self, slow, rocketpoll_broker, rocketpoll_topic):
        assert [fault.name for fault in rocketpoll_broker._faults] == ["slow"]
        rocketpoll_broker.send(rocketpoll_topic, "x")

def test_at_the_end(rocketpoll_broker, rocketpoll_topic):
    assert rocketpoll_broker._faults == []
""")
    assert outcome(said) == "1 failed, 2 passed, 1 error"
    assert "broker.away() was still active, and is ended now" in said


def test_test_with_frozen_time_can_send_and_poll(project):
    pytest.importorskip("freezegun")
    said = project("""
import asyncio
import time
from datetime import datetime

import pytest
from freezegun import freeze_time

from rocketpoll import ConsumeFromWhere, EmbeddedBroker, LitePullConsumer, LitePullSettings, Message
from rocketpoll import Producer, aio

FIRST = LitePullSettings(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)


@pytest.mark.parametrize("how", [{}, {"auto_tick_seconds": 15}, {"tick": True}])
def test_it(rocketpoll_broker, rocketpoll_topic, how):
    with freeze_time("2030-01-01", **how):
        assert datetime.now().year == time.localtime().tm_year == 2030
        with Producer("P", rocketpoll_broker.address) as producer:
            producer.send(Message(rocketpoll_topic, b"one"))
            producer.send_async(Message(rocketpoll_topic, b"two")).result(9)
        with LitePullConsumer("G", rocketpoll_broker.address, FIRST) as consumer:
            consumer.subscribe(rocketpoll_topic)
            found = []
            while len(found) < 2:
                found += consumer.poll(1_000)
            assert consumer.poll(100) == []
            consumer.commit()
        assert datetime.now().year == 2030


@freeze_time("2030-01-01")
def test_broker_started_while_time_is_frozen_serves():
    with EmbeddedBroker() as broker:
        broker.send("T", "one")
        with LitePullConsumer("G", broker.address, FIRST) as consumer:
            consumer.subscribe("T")
            assert consumer.poll(9_000)
            assert consumer.poll(100) == []


def test_asyncio(rocketpoll_broker, rocketpoll_topic):
    async def main():
        async with aio.Client(rocketpoll_broker.address) as client:
            async with aio.Producer("P", client=client) as producer:
                await producer.send(Message(rocketpoll_topic, b"one"))
            async with aio.Consumer("AG", None, FIRST, client=client) as consumer:
                await consumer.subscribe(rocketpoll_topic)
                assert await consumer.poll(9_000)
                assert await consumer.poll(100) == []

    with freeze_time("2030-01-01", real_asyncio=True):
        asyncio.run(main())
""")
    assert outcome(said) == "5 passed", said
