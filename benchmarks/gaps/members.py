"""Rows about clients: heartbeats, groups of very many members, locks, and waiting pulls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from benchmarks.gaps.asked import Scale, ask, ask_long, command, pull, send
from benchmarks.gaps.measured import Client, Gap, MeasuredBroker
from benchmarks.gaps.operators import BROKER, make_topic
from benchmarks.gaps.row import Row, row_of, rows_of
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import (
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
    MessageModel,
    ProducerData,
    QueryAssignmentRequestBody,
    SubscriptionData,
)
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.operators import GetConsumerStatusRequestHeader
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.server.client_connection import ClientConnection
from rocketpoll.broker.state.members.client_channel_info import ClientChannelInfo

_GROUPS_OF_ONE = 490
_EVENTS_OF_A_TURN = 1_024
"""The maximum number of events that uvloop reports at a time."""


def member_rows(broker: MeasuredBroker, client: Client, scale: Scale) -> Iterator[Row]:
    """Connect many clients, query them, and let them hold pulls and leave."""
    yield from _of_bodies(broker, client, scale)
    yield from _of_groups(broker, scale)
    yield from _of_members(broker, client, scale)
    yield from _of_holds(broker, scale)


def _of_bodies(broker: MeasuredBroker, client: Client, scale: Scale) -> Iterator[Row]:
    subscription = SubscriptionData(topic="wide", sub_string="a = 1", expression_type="SQL92")
    check = CheckClientRequestBody(client_id="c", group="G", subscription_data=subscription)
    locked = '{"consumerGroup":"G","clientId":"c","mqSet":['
    queue = f'{{"brokerName":"{BROKER}","queueId":%d,"topic":"wide"}}'
    heartbeat = '{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":['
    tags = heartbeat + '{"topic":"wide","tagsSet":['
    codes = heartbeat + '{"topic":"wide","codeSet":['
    groups = '{"clientID":"c","consumerDataSet":['
    size = scale.json_bytes
    requests = {
        "locks of as many queues as a body holds": ask_long(
            RequestCode.LOCK_BATCH_MQ, size, locked, queue, "]}"
        ),
        "as many queues given back": ask_long(
            RequestCode.UNLOCK_BATCH_MQ, size, locked, queue, "]}"
        ),
        "a heartbeat of as many topics": ask_long(
            RequestCode.HEART_BEAT, size, heartbeat, '{"topic":"T%d"}', "]}]}"
        ),
        "a heartbeat of as many tags": ask_long(
            RequestCode.HEART_BEAT, size, tags, '"%d"', "]}]}]}"
        ),
        "a heartbeat of as many codes": ask_long(
            RequestCode.HEART_BEAT, size, codes, "%d", "]}]}]}"
        ),
        "a heartbeat of as many groups": ask_long(
            RequestCode.HEART_BEAT, size, groups, '{"groupName":"g"}', "]}"
        ),
        "a check of a filter": ask(RequestCode.CHECK_CLIENT_CONFIG, check),
    }
    yield from rows_of(broker, client, requests, scale.rounds)


def _of_groups(broker: MeasuredBroker, scale: Scale) -> Iterator[Row]:
    clients = [Client(broker) for _ in range(max(scale.clients // 8, 3))]
    groups = min(scale.groups, _GROUPS_OF_ONE)
    for client in clients[1:]:
        broker.send(client, [_heartbeat(groups)])
    name = f"a client joins {groups} groups of {len(clients) - 1}"
    gap = broker.longest_turn(clients[0], [_heartbeat(groups)])
    yield row_of(name, gap, RequestCode.HEART_BEAT)
    consumers = broker.controller.processors.consumers
    name = f"a client of {groups} groups of {len(clients)} goes"
    yield Row(("connection_lost",), name, _goes(broker, clients[1], consumers.groups_with))
    producer = Client(broker)
    broker.send(producer, [_producer(groups)])
    name = f"a producer of {groups} groups goes"
    producers = broker.controller.processors.producers
    yield Row(("connection_lost",), name, _goes(broker, producer, producers.groups_with))
    for client in clients:
        client.close()


def _goes(
    broker: MeasuredBroker,
    client: Client,
    groups_with: Callable[[ClientConnection], Collection[str]],
) -> Gap:
    return broker.longest_turn(act=client.close, until=lambda: not groups_with(client.connection))


def _of_members(broker: MeasuredBroker, client: Client, scale: Scale) -> Iterator[Row]:
    clients = [Client(broker) for _ in range(scale.members)]
    data = ConsumerData(group_name="huge", subscription_data_set=(SubscriptionData(topic="wide"),))
    processors = broker.controller.processors
    for number, each in enumerate(clients):
        channel = ClientChannelInfo(each.connection, f"10.0.0.1@{number}", "JAVA", 477, 1 << 50)
        processors.consumers.register(channel, data, notify=False)
        processors.producers.register("huge", channel)
    broker.controller.tables.groups.find_or_create("huge")
    members = f"{scale.members:,} members"
    reset = {"topic": "filled", "group": "huge", "timestamp": 0, "isForce": "true"}
    broker.controller.tables.offsets.commit("huge", "filled", 0, 1)
    requests: dict[str, RemotingCommand] = {
        f"the ids of {members}": ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="huge"),
        f"the queues of one of {members}": ask(
            RequestCode.QUERY_ASSIGNMENT,
            QueryAssignmentRequestBody(
                topic="filled",
                consumer_group="huge",
                client_id="10.0.0.1@0",
                strategy_name="AVG",
                message_model=MessageModel.CLUSTERING,
            ),
        ),
        f"{members} as consumers": ask(
            RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="huge"
        ),
        f"{members} as producers": ask(
            RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="huge"
        ),
        f"all producers, {members}": ask(RequestCode.GET_ALL_PRODUCER_INFO),
        f"a reset of {members}": ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset),
        f"one of {members} that is not there is asked": ask(
            RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="huge", clientId="nobody"
        ),
    }
    yield from rows_of(broker, client, requests, scale.rounds)
    status = command(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        GetConsumerStatusRequestHeader("wide", "huge"),
    )
    yield row_of(
        f"{members} are asked for offsets, and do not answer",
        broker.longest_turn(client, [status]),
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    )
    leave = ask(
        RequestCode.UNREGISTER_CLIENT, clientID="c", consumerGroup="huge", producerGroup="huge"
    )
    name = f"one of {members} takes leave"
    yield row_of(name, broker.longest_turn(clients[0], [leave]), RequestCode.UNREGISTER_CLIENT)
    server = broker.controller.server

    def be_idle() -> None:
        for each in clients:
            each.connection.last_active = -1e9
        server._sweeps = 9  # the tenth looks after the idle
        server._sweep()

    yield Row(
        ("sweep",),
        f"{members} are closed, as they were idle, and their groups are told",
        broker.longest_turn(act=be_idle, until=lambda: processors.consumers.group("huge") is None),
    )
    crowd = [Client(broker) for _ in range(min(scale.members, _EVENTS_OF_A_TURN))]
    there_were = server.connections - len(crowd)

    def all_go() -> None:
        for each in crowd:
            each.close()

    gap = broker.longest_turn(act=all_go, until=lambda: server.connections <= there_were)
    yield Row(("connection_lost",), f"{len(crowd):,} clients go at once", gap)


def _of_holds(broker: MeasuredBroker, scale: Scale) -> Iterator[Row]:
    make_topic(broker, "held", scale.queues)
    clients = [Client(broker) for _ in range(scale.clients)]
    controller = broker.controller
    holds = controller.hold_service
    waiting = scale.clients * scale.holds

    def holding(timeout_ms: int = 60_000, subscription: str | None = None) -> Callable[[], object]:
        """Return a function that delivers all pulls."""
        pulls = b"".join(
            pull(
                "held",
                0,
                subscription=subscription and subscription.replace("%d", str(number)),
                suspend_timeout_ms=timeout_ms,
            ).encode()
            for number in range(scale.holds)
        )

        def come() -> None:
            for client in clients:
                client.connection.data_received(pulls)

        return come

    def is_empty() -> bool:
        return not holds.hold_count

    def all_held() -> bool:
        return holds.hold_count == waiting

    broker.longest_turn(act=holding(), until=all_held)
    message = [send("held", 0)]
    producer = Client(broker)
    name = f"one message wakes {waiting:,} pulls"
    yield Row(("arrival",), name, broker.longest_turn(producer, message, until=is_empty))
    delete = ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="held")
    broker.send(producer, [delete])
    make_topic(broker, "held", scale.queues)
    yield Row(
        ("deadline",),
        f"{waiting:,} pulls come, and their time is over at once",
        broker.longest_turn(act=holding(1_000), until=_once_then(all_held, is_empty)),
    )
    broker.longest_turn(act=holding(subscription="a = %d"), until=all_held)
    name = f"one message that {waiting:,} pulls by SQL92 do not want"
    yield Row(("arrival",), name, broker.longest_turn(producer, message))
    for client in clients:
        client.close()
    broker.longest_turn(until=is_empty)
    greedy = Client(broker)
    pulls = [
        pull("held", queue_id, suspend_timeout_ms=60_000)
        for queue_id in range(1, scale.queues)
        for _ in range(min(scale.holds, 4))
    ]
    greedy.connection.data_received(b"".join(each.encode() for each in pulls))
    broker.longest_turn(until=lambda: holds.hold_count == len(pulls))
    yield Row(
        ("_sweep_holds",),
        f"the sweep over {scale.queues:,} queues",
        broker.usual_turn(scale.rounds, act=lambda: _sweep_holds(broker)),
    )
    name = f"a client with {len(pulls):,} waiting pulls goes"
    yield Row(("connection_lost",), name, broker.longest_turn(act=greedy.close, until=is_empty))


def _once_then(first: Callable[[], bool], then: Callable[[], bool]) -> Callable[[], bool]:
    """Return a function that is true when ``then`` holds after ``first`` has held once."""
    seen: list[bool] = []

    def is_so() -> bool:
        if not seen and first():
            seen.append(True)
        return bool(seen) and then()

    return is_so


def _sweep_holds(broker: MeasuredBroker) -> None:
    controller = broker.controller
    controller.housekeeping._sweep_holds(controller.hold_service)


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


def _producer(groups: int) -> RemotingCommand:
    data = tuple(ProducerData(group_name=f"producers-{number}") for number in range(groups))
    body = encode_body(HeartbeatData(client_id="p", producer_data_set=data))
    return RemotingCommand(RequestCode.HEART_BEAT, body=body)
