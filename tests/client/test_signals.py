"""A program that gets SIGTERM or SIGINT ends cleanly, whatever its clients are doing.

See `signal_programs`. ROCKETPOLL_SIGNALS=1000 sends as many signals at random moments.
"""

import random
import re
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest
from support.brokers.broker_kinds import wait_until
from support.servers.fake_servers import FakeServer, silent
from support.suite.selection import count, spread

from rmq_spark.client.instance.instance import SHUTDOWN_MS
from rmq_spark.wire.bodies.configs import TopicConfig

PROGRAMS = Path(__file__).with_name("signal_programs.py")
ROUNDS = count("ROCKETPOLL_SIGNALS", 4, wide=12)
CLIENT_SECONDS = SHUTDOWN_MS / 1000
"""Seconds for the `shutdown` of each client, and again for all of them at a program's end."""

PYTHON_SECONDS = 1.0
"""Seconds until Python handles the signal, plus its own exit."""

KILLED_AFTER_SECONDS = 20
OF_ONE_CLIENT = [
    "polls", "sends", "sends_by_futures", "has_a_callback", "calls_back", "is_called", "shuts_down",
]  # fmt: skip

HANDLERS = ["shuts-down", "raises"]
SIGNALS = [signal.SIGTERM, signal.SIGINT]


class Program:
    """A running program of `signal_programs`."""

    def __init__(self, name, address, handler):
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAMS), name, address, handler],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout.readline() == "ready\n", self._process.communicate()[1]

    def ends_by(self, number):
        """Send a signal (or None); return the exit code, the output and the seconds
        until the end."""
        sent_at = time.monotonic()
        self._process.send_signal(number)
        try:
            said, log = self._process.communicate(timeout=KILLED_AFTER_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            said, log = self._process.communicate()
            return None, said, log, KILLED_AFTER_SECONDS
        return self._process.returncode, said, log, time.monotonic() - sent_at


@pytest.fixture
def address(running_broker, api):
    topic = TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)
    api.admin.create_topic(running_broker.address, topic)
    return running_broker.address


def is_swallowed(log):
    """Return whether Python swallowed the handler's exception in the callback of a weak reference.
    Python logs that and continues; no library can prevent it. Handlers that only set a flag are not
    affected."""
    return bool(re.search(r"Exception ignored in: <.*(_remove|callback)", log))


def check_ended(start, number, handler, clients=1):
    """Start a program, send it a signal, and check that it ends cleanly and in time."""
    code, said, log, seconds = start().ends_by(number)
    if is_swallowed(log):
        code, said, log, seconds = start().ends_by(number)
    assert code is not None, f"it has not ended in {KILLED_AFTER_SECONDS} s:\n{log}"
    assert seconds < (clients + 1) * CLIENT_SECONDS + PYTHON_SECONDS
    if handler == "shuts-down":
        assert code == 128 + number, log
        assert said.endswith("ended\n")
    else:
        assert code in (-signal.SIGINT, 1), log  # 1 if another thread was evaluating code
        assert log.rstrip().endswith("KeyboardInterrupt"), log
    for fault in ("Fatal Python error", "deadlock", "Exception ignored", "Exception in thread"):
        assert fault not in log, log


@pytest.mark.parametrize(
    ("name", "handler", "number"), spread(10, product(OF_ONE_CLIENT, HANDLERS, SIGNALS)), ids=str
)
def test_signal_ends_a_client_program_in_order_and_its_member_leaves(
    running_broker, api, address, name, handler, number
):
    check_ended(lambda: Program(name, address, handler), number, handler)
    wait_until("the member has left", lambda: not api.consumer_ids(running_broker.address, "G"))


@pytest.mark.parametrize("number", SIGNALS, ids=lambda each: each.name)
@pytest.mark.parametrize("handler", HANDLERS)
def test_signal_during_start_ends_the_program(handler, number):
    with FakeServer(silent) as name_server:
        check_ended(lambda: Program("starts", name_server.address, handler), number, handler)


@pytest.mark.parametrize("handler", HANDLERS)
def test_signal_at_a_random_moment_ends_a_client_program_in_order(address, handler):
    for number in range(ROUNDS):
        chance = random.Random(f"{handler}-{number}")
        moment, sent = chance.random(), chance.choice(SIGNALS)

        def start(moment=moment):
            program = Program("lives", address, handler)
            time.sleep(moment)  # a random moment
            return program

        check_ended(start, sent, handler, clients=3)
