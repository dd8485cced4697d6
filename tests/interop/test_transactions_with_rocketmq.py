"""A store with open transactions moves between our broker and a real RocketMQ, in both directions.

Each broker continues from the half messages, op messages and progress that the other has left: it
does not check ended transactions; it checks open ones, which end as their producer says.

RocketMQ delivers a message for each commit that it gets: `EndTransactionProcessor` looks only for
the half message. `TransactionalMessageServiceImpl.check` checks again in each round that finds no
op message, and 5.x writes op messages transactionOpBatchInterval after the commits. So if a round
comes before the answer to a check, or before its op message, the next answer delivers the message
again: once for each check that is answered with a commit.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import contextmanager

import pytest
from support.brokers.broker_kinds import wait_until
from support.brokers.in_process import BrokerThread
from support.rocketmq.real_broker import CLUSTER
from support.rocketmq.shared_store import Place

from rocketpoll import Message, TransactionProducer, TransactionState, read_table
from rocketpoll.broker.settings.config import BrokerConfig

pytestmark = pytest.mark.interop

TOPIC = "Deals"
COMMIT, ROLLBACK, UNKNOWN = TransactionState
QUIET_SECONDS = 3.5
"""A round of checks at RocketMQ, several at ours."""
WAIT_SECONDS_MAX = 60


@pytest.fixture
def place(rocketmq, tmp_path) -> Place:
    return Place(rocketmq, tmp_path.name, tmp_path / "store", {TOPIC: 1})


class Brokers:
    """Either broker on the same directory, with a producer that answers checks."""

    def __init__(self, place, name):
        self.place = place
        self.name = name
        self.asked = Counter()
        self.commits_at_rocketmq = Counter()
        self._is_rocketmq = False
        self.answers = {}
        self._lock = threading.Lock()

    def check(self, message):
        body = message.body.decode()
        state = self.answers.get(body, UNKNOWN)
        with self._lock:
            self.asked[body] += 1
            self.commits_at_rocketmq[body] += self._is_rocketmq and state is COMMIT
        return state

    @contextmanager
    def ours(self, timeout_ms=500):
        config = BrokerConfig(
            store=self.place.config,
            listen_port=self.place.port,
            broker_name=self.name,
            broker_cluster_name=CLUSTER,
            vip_channel_enable=False,
            transaction_timeout_ms=timeout_ms,
            transaction_check_interval_ms=500,
        )
        with BrokerThread(config), self._producer(f"127.0.0.1:{self.place.port}") as producer:
            yield producer

    @contextmanager
    def theirs(self, timeout_ms=500):
        settings = {
            "transactionTimeOut": timeout_ms,
            "transactionCheckInterval": 2_000,  # longer than answers and op messages usually take
            "transactionOpBatchInterval": 200,
        }
        with (
            self.place.java_broker(**settings),
            self._asked_by_rocketmq(),
            self._producer(self.place.name_server) as producer,
        ):
            yield producer

    @contextmanager
    def _asked_by_rocketmq(self):
        self._is_rocketmq = True
        yield
        self._is_rocketmq = False

    @contextmanager
    def _producer(self, name_server):
        self.name_server = name_server
        with TransactionProducer(
            "P", name_server, check_listener=self.check, topics=[TOPIC]
        ) as producer:
            yield producer

    def bodies(self):
        table = read_table(TOPIC, self.name_server, columns=["body"])
        return Counter(body.as_py().decode() for body in table["body"])

    def assert_delivered(self, *expected):
        """Check that each message was delivered once, or by RocketMQ once for each commit."""
        bodies = self.bodies()
        assert bodies.keys() == set(expected)
        commits = self.commits_at_rocketmq
        assert all(bodies[body] <= max(commits[body], 1) for body in bodies), (bodies, commits)

    def run_transactions(self, producer, name):
        """Commit one, roll one back, and leave three open, one of which is immune to checks for a
        long time."""
        for body, state in ((f"{name} commit", COMMIT), (f"{name} roll back", ROLLBACK)):
            result = producer.send_in_transaction(
                Message(TOPIC, body.encode()), lambda _, state=state: state
            )
            assert result.is_acknowledged
        for body, immunity in ((f"{name} 1", None), (f"{name} 2", None), (f"{name} 3", 3)):
            message = Message(TOPIC, body.encode())
            with producer.transaction(message, check_immunity_seconds=immunity) as begun:
                begun.leave_open()
        self.answers |= {f"{name} 1": COMMIT, f"{name} 2": ROLLBACK, f"{name} 3": COMMIT}


@pytest.mark.parametrize("order", [("ours", "theirs", "ours"), ("theirs", "ours", "theirs")])
def test_open_transactions_end_at_the_other_broker(place, tmp_path, order):
    brokers = Brokers(place, tmp_path.name)
    first, second, third = (getattr(brokers, kind) for kind in order)
    with first(timeout_ms=60_000) as producer:
        brokers.run_transactions(producer, "first")
        time.sleep(1.5)  # RocketMQ 5 records ends a little later
        assert brokers.asked == {}
    with second() as producer:
        wait_until(
            "the ends of what was left open",
            lambda: {"first 1", "first 3"} <= brokers.bodies().keys(),
            WAIT_SECONDS_MAX,
        )
        brokers.run_transactions(producer, "second")
        wait_until(
            "the ends of its own",
            lambda: {"second 1", "second 3"} <= brokers.bodies().keys(),
            WAIT_SECONDS_MAX,
        )
        time.sleep(QUIET_SECONDS)
    expected = [f"{name} {end}" for name in ("first", "second") for end in ("commit", "1", "3")]
    settled = Counter(brokers.asked)
    assert not {body for body in settled if "commit" in body or "roll" in body}
    with third():
        time.sleep(QUIET_SECONDS)
        brokers.assert_delivered(*expected)
        assert brokers.asked == settled
