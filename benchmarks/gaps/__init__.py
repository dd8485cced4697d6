"""How long a client waits at most because of what another asks for, for each kind of request for much.

Everything of a broker happens on one thread. So the longest turn of its loop is measured, not how long the
other's request takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks.gaps.measured import Client, Gap, MeasuredBroker
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import ConsumerData, HeartbeatData, LockBatchRequestBody, SubscriptionData
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.flags import PullSysFlag
from rmq_spark.wire.headers.pull import PullMessageRequestHeader
from rmq_spark.wire.headers.send import SendMessageRequestHeader
from rmq_spark.wire.headers.table import HEADERS
from rmq_spark.wire.message_batch import BatchedMessage, encode_batch
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.properties import encode_properties

LIBRARIES = ("numpy", "orjson", "pyarrow", "uvloop")
_BROKER = "broker-a"


class Scale(NamedTuple):
    """How much is asked for."""

    messages: int = 20_000
    requests: int = 200
    batch: int = 180_000
    queues: int = 4_096
    topics: int = 10_000
    groups: int = 4_000
    clients: int = 400
    holds: int = 15


QUICK = Scale(200, 5, 2_000, 20, 50, 20, 4, 3)
"""To see that every kind works; its figures mean nothing."""


def gaps(broker: MeasuredBroker, scale: Scale) -> Iterator[tuple[str, Gap]]:
    """Each kind with the longest turn that it makes."""
    client = Client(broker)
    for start in range(0, scale.messages, 100):
        broker.send(client, [_send("filled", number) for number in range(start, start + 100)])
    yield from _of_messages(broker, client, scale)
    yield from _of_queues(broker, client, scale)
    yield from _of_lists(broker, client, scale)
    yield from _of_clients(broker, scale)
    yield from _of_holds(broker, scale)


def _of_messages(broker: MeasuredBroker, client: Client, scale: Scale) -> Iterator[tuple[str, Gap]]:
    pull = _pull("filled", 0, subscription="a = 'nothing' AND b IS NULL AND c IS NULL")
    broker.send(client, [pull])  # whose tools are loaded here
    yield f"{scale.requests} pulls by SQL92", broker.longest_turn(client, [pull] * scale.requests)
    query = _ask(
        RequestCode.QUERY_MESSAGE, topic="filled", key="k5", maxNum=64, beginTimestamp=0, endTimestamp=1 << 62
    )
    count = 4 * scale.requests
    yield f"{count} queries by key", broker.longest_turn(client, [query] * count)
    batch = encode_batch(BatchedMessage(b"x") for _ in range(scale.batch))
    name = f"one batch of {scale.batch:,} messages of one byte"
    yield name, broker.longest_turn(client, [_batch("batches", batch)])


def _of_queues(broker: MeasuredBroker, client: Client, scale: Scale) -> Iterator[tuple[str, Gap]]:
    _make_topic(broker, "wide", scale.queues)
    broker.send(client, [_send("wide", queue_id, queue_id=queue_id) for queue_id in range(scale.queues)])
    tables = broker.controller.tables
    tables.groups.find_or_create("G")
    for queue_id in range(scale.queues):
        tables.offsets.commit("G", "wide", queue_id, 1)
    broker.send(Client(broker), [_heartbeat(1)])
    reset = {"topic": "wide", "group": "G", "timestamp": 0, "isForce": "true"}
    wide = frozenset(MessageQueue("wide", _BROKER, queue_id) for queue_id in range(scale.queues))
    locks = encode_body(LockBatchRequestBody(consumer_group="G", client_id="c", mq_set=wide))
    for what, request in {
        "the figures of": _ask(RequestCode.GET_TOPIC_STATS_INFO, topic="wide"),
        "the progress of a group in": _ask(RequestCode.GET_CONSUME_STATS, consumerGroup="G"),
        "the ages of messages in": _ask(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="wide", group="G"),
        "a reset of": _ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset),
        "the locks of": _ask(RequestCode.LOCK_BATCH_MQ)._replace(body=locks),
        "the deletion of": _ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="wide"),
    }.items():
        yield f"{what} {scale.queues:,} queues", broker.longest_turn(client, [request])


def _of_lists(broker: MeasuredBroker, client: Client, scale: Scale) -> Iterator[tuple[str, Gap]]:
    tables = broker.controller.tables
    for number in range(scale.topics):
        _make_topic(broker, f"topic-{number}", 8)
        for queue_id in range(8):
            tables.offsets.commit("G", f"topic-{number}", queue_id, number)
    for number in range(scale.groups):
        tables.groups.find_or_create(f"group-{number}")
    for what, code in {
        f"all of {scale.topics:,} topics": RequestCode.GET_ALL_TOPIC_CONFIG,
        f"the names of {scale.topics:,} topics": RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        f"all of {scale.groups:,} groups": RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        f"all of {8 * scale.topics:,} offsets": RequestCode.GET_ALL_CONSUMER_OFFSET,
    }.items():
        yield what, broker.longest_turn(client, [_ask(code)])
    wipe = _ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName=_BROKER)
    yield f"{scale.topics:,} topics made read-only", broker.longest_turn(client, [wipe])
    broker.send(client, [wipe._replace(code=RequestCode.ADD_WRITE_PERM_OF_BROKER)])
    saved: list[BaseException | None] = []

    def save() -> None:
        tables.offsets.commit("G", "topic-0", 0, 1 << 40)
        broker.aside(tables.offsets.save, saved.append)

    name = f"the saving of {8 * scale.topics:,} offsets"
    yield name, broker.longest_turn(act=save, until=lambda: saved)


def _of_clients(broker: MeasuredBroker, scale: Scale) -> Iterator[tuple[str, Gap]]:
    clients = [Client(broker) for _ in range(max(scale.clients // 8, 2))]
    groups = min(scale.groups, 490)
    for client in clients[1:]:
        broker.send(client, [_heartbeat(groups)])
    name = f"a client joins {groups} groups of {len(clients) - 1}"
    yield name, broker.longest_turn(clients[0], [_heartbeat(groups)])
    name = f"a client of {groups} groups of {len(clients)} goes"
    yield name, broker.longest_turn(act=lambda: broker.gone(clients[1]))


def _of_holds(broker: MeasuredBroker, scale: Scale) -> Iterator[tuple[str, Gap]]:
    _make_topic(broker, "held", scale.queues)
    clients = [Client(broker) for _ in range(scale.clients)]
    holds = broker.controller.hold_service
    waiting = scale.clients * scale.holds

    def hold(subscription_of: Callable[[int], str | None]) -> None:
        for client in clients:
            pulls = [
                _pull("held", 0, subscription=subscription_of(n), holds=True) for n in range(scale.holds)
            ]
            client.connection.data_received(b"".join(pull.encode() for pull in pulls))
        broker.longest_turn(until=lambda: holds.held == waiting)

    hold(lambda _: None)
    message = [_send("held", 0)]
    producer = Client(broker)
    name = f"one message wakes {waiting:,} pulls"
    yield name, broker.longest_turn(producer, message, until=lambda: not holds.held)
    broker.send(producer, [_ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="held")])
    _make_topic(broker, "held", scale.queues)
    hold(lambda number: f"a = {number}")
    name = f"one message that {waiting:,} pulls by SQL92 do not want"
    yield name, broker.longest_turn(producer, message)
    yield "the sweep over them", broker.longest_turn(act=broker.sweep_holds)
    for client in clients:
        broker.gone(client)
    greedy = Client(broker)
    pulls = [
        _pull("held", queue_id, holds=True)
        for queue_id in range(1, scale.queues)
        for _ in range(min(scale.holds, 4))
    ]
    greedy.connection.data_received(b"".join(pull.encode() for pull in pulls))
    broker.longest_turn(until=lambda: holds.held == len(pulls))
    yield f"the sweep over {scale.queues:,} queues", broker.longest_turn(act=broker.sweep_holds)
    name = f"a client with {len(pulls):,} waiting pulls goes"
    yield name, broker.longest_turn(act=lambda: broker.gone(greedy), until=lambda: not holds.held)


def _make_topic(broker: MeasuredBroker, topic: str, queues: int) -> None:
    broker.controller.tables.topics.put(
        TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=6)
    )


def _ask(code: RequestCode, **fields: object) -> RemotingCommand:
    return RemotingCommand(code, ext_fields={name: str(value) for name, value in fields.items()})


def _command(code: RequestCode, header: NamedTuple, body: bytes = b"") -> RemotingCommand:
    codec: Any = HEADERS[code].request
    return RemotingCommand(code, ext_fields=codec.encode(header), body=body)


def _send(topic: str, number: int, queue_id: int = 0) -> RemotingCommand:
    properties = encode_properties({"a": str(number), "KEYS": f"k{number % 100}"})
    return _command(RequestCode.SEND_MESSAGE_V2, _send_header(topic, queue_id, properties), bytes(100))


def _batch(topic: str, body: bytes) -> RemotingCommand:
    header = _send_header(topic, 0, "")._replace(batch=True)
    return _command(RequestCode.SEND_BATCH_MESSAGE, header, body)


def _send_header(topic: str, queue_id: int, properties: str) -> SendMessageRequestHeader:
    return SendMessageRequestHeader("P", topic, "TBW102", 4, queue_id, 0, 1, 0, properties)


def _pull(
    topic: str, queue_id: int, *, subscription: str | None = None, holds: bool = False
) -> RemotingCommand:
    flags = PullSysFlag.SUBSCRIPTION | (PullSysFlag.SUSPEND if holds else 0)
    kind = "SQL92" if subscription is not None else "TAG"
    header = PullMessageRequestHeader(
        "G", topic, queue_id, 0, 32, int(flags), 0, 60_000, 0, subscription or "*", kind
    )
    return _command(RequestCode.PULL_MESSAGE, header)


def _heartbeat(groups: int) -> RemotingCommand:
    data = tuple(
        ConsumerData(
            group_name=f"group-{number}" if number else "G",
            subscription_data_set=(SubscriptionData(topic="wide"),),
        )
        for number in range(groups)
    )
    body = encode_body(HeartbeatData(client_id="c", consumer_data_set=data))
    return RemotingCommand(RequestCode.HEART_BEAT, body=body)
