"""Unmodified Java clients: a JVM with RocketMQ's client runs commands (tests/java/clients).

Tests start producers and consumers by name. Consumers run in the background; tests poll the
received messages until a condition holds.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from support.brokers.broker_kinds import NAME, wait_until
from support.programs.python_programs import line_within
from support.rocketmq.java_programs import JavaError, java_program
from support.rocketmq.real_broker import Process

ANSWER_SECONDS_MAX = 90
POLL_MS = 200

_SOON = "-Drocketmq.client.rebalance.minInterval=50"
"""Lets 5.5 clients rebalance again within the same second."""

ADDED_PROPERTIES = frozenset(
    [
        "UNIQ_KEY",
        "WAIT",
        "CLUSTER",
        "MSG_REGION",
        "TRACE_ON",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "CONSUME_START_TIME",
    ]
)
"""Properties that RocketMQ's clients and brokers add, some in one version only."""

Message = Mapping[str, Any]


class JavaClients:
    """One JVM. Its commands are in rocketpoll.clients.Main."""

    def __init__(self, version: str, home: Path, name_server: str, *options: str) -> None:
        home.mkdir(exist_ok=True)
        self._process = Process(
            home,
            java_program("clients", version),
            "rocketpoll.clients.Main",
            "512m",
            [name_server],
            [_SOON, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )

    def ask(self, what: str, **fields: Any) -> Any:
        """Run a command; return its result, or raise `JavaError`."""
        __tracebackhide__ = True
        java = self._process.process
        java.stdin.write(json.dumps({"ask": what, **fields}) + "\n")
        java.stdin.flush()
        line = line_within(java.stdout, ANSWER_SECONDS_MAX)
        assert line is not None, f"no answer within {ANSWER_SECONDS_MAX} s: {what} {fields}"
        if not line:
            java.wait(ANSWER_SECONDS_MAX)
            self._process.check_is_running()
        answer = json.loads(line)
        if "error" in answer:
            raise JavaError(f"{what} {fields}: {answer['error']}", answer["code"])
        return answer.get("answer")

    @property
    def is_running(self) -> bool:
        return self._process.process.poll() is None

    def kill(self) -> None:
        """Kill the JVM, and thereby all its clients."""
        java = self._process.process
        self._process.kill()
        java.stdin.close()
        java.stdout.close()

    def __enter__(self) -> JavaClients:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Client:
    """A producer or consumer in a JVM, with its own instance name."""

    kind = ""
    _numbers = itertools.count(1)

    def __init__(self, clients: JavaClients, group: str, **options: Any) -> None:
        self.name = f"{self.kind}-{next(self._numbers)}"
        self.group = group
        self._clients = clients
        self._is_running = False
        self.ask("start", group=group, **options)
        self._is_running = True

    def ask(self, what: str, **fields: Any) -> Any:
        return self._clients.ask(f"{self.kind} {what}", name=self.name, **fields)

    def stop(self) -> None:
        """Shut the client down, once; do nothing if its JVM has died."""
        if self._is_running and self._clients.is_running:
            self._is_running = False
            self.ask("stop")


class Producer(Client):
    """A DefaultMQProducer of RocketMQ."""

    kind = "producer"

    def send(self, topic: str, *messages: Message) -> list[dict[str, Any]]:
        """Send messages one after the other; return the results."""
        return self.ask("send", topic=topic, messages=messages)

    def send_to_queue(self, topic: str, queue_id: int, *messages: Message) -> list[dict[str, Any]]:
        return self.ask("send to queue", **queue(topic, queue_id), messages=messages)

    def send_in_order(self, topic: str, *messages: Message) -> list[dict[str, Any]]:
        """Send messages; those with the same key go to the same queue."""
        return self.ask("send in order", topic=topic, messages=messages)

    def send_asynchronously(self, topic: str, *messages: Message) -> list[dict[str, Any]]:
        """Send all messages with callbacks; return the results."""
        return self.ask("send asynchronously", topic=topic, messages=messages)

    def send_one_way(self, topic: str, *messages: Message) -> None:
        self.ask("send one-way", topic=topic, messages=messages)

    def send_in_transaction(self, topic: str, *messages: Message) -> list[dict[str, Any]]:
        """Send half messages; their properties ``local`` and ``check`` determine how they end."""
        return self.ask("send in transaction", topic=topic, messages=messages)

    def checks(self) -> list[dict[str, Any]]:
        """Return the half messages that the broker has checked."""
        return self.ask("checks")

    def recall(self, topic: str, handle: str) -> str:
        """Recall a timer message by its handle; return its id."""
        return self.ask("recall", topic=topic, handle=handle)

    def send_batch(self, topic: str, *messages: Message) -> dict[str, Any]:
        return self.ask("send batch", topic=topic, messages=messages)

    def request(self, topic: str, message: Message, timeout_ms: int = 20_000) -> None:
        """Send a request; `replied` returns the reply."""
        self.ask("request", topic=topic, message=message, timeoutMs=timeout_ms)

    def replied(self) -> dict[str, Any]:
        """Return the reply to the last request."""
        return self.ask("replied")

    def reply(self, asked: Message, body: str) -> dict[str, Any]:
        """Reply to a received message."""
        return self.ask("reply", topic=asked["topic"], properties=asked["properties"], body=body)

    def publish_queues(self, topic: str) -> list[int]:
        return self.ask("publish queues", topic=topic)


class Consumer(Client):
    """The messages that a consumer of any kind has received so far."""

    def __init__(self, clients: JavaClients, group: str, **options: Any) -> None:
        self.received: list[dict[str, Any]] = []
        super().__init__(clients, group, **options)

    def look(self) -> list[dict[str, Any]]:
        """Return the messages received since the last call."""
        raise NotImplementedError

    @property
    def bodies(self) -> list[str]:
        return [each["body"] for each in self.received]

    def wait_for(self, bodies: Iterable[str]) -> list[dict[str, Any]]:
        """Wait until each of these bodies was received; return all that were received."""
        expected = set(bodies)

        def has_come() -> bool:
            self.look()
            return expected <= set(self.bodies)

        try:
            wait_until("all messages", has_come)
        except AssertionError as error:
            missing = sorted(expected - set(self.bodies))
            raise AssertionError(f"{error}; missing {missing}, received {self.bodies}") from None
        return self.received

    def wait_for_assigned(self, *expected: Any, **fields: Any) -> None:
        """Wait until exactly these queues are assigned."""
        wait_until(
            f"{self.name} with the queues {expected}",
            lambda: self.ask("assigned", **fields) == list(expected),
        )


class LiteConsumer(Consumer):
    """A DefaultLitePullConsumer of RocketMQ."""

    kind = "lite"

    def look(self) -> list[dict[str, Any]]:
        polled = self.ask("poll", timeoutMs=POLL_MS)
        self.received += polled
        return polled

    def assign(self, topic: str, *queue_ids: int) -> None:
        self.ask("assign", topic=topic, queueIds=queue_ids)

    def committed(self, topic: str, queue_id: int) -> int | None:
        return self.ask("committed", **queue(topic, queue_id))


class PushConsumer(Consumer):
    """A DefaultMQPushConsumer of RocketMQ."""

    kind = "push"

    def look(self) -> list[dict[str, Any]]:
        came = self.ask("received", **{"from": len(self.received)})
        self.received += came
        return came


class PullConsumer(Client):
    """A DefaultMQPullConsumer of RocketMQ."""

    kind = "pull"

    def pull(self, topic: str, queue_offset: int, queue_id: int = 0) -> list[dict[str, Any]]:
        """Return the messages of one pull."""
        return self.ask("pull", **queue(topic, queue_id), queueOffset=queue_offset)

    def commit(self, topic: str, queue_offset: int, queue_id: int = 0) -> None:
        self.ask("commit", **queue(topic, queue_id), queueOffset=queue_offset)


class Scenario:
    """Topics, groups and clients of one test on a shared broker."""

    _numbers = itertools.count(1)

    def __init__(self, clients: JavaClients, address: str, name: str) -> None:
        self.clients = clients
        self.address = address
        self.name = f"{name}-{next(self._numbers)}"  # unique: parametrised tests share test names
        self.group = f"{self.name}-group"
        self._started: list[Client] = []
        self._topics = itertools.count(1)

    def new_name(self) -> str:
        """Return a topic name that is not in use."""
        return f"{self.name}-{next(self._topics)}"

    def topic(self, queues: int = 1) -> str:
        """Create a topic; wait until clients see its route."""
        topic = self.new_name()
        self.clients.ask("admin create topic", address=self.address, topic=topic, queues=queues)
        self.wait_for_topic(topic, queues)
        return topic

    def wait_for_topic(self, topic: str, queues: int) -> None:
        wait_until(
            f"a route to {topic} with {queues} queues",
            lambda: self.clients.ask("admin queues", topic=topic) == {NAME: queues},
        )

    def producer(self, **options: Any) -> Producer:
        return self._keep(Producer(self.clients, **{"group": f"{self.name}-senders", **options}))

    def transaction_producer(
        self, *, clients: JavaClients | None = None, **options: Any
    ) -> Producer:
        """Return a TransactionMQProducer."""
        group = f"{self.name}-committers"
        options = {"group": group, "transactions": True, **options}
        return self._keep(Producer(clients or self.clients, **options))

    def lite(self, *, clients: JavaClients | None = None, **options: Any) -> LiteConsumer:
        return self._keep(LiteConsumer(clients or self.clients, **{"group": self.group, **options}))

    def push(self, *, clients: JavaClients | None = None, **options: Any) -> PushConsumer:
        return self._keep(PushConsumer(clients or self.clients, **{"group": self.group, **options}))

    def _keep(self, client: Any) -> Any:
        self._started.append(client)
        return client

    def stop(self) -> None:
        """Stop the clients that the test has not stopped."""
        for client in reversed(self._started):
            client.stop()

    def ask(self, what: str, **fields: Any) -> Any:
        return self.clients.ask(f"admin {what}", **fields)

    def max_offset(self, topic: str, queue_id: int = 0) -> int:
        return self.ask("offsets", **queue(topic, queue_id))["max"]

    def wait_for_max_offset(self, topic: str, expected: int, queue_id: int = 0) -> None:
        wait_until(
            f"{expected} messages in {topic}", lambda: self.max_offset(topic, queue_id) == expected
        )

    def read(self, topic: str, count: int, queues: int = 1) -> list[dict[str, Any]]:
        """Read all messages of a topic with a consumer that is assigned all queues."""
        __tracebackhide__ = True
        consumer = self.lite(group=f"{self.name}-readers")
        consumer.assign(topic, *range(queues))
        wait_until(
            f"{count} messages in {topic}",
            lambda: consumer.look() and len(consumer.received) >= count,
        )
        consumer.stop()
        assert len(consumer.received) == count
        return consumer.received

    def consumed(self, group: str, topic: str) -> dict[int, int]:
        """Return a group's committed offset of each queue, from the broker."""
        stats = self.ask("consume stats", group=group)
        return {each["queueId"]: each["consumerOffset"] for each in stats if each["topic"] == topic}


def queue(topic: str, queue_id: int) -> dict[str, Any]:
    return {"topic": topic, "brokerName": NAME, "queueId": queue_id}


def to_send(body: str, **fields: Any) -> dict[str, Any]:
    """Return a message to send; each character of its body, up to 255, becomes one byte."""
    return {"body": body, **fields}


def numbered(count: int, start: int = 0, **fields: Any) -> list[dict[str, Any]]:
    return [to_send(f"message {number}", **fields) for number in range(start, start + count)]


def bodies_of(messages: Iterable[Message]) -> list[str]:
    return [each["body"] for each in messages]


def in_order(messages: Iterable[Message]) -> list[Message]:
    """Sort messages by queue and offset."""
    return sorted(messages, key=lambda each: (each["queueId"], each["queueOffset"]))
