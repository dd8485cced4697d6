"""Fair scheduling: whatever one client requests, other clients wait for at most a turn and one
step.

Only work moves the clock: each read of the store, each record and each text written takes two
milliseconds. By this clock, the requests take seconds.
"""

import asyncio
import threading

import pytest
from support.brokers.in_process import on_broker
from support.clients.remoting_clients import batch_request, pull_request, send_request
from support.stores.small_store import components_of

from rmq_spark.wire.bodies import encode_body, fastjson
from rmq_spark.wire.bodies.clients import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    SubscriptionData,
)
from rmq_spark.wire.bodies.configs import (
    CreateTopicListRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
)
from rmq_spark.wire.codes import RequestCode, SerializeType
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.processor.fast_paths import ResponseTemplate
from rocketpoll.broker.processor.pulls import query_message
from rocketpoll.broker.processor.sends.fast_path.fast_send import FastSend
from rocketpoll.broker.server import fair_scheduler
from rocketpoll.broker.server.client_connection import ClientConnection
from rocketpoll.broker.server.fair_scheduler import TURN_SECONDS
from rocketpoll.broker.server.limits import BYTES_MAX, SMALL_BODY_BYTES
from rocketpoll.broker.state import broker_stats
from rocketpoll.broker.state.broker_stats import BrokerStats
from rocketpoll.broker.state.members.consumers import ConsumerManager
from rocketpoll.broker.store.append.chunk_appender import ChunkAppender
from rocketpoll.broker.store.append.record_encoding import RecordRun

STEP_SECONDS = 0.002
TURN_AND_STEP = TURN_SECONDS + STEP_SECONDS + 1e-6
QUEUES = 200


def slow_down(monkeypatch, owner, *names, seconds=STEP_SECONDS):
    """Make each call take this much time of the loop's thread, by the loop's clock."""
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    for name in names:
        monkeypatch.setattr(owner, name, _slowed(getattr(owner, name), loop, thread, seconds))


def _slowed(call, loop, thread, seconds):
    def slowed(*arguments, **more):
        if threading.get_ident() == thread:
            loop.move(seconds)
        return call(*arguments, **more)

    return slowed


def counted(monkeypatch, owner, name):
    """Return a list that counts the calls from now on."""
    calls, call = [0], getattr(owner, name)

    def counting(*arguments, **more):
        calls[0] += 1
        return call(*arguments, **more)

    monkeypatch.setattr(owner, name, counting)
    return calls


async def most_of_a_turn(number, condition):
    """Return the largest increase of the number in one turn, until a condition holds."""
    most = 0
    while not condition():
        before = number[0]
        await asyncio.sleep(0)
        most = max(most, number[0] - before)
    return most


async def longest_turn(work):
    """Return the longest turn by the loop's clock during some work, and the work's result."""
    loop, turns = asyncio.get_running_loop(), []

    async def beat():
        while True:
            before = loop.time()
            await asyncio.sleep(0)
            turns.append(loop.time() - before)

    heart = asyncio.ensure_future(beat())
    result = await work
    heart.cancel()
    return max(turns), sum(turns), result


def ask(code, body=None, **fields):
    """Return a request with these ext fields."""
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in fields.items()
    }
    return RemotingCommand(
        code, opaque=1, ext_fields=texts, body=b"" if body is None else encode_body(body)
    )


def heartbeat(groups):
    data = tuple(
        ConsumerData(group_name=f"G{number}", subscription_data_set=(SubscriptionData(topic="T"),))
        for number in range(groups)
    )
    return ask(RequestCode.HEART_BEAT, HeartbeatData(client_id="c", consumer_data_set=data))


def topic(number, **more):
    return TopicConfig(
        topic_name=f"T{number}", read_queue_nums=1, write_queue_nums=1, perm=6, **more
    )


REQUESTS = {
    "the figures of a topic of many queues": lambda: ask(
        RequestCode.GET_TOPIC_STATS_INFO, topic="Wide"
    ),
    "how far a group is in many queues": lambda: ask(
        RequestCode.GET_CONSUME_STATS, consumerGroup="G"
    ),
    "how far all groups are": lambda: ask(RequestCode.GET_BROKER_CONSUME_STATS, isOrder=False),
    "how old messages of many queues are": lambda: ask(
        RequestCode.QUERY_CONSUME_TIME_SPAN, topic="Wide", group="G"
    ),
    "a reset of many queues": lambda: ask(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        topic="Wide",
        group="G",
        timestamp=0,
        isForce=True,
    ),
    "a comparison of groups": lambda: ask(
        RequestCode.QUERY_CORRECTION_OFFSET, topic="Wide", compareGroup="G", filterGroups=""
    ),
    "all topics": lambda: ask(RequestCode.GET_ALL_TOPIC_CONFIG),
    "the names of all topics": lambda: ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
    "all groups": lambda: ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
    "all offsets": lambda: ask(RequestCode.GET_ALL_CONSUMER_OFFSET),
    "many topics to be made": lambda: ask(
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        CreateTopicListRequestBody(topic_config_list=tuple(map(topic, range(QUEUES)))),
    ),
    "many groups to be made": lambda: ask(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        SubscriptionGroupList(
            group_config_list=tuple(
                SubscriptionGroupConfig(group_name=f"H{n}") for n in range(QUEUES)
            )
        ),
    ),
    "all topics to be read-only": lambda: ask(
        RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a"
    ),
    "many queues to be locked": lambda: ask(
        RequestCode.LOCK_BATCH_MQ,
        LockBatchRequestBody(
            consumer_group="G",
            client_id="c",
            mq_set=frozenset(MessageQueue("Wide", "broker-a", number) for number in range(QUEUES)),
        ),
    ),
    "a heartbeat of many groups": lambda: heartbeat(QUEUES),
    "a batch of very many messages": lambda: batch_request(*range(12_000), topic="Wide"),
    "a look at a queue's entries": lambda: ask(
        RequestCode.QUERY_CONSUME_QUEUE,
        topic="Full",
        queueId=0,
        index=0,
        count=256,
        consumerGroup="",
    ),
}


@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS)
@on_broker(mappedFileSizeCommitLog=16 << 20)
async def test_expensive_request_yields_to_other_clients(broker, request_of, monkeypatch):
    tables = broker.controller.tables
    broker.make_topic("Wide", queues=QUEUES)
    client, other = await broker.connect(), await broker.connect()
    await client.put(*range(60), topic="Full")
    await client.heartbeat("G", "Wide")
    for number in range(2 * QUEUES):
        broker.make_topic(f"U{number}")
    for number in range(QUEUES):
        tables.offsets.commit("G", "Wide", number, 0)
        tables.offsets.commit(f"Old{number}", f"U{number}", 0, 0)
        tables.groups.find_or_create(f"Old{number}")
    await other.put("here")
    asyncio.get_running_loop().stand_still()
    slow_down(monkeypatch, broker.store, "queue_offsets", "get_message", "offset_by_time")
    slow_down(monkeypatch, tables.topics, "put", "create_in_send_back")
    slow_down(monkeypatch, tables.groups, "put")
    slow_down(monkeypatch, tables.offsets, "queues")
    slow_down(monkeypatch, fastjson, "dumps")
    slow_down(monkeypatch, RecordRun, "encode")
    slow_down(monkeypatch, query_message, "decode_record")
    monkeypatch.setattr("rmq_spark.wire.bodies.incremental_codec.VALUES_PER_STEP", 8)
    request = request_of()
    longest, whole, answer = await longest_turn(client.call(request))
    assert answer.code == 0, answer.remark
    assert whole > 2 * TURN_SECONDS
    assert longest <= TURN_AND_STEP + 3 * STEP_SECONDS
    (answer,) = await asyncio.gather(
        other.call(ask(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0))
    )
    assert answer.code == 0


def many_sql_pulls(number):
    return pull_request(0, subscription="a = 'nothing'", expression_type="SQL92", opaque=number)


def many_queries(number):
    fields = {"topic": "T", "key": "k", "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 1 << 62}
    return ask(RequestCode.QUERY_MESSAGE, **fields)._replace(opaque=number)


@pytest.mark.parametrize("request_of", [many_sql_pulls, many_queries])
@on_broker
async def test_requests_of_a_busy_client_yield_to_others_and_are_answered_in_order(
    broker, request_of, monkeypatch
):
    client = await broker.connect()
    await client.put("a", properties={"KEYS": "k"})
    asyncio.get_running_loop().stand_still()
    slow_down(monkeypatch, broker.store, "get_message")
    slow_down(monkeypatch, broker.store._key_query, "_record_at")
    client.send(b"".join(request_of(number).encode() for number in range(100)))

    async def answers():
        return [(await client.receive()).opaque for _ in range(100)]

    longest, whole, opaques = await longest_turn(answers())
    assert opaques == list(range(100))
    assert whole > 99 * STEP_SECONDS  # float sums are inexact
    assert longest <= TURN_AND_STEP


@on_broker(mappedFileSizeCommitLog=16 << 20)
async def test_long_append_has_a_loop_turn_of_its_own(broker, monkeypatch):
    client, *others = [await broker.connect() for _ in range(5)]
    await client.put("a", topic="Full")
    await client.call(batch_request(*range(12_000), topic="Wide"))  # loads its modules
    asyncio.get_running_loop().stand_still()
    slow_down(monkeypatch, RecordRun, "encode")
    slow_down(monkeypatch, ChunkAppender, "_append", seconds=0.017)
    slow_down(monkeypatch, broker.store, "get_message")
    pull = pull_request(0, "Full", subscription="a = 'nothing'", expression_type="SQL92")
    for other in others:
        other.send(b"".join(pull.encode() for _ in range(100)))

    async def answers():
        for _ in range(3):
            answer = await client.call(batch_request(*range(6_000), topic="Wide"))
            assert answer.code == 0, answer.remark
        for other in others:
            for _ in range(100):
                await other.receive()

    longest, _, _ = await longest_turn(answers())
    assert longest <= TURN_SECONDS + 1e-6
    assert broker.store.queue_offsets("Wide", 0).next == 30_000


@on_broker(mappedFileSizeCommitLog=16 << 20)
async def test_small_stepwise_requests_do_not_wait_for_large_batches(broker):
    senders, other = [await broker.connect() for _ in range(3)], await broker.connect()
    await other.put("the topic is there")
    batch = batch_request(*range(12_000))
    assert len(batch.body) > SMALL_BODY_BYTES
    server = broker.controller.server
    under_way = server.concurrency_limit.acquire(RequestCode.SEND_BATCH_MESSAGE, BYTES_MAX, b"")
    for sender in senders:
        sender.send(batch)
    await broker.until(lambda: sum(each._permit is not None for each in server._connections) == 3)
    await other.heartbeat("G", "T")
    answer = await other.call(ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="G"))
    assert answer.code == 0
    assert (await other.call(batch_request(*range(500)))).code == 0
    assert broker.store.queue_offsets("T", 0).next == 501
    under_way.release()
    assert [(await sender.receive()).code for sender in senders] == [0, 0, 0]


@on_broker
async def test_message_that_wakes_many_held_pulls_yields_to_other_clients(broker, monkeypatch):
    broker.make_topic("T")
    clients = [await broker.connect() for _ in range(20)]
    for client in clients:
        client.send(
            b"".join(
                pull_request(0, suspend_ms=60_000, opaque=number).encode() for number in range(15)
            )
        )
    await broker.held(300)
    asyncio.get_running_loop().stand_still()
    slow_down(monkeypatch, broker.store, "get_message")
    producer = await broker.connect()

    async def opaques_of(client):
        return [(await client.receive()).opaque for _ in range(15)]

    async def all_woken():
        await producer.put("for all")
        return [await opaques_of(client) for client in clients]

    longest, whole, opaques = await longest_turn(all_woken())
    assert opaques == [list(range(15))] * 20
    assert whole > 299 * STEP_SECONDS  # float sums are inexact
    assert longest <= TURN_AND_STEP


@on_broker
async def test_client_joining_many_large_groups_yields_to_other_clients(broker, monkeypatch):
    clients = [await broker.connect() for _ in range(10)]
    for client in clients:
        client.send(heartbeat(30))
    await broker.until(lambda: _members(broker, "G29") == len(clients))
    asyncio.get_running_loop().stand_still()
    slow_down(monkeypatch, ClientConnection, "send_frame")
    newcomer = await broker.connect()

    async def joined():
        await newcomer.call(heartbeat(30))
        while len(newcomer.notices) < 30:
            newcomer.notices.append(await newcomer.receive())

    longest, whole, _ = await longest_turn(joined())
    assert whole > 329 * STEP_SECONDS  # float sums are inexact
    assert longest <= TURN_AND_STEP


@on_broker
async def test_closed_client_of_many_groups_yields_to_other_clients(broker, monkeypatch):
    clients = [await broker.connect() for _ in range(10)]
    for client in clients:
        client.send(heartbeat(60))
    await broker.until(lambda: _members(broker, "G59") == len(clients))
    asyncio.get_running_loop().stand_still()
    slow_down(monkeypatch, ConsumerManager, "unregister")
    slow_down(monkeypatch, ClientConnection, "send_frame")
    clients[0].close()

    async def gone():
        await broker.until(lambda: _members(broker, "G59") == len(clients) - 1)

    longest, whole, _ = await longest_turn(gone())
    assert whole >= 60 * STEP_SECONDS
    assert longest <= TURN_AND_STEP + STEP_SECONDS


@on_broker(flushDiskType="SYNC_FLUSH")
async def test_sends_covered_by_one_flush_are_answered_in_steps(broker, monkeypatch):
    client = await broker.connect()
    await client.put("first")
    acknowledger = broker.controller.processors.acknowledger
    flushes = []
    with monkeypatch.context() as slow_disk:
        slow_disk.setattr(acknowledger, "_flushed_in_thread", flushes.append)
        one_by_one = {"serialize_type": SerializeType.ROCKETMQ}  # requests without a fast path
        sends = (send_request("x", opaque=number, **one_by_one) for number in range(300))
        client.send(b"".join(each.encode() for each in sends))
        await broker.until(lambda: acknowledger.queue().size == 300)
        await broker.until(lambda: flushes)
    asyncio.get_running_loop().stand_still()
    slow_down(monkeypatch, BrokerStats, "record_put")

    async def answers():
        await asyncio.sleep(0)
        acknowledger._flushed(flushes[0])
        return [(await client.receive()).opaque for _ in range(300)]

    longest, whole, opaques = await longest_turn(answers())
    assert opaques == list(range(300))
    assert whole >= 250 * STEP_SECONDS
    assert longest <= TURN_AND_STEP


@on_broker
async def test_idle_clients_are_closed_in_steps(broker, monkeypatch):
    clients = [await broker.connect() for _ in range(60)]
    for client in clients:
        await client.put("here")
    asyncio.get_running_loop().stand_still()
    slow_down(monkeypatch, ClientConnection, "close")
    server = broker.controller.server
    server._sweeps = 9  # the tenth sweep closes idle connections
    for connection in server._connections:
        connection.last_active = -1e9
    server._sweep()

    async def closed():
        while server.connections:  # noqa: ASYNC110  # no event signals it
            await asyncio.sleep(0)

    longest, whole, _ = await longest_turn(closed())
    assert longest <= TURN_AND_STEP
    assert whole >= 40 * STEP_SECONDS


@on_broker
async def test_member_change_notices_are_spread_over_turns(broker, monkeypatch):
    clients = [await broker.connect() for _ in range(60)]
    for client in clients:
        client.send(heartbeat(1))
    await broker.until(lambda: _members(broker, "G0") == len(clients))
    await broker.until(lambda: broker.controller.scheduler.is_idle)
    monkeypatch.setattr(fair_scheduler, "DEFERRED_WRITES_MAX", 10)
    writes = counted(monkeypatch, ClientConnection, "_flush")
    clients[0].send(ask(RequestCode.UNREGISTER_CLIENT, clientID="c", consumerGroup="G0"))
    most = await most_of_a_turn(writes, lambda: writes[0] >= len(clients))
    assert most <= 10 + 1  # and the answer to the client that leaves
    for client in clients[1:]:
        client.notices += [await client.receive() for _ in range(2 - len(client.notices))]


@on_broker
async def test_clients_closed_together_are_closed_in_one_piece_of_work_a_few_per_turn(
    broker, monkeypatch
):
    clients = [await broker.connect() for _ in range(60)]
    for client in clients:
        client.send(heartbeat(5))
    await broker.until(lambda: _members(broker, "G4") == len(clients))
    await broker.until(lambda: broker.controller.scheduler.is_idle)
    asyncio.get_running_loop().stand_still()
    slow_down(monkeypatch, ConsumerManager, "unregister")
    monkeypatch.setattr(fair_scheduler, "DEFERRED_WRITES_MAX", 10)
    lost = counted(monkeypatch, ClientConnection, "connection_lost")
    in_line = broker.controller.scheduler._queue
    longest_line = [0]

    def all_gone():
        longest_line[0] = max(longest_line[0], len(in_line))
        return _members(broker, "G4") == 0

    for connection in tuple(broker.controller.server._connections):
        connection.close("enough")
    assert await most_of_a_turn(lost, all_gone) <= 10
    assert lost[0] == len(clients)
    # an unregistration of several turns waits for few others, however many clients leave
    assert longest_line[0] <= 3


@pytest.mark.parametrize("form", [SerializeType.JSON, SerializeType.ROCKETMQ])
@on_broker
async def test_answers_to_the_sends_of_a_read_are_part_of_the_turn(broker, form, monkeypatch):
    client = await broker.connect()
    await client.put("first", "second")
    asyncio.get_running_loop().stand_still()
    slow_down(monkeypatch, ClientConnection, "_dispatch_frame", seconds=0.0001)
    slow_down(monkeypatch, ResponseTemplate, "send", seconds=0.0001)
    slow_down(monkeypatch, FastSend, "process")  # a batch of 64 requests and answers
    slow_down(monkeypatch, ResponseTemplate, "send_all")
    count = 2_000
    sends = (send_request("x", opaque=number, serialize_type=form) for number in range(count))
    client.send(b"".join(each.encode() for each in sends))

    async def answers():
        return [(await client.receive()).opaque for _ in range(count)]

    longest, whole, opaques = await longest_turn(answers())
    assert sorted(opaques) == list(range(count))
    assert whole > 2 * TURN_SECONDS
    assert longest <= TURN_AND_STEP + STEP_SECONDS


@on_broker
async def test_counters_of_many_topics_are_sampled_and_removed_in_steps(broker, monkeypatch):
    broker.make_topic("T")
    processors = broker.controller.processors
    for number in range(300):
        processors.stats.record_put(f"U{number}", 1, 1)
        processors.stats.record_get(f"U{number}", "G", 1, 1, 0)
    monkeypatch.setattr("rocketpoll.broker.state.broker_stats._KEYS_PER_STEP", 4)
    client = await broker.connect()
    asyncio.get_running_loop().stand_still()
    slow_down(monkeypatch, broker_stats.Sum, "add")
    day = processors.stats._day

    async def carried():
        processors.sample_stats()
        await broker.until(lambda: day.total(("topic put", "U299"))[0].calls)

    longest, whole, _ = await longest_turn(carried())
    assert whole > 3 * TURN_SECONDS
    assert longest <= TURN_AND_STEP + 4 * STEP_SECONDS
    answer = await client.call(ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="G"))
    assert answer.code == 0
    assert not day.total(("group get", "U299@G"))[0].calls


def _members(broker, group):
    found = broker.controller.processors.consumers.group(group)
    return len(found.clients) if found is not None else 0


@on_broker(mappedFileSizeCommitLog=16 << 20)
async def test_reput_of_a_backlog_yields_between_loop_turns(broker, monkeypatch):
    client = await broker.connect()
    reput, store, controller = (
        components_of(broker.store).reput,
        broker.store,
        broker.controller,
    )
    for name in ("RUN_RECORDS_MAX", "ONE_BY_ONE_MAX"):
        monkeypatch.setattr(f"rocketpoll.broker.store.dispatch.reput.{name}", 200)
    with monkeypatch.context() as nobody_is_told:
        nobody_is_told.setattr(controller, "_schedule_reput", lambda: None)
        for _ in range(10):
            await client.call(batch_request(*range(1_100)))
    asyncio.get_running_loop().stand_still()
    slow_down(monkeypatch, reput, "_run_once")
    controller._schedule_reput()

    async def carried():
        await broker.until(lambda: store.queue_offsets("T", 0).next == 11_000)

    longest, whole, _ = await longest_turn(carried())
    assert whole > 2 * TURN_SECONDS
    assert longest <= TURN_AND_STEP


@on_broker
async def test_sent_message_is_visible_in_the_next_turn(broker):
    client = await broker.connect()
    await client.put("first")
    loop, turn = asyncio.get_running_loop(), broker.controller.scheduler
    loop.stand_still()
    is_over = False

    def endless():
        while not is_over:
            loop.move(STEP_SECONDS)
            yield None

    def use_up(until):
        loop.move(max(until - loop.time(), 0) + STEP_SECONDS)
        return True

    def is_visible():
        return broker.store.queue_offsets("T", 0).next == 2

    for _ in range(40):
        turn.run_steps(endless())
    written = broker.store.state().written_offset
    sent, waits = asyncio.ensure_future(client.put("second")), 0
    while not is_visible():
        turn.run(use_up)
        await asyncio.sleep(0)
        waits += broker.store.state().written_offset > written and not is_visible()
    is_over = True
    assert waits <= 2
    await sent
