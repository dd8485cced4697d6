"""Clients in common hosts of Python code: workers of gunicorn and Celery, and gevent's threads."""

import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections import Counter

import pytest

from rocketpoll import EmbeddedBroker

pytestmark = pytest.mark.deep

PATIENCE_S = 40

WEB = """
import os
from rocketpoll import Message, Producer

producer = Producer("P", os.environ["NAMESRV_ADDR"])
producer.start()

def application(environ, start_response):
    result = producer.send(Message("T", str(os.getpid()).encode()))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{result.send_status.name} {os.getpid()}".encode()]
"""

TASKS = """
import os
from celery import Celery
from rocketpoll import Message, Producer

app = Celery("tasks", broker="filesystem://")
folders = {"data_folder_in": "queue", "data_folder_out": "queue"}
app.conf.broker_transport_options = {"polling_interval": 0.05, **folders}
app.conf.broker_connection_retry_on_startup = True
producer = Producer("P", os.environ["NAMESRV_ADDR"])
producer.start()

@app.task
def work(number):
    producer.send(Message("T", f"{os.getpid()} {number}".encode()))
"""

GREENLETS = """
from gevent import monkey

monkey.patch_all()

import os, sys, time
import gevent
from rocketpoll import ConsumeConcurrentlyStatus, ConsumeFromWhere, LitePullConsumer
from rocketpoll import LitePullSettings, Message, Producer, PushConsumer, PushSettings

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
address, seen, polled, ticks = os.environ["NAMESRV_ADDR"], [], [], 0

def tick():
    global ticks
    while True:
        gevent.sleep(0.01)
        ticks += 1

ticking = gevent.spawn(tick)
def listen(messages, context):
    seen.extend(message.body for message in messages)
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

settings = PushSettings(consume_from_where=FIRST)
push = PushConsumer("Pushed", address, listener=listen, settings=settings)
push.subscribe("T")
lite = LitePullConsumer("Polled", address, LitePullSettings(consume_from_where=FIRST))
lite.subscribe("T")
with Producer("P", address) as producer, push, lite:
    def send(name):
        for number in range(10):
            sent = producer.send(Message("T", f"{name} {number}".encode()))
            assert sent.send_status.name == "SEND_OK"
    senders = [gevent.spawn(send, name) for name in range(20)]
    gevent.joinall(senders, raise_error=True)
    until = time.monotonic() + 20
    while time.monotonic() < until and min(len(set(seen)), len(set(polled))) < 200:
        polled += [each.body for each in lite.poll(200)]
    child = os.fork()
    if child == 0:
        producer.send(Message("C", b"of a child"))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print(len(set(seen)), len(set(polled)), ticks > 5)
"""


@pytest.fixture
def broker():
    """Run a broker with a topic in another process, so that its threads do not count."""
    with EmbeddedBroker(own_process=True) as broker:
        broker.create_topic("T")
        yield broker


@pytest.fixture
def started(broker, tmp_path):
    """Return a function that writes a module and starts a program that loads it; both end with the
    test."""
    running = []

    def start(module, text, *command, ready):
        (tmp_path / f"{module}.py").write_text(text)
        log = tmp_path / "said.txt"
        with log.open("w") as said:
            program = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=tmp_path,
                env={**os.environ, "NAMESRV_ADDR": broker.address},
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        running.append(program)
        wait_until(lambda: ready in log.read_text() or program.poll() is not None)
        assert program.poll() is None, log.read_text()
        return program, log

    yield start
    for program in running:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def wait_until(holds):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it has not come to that"
        time.sleep(0.05)


def bodies(broker):
    return [message.body.decode() for message in broker.messages("T")]


def ends_in_order(program):
    program.send_signal(signal.SIGTERM)
    return program.wait(PATIENCE_S)


@pytest.mark.parametrize(
    "options",
    [["--preload", "--workers=2"], ["--worker-class=gevent", "--workers=2"]],
    ids=["preload", "gevent"],
)
def test_workers_of_gunicorn_send_with_the_producer_of_their_module(
    broker, started, tmp_path, options
):
    server, log = started(
        "web", WEB, "gunicorn", *options, "--bind=127.0.0.1:0", "web", ready="Booting worker"
    )
    url = log.read_text().partition("Listening at: ")[2].split()[0]
    answers = [urllib.request.urlopen(url, timeout=PATIENCE_S).read().decode() for _ in range(30)]  # noqa: S310  # our own server
    assert Counter(bodies(broker)) == Counter(answer.removeprefix("SEND_OK ") for answer in answers)
    assert str(server.pid) not in bodies(broker)
    assert ends_in_order(server) == 0
    assert "Traceback" not in log.read_text()


def test_workers_of_celery_send_with_the_producer_of_their_module(broker, started, tmp_path):
    (tmp_path / "queue").mkdir()
    options = [
        "--pool=prefork",
        "--concurrency=2",
        "--loglevel=INFO",
        "--without-mingle",
        "--without-gossip",
    ]
    worker, log = started(
        "tasks", TASKS, "celery", "--app=tasks", "worker", *options, ready="ready."
    )
    calls = "import tasks\nfor number in range(20): tasks.work.delay(number)"
    subprocess.run(
        [sys.executable, "-c", calls],
        cwd=tmp_path,
        env={**os.environ, "NAMESRV_ADDR": broker.address},
        timeout=PATIENCE_S,
        check=True,
    )
    wait_until(lambda: len(bodies(broker)) == 20)
    assert sorted(int(body.split()[1]) for body in bodies(broker)) == list(range(20))
    assert not any(body.startswith(f"{worker.pid} ") for body in bodies(broker))
    assert ends_in_order(worker) == 0
    assert "Traceback" not in log.read_text()


def test_gevent_threads_send_poll_and_listen_without_blocking(broker, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(GREENLETS)],
        cwd=tmp_path,
        env={**os.environ, "NAMESRV_ADDR": broker.address},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout.split() == ["200", "200", "True"], done.stderr
    assert done.returncode == 0, done.stderr
