"""A store with everything in flight at once moves between our broker and a real RocketMQ, and back.

Open transactions, timers, delayed, failed and popped messages, and dead letters: work that the
first broker has left open is finished by the second, or, if RocketMQ 4.9 has no such feature, after
the return.
"""

import dataclasses
import time
from collections import Counter
from contextlib import contextmanager, nullcontext

import pytest
from support.brokers.broker_kinds import wait_until
from support.brokers.in_process import BrokerThread
from support.rocketmq.real_broker import CLUSTER
from support.rocketmq.shared_store import Place

from rocketpoll import (
    Admin,
    ConsumeConcurrentlyStatus,
    Message,
    MessageQueue,
    PushConsumer,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
)
from rocketpoll.broker.settings.config import BrokerConfig

pytestmark = [pytest.mark.interop, pytest.mark.peers]

LATER_S = 20
SLOW_LEVEL = 2
DELAYS_S = (1, LATER_S)
WAIT_SECONDS_MAX = 120
QUIET_SECONDS = 5
TOPICS = {"Deals": 1, "Late": 1, "Work": 1, "Popped": 2}
WORKERS, POPPERS = "workers", "poppers"
COMMIT, ROLLBACK, _ = TransactionState
ENDS = {"checked, committed": COMMIT, "checked, rolled back": ROLLBACK}


class Sides:
    """Either broker on one directory, and the messages that clients of both have received."""

    def __init__(self, place, name):
        self._place = place
        self._name = name
        self._address = f"127.0.0.1:{place.port}"
        self.is_old_rocketmq = place.version.startswith("4")
        self.worked = Counter()
        self.popped = Counter()
        self.is_over = False
        """True when messages no longer fail."""

    @contextmanager
    def ours(self, timeout_ms):
        store = dataclasses.replace(
            self._place.config,
            message_delay_level_ms=tuple(1_000 * seconds for seconds in DELAYS_S),
        )
        config = BrokerConfig(
            store=store,
            listen_port=self._place.port,
            broker_name=self._name,
            broker_cluster_name=CLUSTER,
            vip_channel_enable=False,
            transaction_timeout_ms=timeout_ms,
            transaction_check_interval_ms=500,
        )
        with BrokerThread(config):
            yield self._address

    @contextmanager
    def theirs(self, timeout_ms):
        settings = {
            "messageDelayLevel": " ".join(f"{seconds}s" for seconds in DELAYS_S),
            "timerWheelEnable": "true",
            "recallMessageEnable": "true",
            # RocketMQ 5 delivers again if it checks a transaction before it has recorded the end
            "transactionTimeOut": timeout_ms,
            "transactionCheckInterval": 4_000,
            "transactionOpBatchInterval": 200,
        }
        with self._place.java_broker(**settings):
            yield self._place.name_server

    def has_timers_and_pops(self, kind):
        """Return whether a broker of this kind serves both; RocketMQ 4.9 serves neither."""
        return kind == "ours" or not self.is_old_rocketmq

    def check(self, message):
        return ENDS[message.body.decode()]

    def producer(self, name_server):
        return TransactionProducer("P", name_server, check_listener=self.check, topics=["Deals"])

    def work(self, messages, context):
        for message in messages:
            body = message.body.decode()
            self.worked[body] += 1
            if body != "done" and not self.is_over:
                context.delay_level_when_next_consume = -1 if body == "dead" else SLOW_LEVEL
                return ConsumeConcurrentlyStatus.RECONSUME_LATER
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def worker(self, name_server):
        consumer = PushConsumer(WORKERS, name_server, listener=self.work, start="earliest")
        consumer.subscribe("Work")
        return consumer

    @contextmanager
    def popper(self, name_server):
        consumer = SimpleConsumer(POPPERS, name_server, start="earliest")
        consumer.subscribe("Popped")
        with consumer:
            yield consumer

    def pop(self, consumer, **options):
        found = consumer.receive(timeout_ms=1_000, **options)
        self.popped.update(each.body.decode() for each in found)
        return found

    def dead_letters(self, admin):
        queue = MessageQueue(f"%DLQ%{WORKERS}", self._name, 0)
        return admin.instance.api.max_offset(self._address, queue)

    def committed(self, admin):
        queue = MessageQueue("Work", self._name, 0)
        return admin.instance.api.query_consumer_offset(self._address, WORKERS, queue)

    def leave_in_flight(self, kind, name_server):
        """Send, receive and fail as this kind of broker allows, and stop before anything is due."""
        with self.producer(name_server) as producer, Admin(name_server) as admin:
            for body, state in (("committed", COMMIT), ("rolled back", ROLLBACK)):
                producer.send_in_transaction(
                    Message("Deals", body.encode()), lambda _, state=state: state
                )
            for body in ("done", "dead"):
                producer.send(Message("Work", body.encode()))
            with self.worker(name_server):
                wait_until("work", lambda: self.committed(admin) == 2, WAIT_SECONDS_MAX)
                producer.send(Message("Work", b"fails"))
                wait_until("a failure", lambda: self.committed(admin) == 3, WAIT_SECONDS_MAX)
            for body in ENDS:
                with producer.transaction(Message("Deals", body.encode())) as begun:
                    begun.leave_open()
            producer.send(Message("Late", b"delayed", delay_level=SLOW_LEVEL))
            if self.has_timers_and_pops(kind):
                after = f"{LATER_S}s"
                producer.send(Message("Late", b"timer", deliver_after=after))
                producer.recall(producer.send(Message("Late", b"recalled", deliver_after=after)))
                self._leave_popped(producer, name_server)

    def _leave_popped(self, producer, name_server):
        for body in ("acknowledged", "held", "changed"):
            producer.send(Message("Popped", body.encode()))
        found = []
        with self.popper(name_server) as consumer:
            wait_until(
                "popped messages",
                lambda: (
                    found.extend(self.pop(consumer, invisible_ms=LATER_S * 1_000))
                    or len(found) == 3
                ),
                WAIT_SECONDS_MAX,
            )
            by_body = {each.body.decode(): each for each in found}
            consumer.ack(by_body["acknowledged"])
            consumer.change_invisible_duration(by_body["changed"], LATER_S * 1_000)

    def bodies(self, topic, admin):
        table = admin.read_table(topic, columns=["body"])
        return Counter(body.as_py().decode() for body in table["body"])

    def take_all(self, name_server, *, late, pops):
        """Receive until all of this has arrived, and nothing else."""
        self.is_over = True
        with (
            self.producer(name_server),
            self.worker(name_server),
            self.popper(name_server) if pops else nullcontext() as consumer,
            Admin(name_server) as admin,
        ):
            wait_until(
                "a checked commit",
                lambda: self.bodies("Deals", admin).total() >= 2,
                WAIT_SECONDS_MAX,
            )
            wait_until(
                "the late", lambda: self.bodies("Late", admin).keys() >= late, WAIT_SECONDS_MAX
            )
            wait_until("the failed", lambda: self.worked["fails"] >= 2, WAIT_SECONDS_MAX)
            if consumer:
                wait_until(
                    "the popped",
                    lambda: (
                        consumer.ack(self.pop(consumer))
                        or all(self.popped[body] >= 2 for body in pops)
                    ),
                    WAIT_SECONDS_MAX,
                )
            time.sleep(QUIET_SECONDS)
            if consumer:
                assert self.pop(consumer) == []
            assert self.bodies("Deals", admin) == {"committed": 1, "checked, committed": 1}
            assert self.bodies("Late", admin) == dict.fromkeys(late, 1)
            assert self.worked == {"done": 1, "dead": 1, "fails": 2}
            assert self.dead_letters(admin) == 1


@pytest.mark.parametrize("order", [("ours", "theirs", "ours"), ("theirs", "ours", "theirs")])
def test_everything_in_flight_ends_once_at_the_other_broker_or_after_the_return(
    rocketmq, tmp_path, order
):
    sides = Sides(Place(rocketmq, tmp_path.name, tmp_path / "store", TOPICS), tmp_path.name)
    first, second = order[0], order[1]
    with getattr(sides, first)(timeout_ms=60_000) as name_server:
        sides.leave_in_flight(first, name_server)
    popped = {"held", "changed"} if sides.has_timers_and_pops(first) else set()
    for kind in (second, first):
        is_all_served = sides.has_timers_and_pops(first) and sides.has_timers_and_pops(kind)
        late = {"delayed", "timer"} if is_all_served else {"delayed"}
        with getattr(sides, kind)(timeout_ms=1_000) as name_server:
            sides.take_all(name_server, late=late, pops=popped if is_all_served else set())
    assert sides.popped == ({"acknowledged": 1, "held": 2, "changed": 2} if popped else {})
