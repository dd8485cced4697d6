"""A broker, a producer, a table of Arrow and two consumers, in half a minute on one machine.

Starts a broker with a temporary directory, sends messages one by one and as a table, reads all of
them back, and shows how soon a waiting consumer receives a message. Run it with `make tour`.
"""

from __future__ import annotations

import statistics
import threading
import time

import pyarrow as pa

from rocketpoll import (
    Admin,
    ConsumeConcurrentlyStatus,
    Consumer,
    EmbeddedBroker,
    LitePullSettings,
    Message,
    Producer,
    PushConsumer,
)

SINGLE = 1_000
ROWS = 200_000
WAKES = 200
TOPIC = "orders"


def main() -> None:
    """Run the tour."""
    with EmbeddedBroker(own_process=True) as broker:
        address = broker.address
        print(f"a broker listens on {address} and keeps its files in {broker.directory}")
        with Admin(address) as admin:
            admin.create_topic(TOPIC, 4)
        send(address)
        read_back(address)
        wake(address)
    print("everything was read back each time; the broker has stopped gracefully")


def send(address: str) -> None:
    """Send messages one by one, and as a table."""
    with Producer("demo-producer", address) as producer:
        began = time.perf_counter()
        for number in range(SINGLE):
            producer.send(Message(TOPIC, b"one by one", keys=str(number)))
        print(
            f"sent {SINGLE:,} messages one by one, {SINGLE / (time.perf_counter() - began):,.0f} a "
            "second"
        )
        table = pa.table({"body": [b"x" * 100] * ROWS, "tags": ["table"] * ROWS})
        began = time.perf_counter()
        producer.send_table(table, TOPIC)
        print(
            f"sent a table of {ROWS:,} rows, {ROWS / (time.perf_counter() - began):,.0f} a second"
        )


def read_back(address: str) -> None:
    """Read each message, from the beginning of each queue."""
    consumer = Consumer("demo-reader", address, settings=LitePullSettings(pull_batch_size=32))
    consumer.start()
    queues = consumer.fetch_message_queues(TOPIC)
    consumer.assign(queues)
    for queue in queues:
        consumer.seek_to_begin(queue)
    began = time.perf_counter()
    found = 0
    while found < SINGLE + ROWS:
        messages = consumer.poll(30_000)
        assert messages, f"only {found:,} messages came back"
        found += len(messages)
    print(f"read {found:,} messages back, {found / (time.perf_counter() - began):,.0f} a second")
    consumer.close()


def wake(address: str) -> None:
    """Send messages far apart: each wakes a pull that waits in the broker."""
    heard = threading.Event()

    def listen(messages, context):  # noqa: ANN001, ANN202, ARG001  # a listener's signature
        heard.set()
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer = PushConsumer("demo-listener", address, listener=listen)
    consumer.subscribe(TOPIC, "waking")
    consumer.start()
    with Producer("demo-waker", address) as producer:
        times = []
        for _ in range(WAKES):
            heard.clear()
            began = time.perf_counter()
            producer.send(Message(TOPIC, b"wake up", tags="waking"))
            assert heard.wait(30)
            times.append(time.perf_counter() - began)
    consumer.close()
    print(
        f"a waiting consumer receives a message within {statistics.median(times) * 1e3:.1f} ms "
        "(median)"
    )


if __name__ == "__main__":
    main()
