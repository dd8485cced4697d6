"""Orderly consumers survive a broker that is killed and restarts without members and locks."""

import threading
import time
from collections import defaultdict
from itertools import pairwise

import pyarrow as pa
from support.brokers.processes import BrokerProcess

from rocketpoll import Admin, ConsumeFromWhere, Producer, PushConsumer, PushSettings

QUEUES = 4
BACKLOG = 150
LISTEN_SECONDS = 0.01


class Ledger:
    """Records which member consumed which message of a queue, and overlapping calls."""

    def __init__(self):
        self._lock = threading.Lock()
        self._busy = {}
        self.consumed = defaultdict(list)
        self.overlaps = []

    def listener(self, name):
        def listen(messages, _):
            for message in messages:
                queue = message.queue.queue_id
                with self._lock:
                    if self._busy.get(queue, name) != name:
                        self.overlaps.append((queue, message.queue_offset, name))
                    self._busy[queue] = name
                    self.consumed[queue].append((name, int(message.body)))
                time.sleep(LISTEN_SECONDS)
                with self._lock:
                    self._busy.pop(queue, None)

        return listen

    def has_all(self):
        with self._lock:
            return all(
                len({number for _, number in self.consumed[queue]}) == BACKLOG
                for queue in range(QUEUES)
            )


def member(ledger, name, address):
    settings = PushSettings(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer = PushConsumer("G", address, orderly_listener=ledger.listener(name), settings=settings)
    consumer.subscribe("T")
    return consumer


def test_orderly_member_joining_after_a_broker_restart_takes_no_busy_queue(tmp_path):
    ledger = Ledger()
    with BrokerProcess(tmp_path) as broker:
        port, address = broker.port, f"127.0.0.1:{broker.port}"
        with Admin(address) as admin, Producer("P", address) as producer:
            admin.create_topic("T", QUEUES)
            for queue in producer.publish_queues("T"):
                producer.send_table(
                    pa.table({"body": [str(number) for number in range(BACKLOG)]}), "T", queue=queue
                )
        with member(ledger, "first", address):
            while sum(len(found) for found in [*ledger.consumed.values()]) < 100:
                time.sleep(0.01)
            broker.kill()
            with BrokerProcess(tmp_path, listenPort=str(port)):
                time.sleep(1)
                with member(ledger, "second", address):
                    deadline = time.monotonic() + 30
                    while not ledger.has_all() and time.monotonic() < deadline:
                        time.sleep(0.05)
    assert ledger.has_all()
    assert ledger.overlaps == []
    owners = {queue: [name for name, _ in found] for queue, found in ledger.consumed.items()}
    assert {name for found in owners.values() for name in found} == {"first", "second"}
    for queue, found in owners.items():
        changes = sum(one != two for one, two in pairwise(found))
        assert changes <= 3, f"queue {queue} went from hand to hand"  # taken, released, and final
