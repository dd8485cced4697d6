"""Transactions of a whole broker: half messages, their ends, and checks of open transactions."""

import asyncio
import random
import shutil

import pytest
from support.brokers.access import WITH_USERS, Users, signed
from support.brokers.in_process import on_broker, tell
from support.clients.remoting_clients import batch_request, pull_request, pulled, send_request
from support.disks.faulty_disk import (
    FaultyDisk,
    ManualClock,
    RecordingDisk,
    power_loss_states,
)
from support.suite.selection import count as selected_count

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import HeartbeatData, ProducerData
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.headers.members import EndTransactionRequestHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.message.message_id import decode_offset_message_id
from rmq_spark.wire.message.record import decode_record
from rmq_spark.wire.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.store.files.disk import LocalDisk

pytestmark = pytest.mark.usefixtures("on_each_loop")

STATES = selected_count("ROCKETPOLL_COMMIT_STATES", 5, wide=200)
BORN_MS = 1_600_000_000_000
"""Born timestamp of the messages of `send_request`."""
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
HALF = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "0A0B", "TAGS": "blue", "place": "here"}


class Clock(ManualClock):
    """A time of day that begins when the messages are created."""

    def __init__(self):
        super().__init__()
        self.now_ms = BORN_MS + 1


def pass_time(broker, clock, seconds):
    clock.now_ms += round(seconds * 1_000)
    broker.move(seconds)


def half_request(body="half", **more):
    properties = {**HALF, **more.pop("properties", {})}
    kept = {name: text for name, text in properties.items() if text is not None}
    return send_request(body, properties=kept, sys_flag=4, **more)


def end_request(answer, end=COMMIT, **changes):
    """Return the request that ends the half message of an answer, or of a check's header."""
    fields = answer.ext_fields
    if "msgId" in fields and "tranStateTableOffset" not in fields:
        _, position = decode_offset_message_id(fields["msgId"])
        place = {
            "tran_state_table_offset": int(fields["queueOffset"]),
            "commit_log_offset": position,
        }
    else:
        place = {
            "tran_state_table_offset": int(fields["tranStateTableOffset"]),
            "commit_log_offset": int(fields["commitLogOffset"]),
            "from_transaction_check": True,
        }
    header = EndTransactionRequestHeader(
        **{"producer_group": "P", "commit_or_rollback": end, "msg_id": "0A0B", **place, **changes}
    )
    code = RequestCode.END_TRANSACTION
    return RemotingCommand(code, opaque=1, ext_fields=HEADERS[code].request.encode(header))


async def join(client, group="P"):
    body = encode_body(
        HeartbeatData(client_id="client", producer_data_set=(ProducerData(group_name=group),))
    )
    assert (await client.call(RemotingCommand(RequestCode.HEART_BEAT, body=body))).code == 0


async def next_check(client):
    """Return the next CHECK_TRANSACTION_STATE, with the message in it."""
    notice = client.notices.pop(0) if client.notices else await client.receive()
    assert notice.code == RequestCode.CHECK_TRANSACTION_STATE
    assert notice.is_one_way
    return notice, decode_record(notice.body)


def end_of(broker, topic, queue_id=0):
    return broker.store.queue_offsets(topic, queue_id).next


def test_committed_half_message_is_delivered_as_it_was_sent(tmp_path):
    async def story(broker):
        broker.make_topic("T")
        client = await broker.connect()
        answer = await client.call(half_request(queue_id=2))
        assert answer.code == 0, answer.remark
        assert answer.ext_fields["queueId"] == "2"
        assert answer.ext_fields["queueOffset"] == "0"
        assert answer.ext_fields["transactionId"] == "0A0B"
        assert (await client.pull(topic="T", queue_id=2)).bodies == []
        assert (await client.call(end_request(answer))).code == 0
        _, position = decode_offset_message_id(answer.ext_fields["msgId"])
        (message,) = (await client.pull(topic="T", queue_id=2)).messages
        assert message.body == b"half"
        assert message.born_timestamp == BORN_MS
        assert message.prepared_transaction_offset == position
        assert message.sys_flag & 0xC == COMMIT
        named = message.properties
        assert {name: named[name] for name in ("PGROUP", "UNIQ_KEY", "TAGS", "place")} == {
            name: text for name, text in HALF.items() if name != "TRAN_MSG"
        }
        assert not {"TRAN_MSG", "REAL_TOPIC", "REAL_QID", "WAIT"} & set(named)
        half, op = [
            pulled(await client.call(pull_request(0, topic))).messages
            for topic in (HALF_TOPIC, OP_HALF_TOPIC)
        ]
        assert half[0].sys_flag & 0xC == 0
        waiting = half[0].properties
        assert (waiting["REAL_TOPIC"], waiting["REAL_QID"]) == ("T", "2")
        assert (op[0].body, op[0].tags) == (b"0", "d")

    tell(story, tmp_path, now_ms=Clock())


def test_rolled_back_half_message_is_never_delivered_nor_checked(tmp_path):
    clock = Clock()

    async def story(broker):
        broker.make_topic("T")
        client = await broker.connect()
        await join(client)
        answer = await client.call(half_request())
        assert (await client.call(end_request(answer, ROLLBACK))).code == 0
        for _ in range(3):
            pass_time(broker, clock, 31)
            await join(client)
        assert client.notices == []
        assert (await client.pull()).bodies == []
        assert broker.controller.transactions.pending_count == 0

    tell(story, tmp_path, now_ms=clock)


@pytest.mark.parametrize("unique_id", ["0A0B", None])
def test_repeated_commit_delivers_nothing_and_ends_the_copy_that_a_check_has_stored(
    tmp_path, unique_id
):
    clock = Clock()

    async def story(broker):
        broker.make_topic("T")
        client = await broker.connect()
        await join(client)
        sent = await client.call(half_request(properties={"UNIQ_KEY": unique_id}))
        pass_time(broker, clock, 30.1)
        await join(client)
        first, _ = await next_check(client)
        pass_time(broker, clock, 30.1)
        await join(client)
        second, _ = await next_check(client)
        for place in (first, sent, second, sent):  # the first answer is late
            assert (await client.call(end_request(place))).code == 0
        for _ in range(3):
            pass_time(broker, clock, 31)
            await join(client)
        assert client.notices == []
        assert (await client.pull()).bodies == ["half"]
        assert broker.controller.transactions.pending_count == 0
        assert broker.controller.transactions.committed_total == 1
        await client.call(half_request("open"))
        await broker.until(lambda: broker.controller.transactions.pending_count == 1)

    tell(story, tmp_path, now_ms=clock)


@pytest.mark.parametrize("end", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("which", range(3))
def test_ended_half_message_with_copies_is_not_checked_again_after_a_crash(tmp_path, which, end):
    """The saved progress is older than the copies, only one of which has an op message."""
    clock, crashed = Clock(), tmp_path / "crashed"

    async def first(broker):
        broker.make_topic("T")
        client = await broker.connect()
        await join(client)
        places = [await client.call(half_request())]
        for _ in range(2):
            pass_time(broker, clock, 30.1)
            await join(client)
            places.append((await next_check(client))[0])
        assert (await client.call(end_request(places[which], end))).code == 0
        broker.controller.tables.save()
        shutil.copytree(tmp_path / "store", crashed)

    async def second(broker):
        client = await broker.connect()
        await join(client)
        for _ in range(4):
            pass_time(broker, clock, 31)
            await join(client)
        assert client.notices == []
        assert (await client.pull()).bodies == (["half"] if end == COMMIT else [])
        assert broker.controller.transactions.pending_count == 0

    tell(first, tmp_path / "store", now_ms=clock)
    for path in crashed.glob("config/consumerOffset.json*"):
        path.unlink()
    tell(second, crashed, now_ms=clock)


@pytest.mark.parametrize("place", ["first", "copy"])
@pytest.mark.parametrize("ending", ["kill", "stop"])
def test_commit_that_is_repeated_after_a_restart_delivers_nothing(tmp_path, ending, place):
    """The first process has checked the transaction; the producer answers to the second one."""
    clock, places, crashed = Clock(), {}, tmp_path / "crashed"

    async def first(broker):
        broker.make_topic("T")
        client = await broker.connect()
        await join(client)
        places["first"] = await client.call(half_request())
        pass_time(broker, clock, 30.1)
        await join(client)
        places["copy"], _ = await next_check(client)
        assert (await client.call(end_request(places["first"]))).code == 0
        broker.controller.tables.save()
        shutil.copytree(tmp_path / "store", crashed)

    async def second(broker):
        client = await broker.connect()
        await join(client)
        for each in (places[place], places["first"], places["copy"]):
            assert (await client.call(end_request(each))).code == 0
        assert await is_settled(broker, clock, client)
        assert broker.controller.transactions.committed_total == 0
        # another message with the same UNIQ_KEY, as if a program sends an object twice
        again = await client.call(half_request("again"))
        assert (await client.call(end_request(again))).code == 0
        assert (await client.pull()).bodies == ["half", "again"]

    tell(first, tmp_path / "store", now_ms=clock)
    tell(second, crashed if ending == "kill" else tmp_path / "store", now_ms=clock)


def test_commit_after_a_restart_is_delivered_again_without_an_index(tmp_path):
    places = []

    async def first(broker):
        broker.make_topic("T")
        client = await broker.connect()
        places.append(await client.call(half_request()))
        assert (await client.call(end_request(places[0]))).code == 0

    async def second(broker):
        client = await broker.connect()
        assert (await client.call(end_request(places[0]))).code == 0
        assert (await client.pull()).bodies == ["half", "half"]

    for story in (first, second):
        tell(story, tmp_path, now_ms=Clock(), messageIndexEnable=False)


def damage(root, start, end, data=None):
    """Overwrite bytes of the commit log of a stopped broker, by default with zeros."""
    (path,) = (root / "commitlog").iterdir()
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data or bytes(end - start))


@pytest.mark.parametrize("lost", ["op", "committed"])
def test_commit_that_a_crash_tears_apart_is_delivered_once(tmp_path, lost):
    """Without its op message the broker finds it in the index; an op message without it does not
    count."""
    clock, crashed, spans = Clock(), tmp_path / "crashed", {}

    async def first(broker):
        broker.make_topic("T")
        client = await broker.connect()
        await join(client)
        sent = await client.call(half_request())
        assert (await client.call(end_request(sent))).code == 0
        (committed,) = (await client.pull()).messages
        (op,) = pulled(await client.call(pull_request(0, OP_HALF_TOPIC))).messages
        spans["committed"] = committed.physical_offset + 4, op.physical_offset
        spans["op"] = op.physical_offset, broker.store.state().written_offset
        shutil.copytree(tmp_path / "store", crashed)

    async def second(broker):
        client = await broker.connect()
        await join(client)
        pass_time(broker, clock, 30.1)
        check, _ = await next_check(client)
        assert (await client.call(end_request(check))).code == 0
        assert await is_settled(broker, clock, client)

    tell(first, tmp_path / "store", now_ms=clock)
    damage(crashed, *spans[lost])
    for name in ("consumequeue", "index"):
        shutil.rmtree(crashed / name)
    tell(second, crashed, now_ms=clock)


def test_power_loss_at_any_write_delivers_each_committed_message_once(tmp_path):
    """The bodies cover several pages, of which a power loss leaves any."""
    root, into, clock = tmp_path / "run", tmp_path / "states", Clock()
    root.mkdir()
    into.mkdir()
    disk, acknowledged = RecordingDisk(LocalDisk(), root), []

    async def first(broker):
        broker.make_topic("T")
        client = await broker.connect()
        for number in range(8):
            body = f"{number} " + "x" * (number % 4 * 3_000)
            sent = await client.call(half_request(body, properties={"UNIQ_KEY": f"id{number}"}))
            acknowledged.append((len(disk.operations), body))
            assert (await client.call(end_request(sent))).code == 0

    tell(first, root, disk, now_ms=clock, flushDiskType="SYNC_FLUSH")
    dice = random.Random(5)
    begin, end = acknowledged[0][0], acknowledged[-1][0]
    for point in sorted(dice.sample(range(begin, end), STATES)):
        for state in power_loss_states(disk.log(point), dice, 3, into):
            found = []

            async def second(broker, found=found):
                broker.make_topic("T")
                client = await broker.connect()
                transactions = broker.controller.transactions
                acknowledger = broker.controller.processors.acknowledger
                for _ in range(3):
                    await join(client)
                    pass_time(broker, clock, 31)
                    await join(client)
                    await broker.until(lambda: acknowledger.queue().size == 0)
                    await join(client)
                    while client.notices:
                        check, _ = await next_check(client)
                        assert (await client.call(end_request(check))).code == 0
                await broker.until(lambda: transactions.pending_count == 0)
                found += (await client.pull()).bodies

            tell(second, state, now_ms=clock, flushDiskType="SYNC_FLUSH")
            assert {body for at, body in acknowledged if at <= point} <= set(found)
            assert len(found) == len(set(found))


@pytest.mark.parametrize("is_late", [False, True])
def test_commits_that_arrive_while_the_first_waits_for_the_disk_deliver_it_once(tmp_path, is_late):
    disk = FaultyDisk(slow="commitlog")

    async def story(broker):
        broker.make_topic("T")
        acknowledger = broker.controller.processors.acknowledger
        client = await broker.connect()
        sent = await client.call(half_request())
        disk.keep_waiting()
        for _ in range(3):
            client.send(end_request(sent))
        await broker.until(lambda: disk.is_waiting.is_set() and acknowledger.queue().size == 3)
        if is_late:
            broker.move(5.1)
        else:
            disk.let_go()
        assert {(await client.receive()).code for _ in range(3)} == {ResponseCode.SUCCESS}
        disk.let_go()
        await broker.until(lambda: broker.store.queue_offsets("T", 0).next == 1)
        assert (await client.pull()).bodies == ["half"]
        assert broker.controller.transactions.committed_total == 1

    settings = {"flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": 5_000}
    tell(story, tmp_path, disk, now_ms=Clock(), **settings)


SLOW = {"flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": 5_000}


async def is_settled(broker, clock, client):
    """Let rounds of checks pass; return whether no check was sent, and the message arrived once."""
    for _ in range(3):
        pass_time(broker, clock, 31)
        await join(client)
    await broker.until(lambda: broker.controller.transactions.pending_count == 0)
    return client.notices == [] and (await client.pull()).bodies == ["half"]


async def commit_at_a_slow_disk(broker, disk, sent, client):
    """Send a commit, and return while its message waits for the disk."""
    acknowledger = broker.controller.processors.acknowledger
    disk.keep_waiting()
    client.send(end_request(sent))
    await broker.until(lambda: disk.is_waiting.is_set() and acknowledger.queue().size == 1)


def test_commit_whose_flush_takes_longer_than_sync_flush_timeout_delivers_once(tmp_path):
    disk, clock = FaultyDisk(slow="commitlog"), Clock()

    async def story(broker):
        broker.make_topic("T")
        client = await broker.connect()
        await join(client)
        sent = await client.call(half_request())
        await commit_at_a_slow_disk(broker, disk, sent, client)
        broker.move(5.1)
        # like RocketMQ, which does not wait
        assert (await client.receive()).code == ResponseCode.SUCCESS
        pass_time(broker, clock, 31)
        await join(client)
        assert client.notices == []
        disk.let_go()
        await broker.until(lambda: end_of(broker, OP_HALF_TOPIC) == 1)
        assert await is_settled(broker, clock, client)
        assert (await client.call(end_request(sent))).code == 0
        assert await is_settled(broker, clock, client)
        assert broker.controller.transactions.committed_total == 1

    tell(story, tmp_path, disk, now_ms=clock, **SLOW)


@pytest.mark.parametrize("is_late", [False, True])
def test_commit_that_waits_for_the_disk_at_a_stop_is_delivered_once(tmp_path, is_late):
    disk, clock = FaultyDisk(slow="commitlog"), Clock()

    async def first(broker):
        broker.make_topic("T")
        client = await broker.connect()
        sent = await client.call(half_request())
        await commit_at_a_slow_disk(broker, disk, sent, client)
        wait_flushed = broker.store.wait_flushed

        def let_go_and_wait():
            disk.let_go()
            wait_flushed()

        broker.store.wait_flushed = let_go_and_wait
        if is_late:
            broker.move(5.1)
            assert (await client.receive()).code == ResponseCode.SUCCESS
        else:
            stopping = asyncio.ensure_future(broker.controller.stop())
            disk.let_go()
            await stopping

    async def second(broker):
        client = await broker.connect()
        await join(client)
        assert await is_settled(broker, clock, client)

    tell(first, tmp_path, disk, now_ms=clock, **SLOW)
    tell(second, tmp_path, now_ms=clock)


def test_half_message_with_the_properties_of_a_received_one_is_a_transaction_of_its_own(tmp_path):
    clock = Clock()
    received = {"TRAN_PREPARED_QUEUE_OFFSET": "0", "TRANSACTION_CHECK_TIMES": "15"}

    async def story(broker):
        broker.make_topic("T")
        client = await broker.connect()
        await join(client)
        assert (await client.call(end_request(await client.call(half_request("first"))))).code == 0
        await client.call(half_request("sent on", properties=received))
        pass_time(broker, clock, 30.1)
        check, message = await next_check(client)
        assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert (await client.call(end_request(check))).code == 0
        assert (await client.pull()).bodies == ["first", "sent on"]

    tell(story, tmp_path, now_ms=clock)


def test_commit_after_a_rollback_is_delivered_as_by_rocketmq(tmp_path):
    async def story(broker):
        broker.make_topic("T")
        client = await broker.connect()
        sent = await client.call(half_request())
        assert (await client.call(end_request(sent, ROLLBACK))).code == 0
        assert (await client.call(end_request(sent))).code == 0
        assert (await client.pull()).bodies == ["half"]
        assert (await client.call(end_request(sent, ROLLBACK))).code == 0
        assert (await client.call(end_request(sent))).code == 0
        assert (await client.pull()).bodies == ["half"]

    tell(story, tmp_path, now_ms=Clock())


def test_one_way_end_commits_a_half_message_without_an_answer(tmp_path):
    async def story(broker):
        broker.make_topic("T")
        client = await broker.connect()
        answer = await client.call(half_request())
        client.send(end_request(answer)._replace(flag=2))
        await broker.until(lambda: end_of(broker, "T"))
        assert (await client.pull()).bodies == ["half"]

    tell(story, tmp_path, now_ms=Clock())


def test_half_message_without_an_end_is_checked_until_its_producer_commits(tmp_path):
    clock = Clock()

    async def story(broker):
        broker.make_topic("T")
        client = await broker.connect()
        await join(client)
        sent = await client.call(half_request(queue_id=1))
        pass_time(broker, clock, 30.1)
        first, message = await next_check(client)
        assert (message.topic, message.queue_id, message.body) == ("T", 1, b"half")
        assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert first.ext_fields["transactionId"] == "0A0B"
        assert int(first.ext_fields["tranStateTableOffset"]) == 1
        assert (await client.call(end_request(first, UNKNOWN))).code == 0
        pass_time(broker, clock, 30.1)
        second, message = await next_check(client)
        assert message.properties["TRANSACTION_CHECK_TIMES"] == "2"
        assert (await client.call(end_request(second))).code == 0
        assert (await client.pull(queue_id=1)).bodies == ["half"]
        pass_time(broker, clock, 30.1)
        await join(client)
        pass_time(broker, clock, 30.1)
        await join(client)
        assert client.notices == []
        assert (await client.pull(queue_id=1)).bodies == ["half"]
        assert sent.ext_fields["queueOffset"] == "0"

    tell(story, tmp_path, now_ms=clock)


def test_half_message_younger_than_transaction_timeout_is_not_checked(tmp_path):
    clock = Clock()

    async def story(broker):
        broker.make_topic("T")
        client = await broker.connect()
        await join(client)
        pass_time(broker, clock, 29)
        clock.now_ms = BORN_MS + 29_000 - 25_000  # the message is 4 s old in the round
        await client.call(half_request())
        pass_time(broker, clock, 1.5)
        await join(client)
        assert client.notices == []
        pass_time(broker, clock, 30)
        await next_check(client)

    tell(story, tmp_path, now_ms=clock)


def test_half_message_that_is_checked_too_often_is_moved_and_can_be_resumed(tmp_path):
    clock = Clock()

    async def story(broker):
        broker.make_topic("T")
        client = await broker.connect()
        await join(client)
        await client.call(half_request())
        for times in (1, 2):
            pass_time(broker, clock, 30.1)
            _, message = await next_check(client)
            assert message.properties["TRANSACTION_CHECK_TIMES"] == str(times)
        pass_time(broker, clock, 30.1)
        await broker.until(lambda: broker.controller.tables.topics.get(CHECK_MAX_TIME_TOPIC))
        broker.controller.tables.topics.save()
        pass_time(broker, clock, 1.1)
        await broker.until(lambda: end_of(broker, CHECK_MAX_TIME_TOPIC))
        assert broker.controller.transactions.given_up_total == 1
        assert broker.controller.transactions.pending_count == 0
        (parked,) = pulled(await client.call(pull_request(0, CHECK_MAX_TIME_TOPIC))).messages
        resumed = RemotingCommand(
            RequestCode.RESUME_CHECK_HALF_MESSAGE,
            opaque=1,
            ext_fields={"topic": CHECK_MAX_TIME_TOPIC, "msgId": parked.offset_message_id},
        )
        await join(client)
        assert (await client.call(resumed)).code == 0
        pass_time(broker, clock, 30.1)
        check, message = await next_check(client)
        assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert (await client.call(end_request(check))).code == 0
        assert (await client.pull()).bodies == ["half"]

    tell(story, tmp_path, now_ms=clock, transactionCheckMax=2)


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"producer_group": "other"}, "The producer group wrong"),
        ({"tran_state_table_offset": 7}, "The transaction state table offset wrong"),
        ({"commit_log_offset": 3}, "Find prepared transaction message failed"),
        ({"commit_or_rollback": 4}, "commitOrRollback is 4"),
    ],
)
def test_end_that_does_not_fit_its_half_message_is_refused(tmp_path, changes, remark):
    async def story(broker):
        broker.make_topic("T")
        client = await broker.connect()
        answer = await client.call(half_request())
        refusal = await client.call(end_request(answer, **changes))
        assert refusal.code == ResponseCode.SYSTEM_ERROR
        assert remark in refusal.remark
        assert (await client.pull()).bodies == []

    tell(story, tmp_path, now_ms=Clock())


@on_broker
async def test_message_that_is_no_half_message_cannot_be_committed(broker):
    broker.make_topic("T")
    client = await broker.connect()
    answer = await client.put("plain", properties={"PGROUP": "P"})
    refusal = await client.call(end_request(answer))
    assert "Find prepared transaction message failed" in refusal.remark
    assert (await client.pull()).bodies == ["plain"]


@pytest.mark.parametrize(
    ("request_", "code", "remark"),
    [
        (batch_request("a", "b", properties=HALF), 13, "a batch cannot be part of a transaction"),
        (half_request(properties={"DELAY": "3"}), 13, "cannot be delayed"),
        (half_request(properties={"TIMER_DELAY_SEC": "3"}), 13, "cannot be delayed"),
        (half_request(b""), 13, "the message body is empty"),
    ],
    ids=["batch", "delay", "timer", "empty"],
)
@on_broker
async def test_half_message_that_no_transaction_can_have_is_refused(broker, request_, code, remark):
    broker.make_topic("T")
    client = await broker.connect()
    refusal = await client.call(request_)
    assert refusal.code == code
    assert remark in refusal.remark


@on_broker(rejectTransactionMessage=True)
async def test_reject_transaction_message_refuses_half_messages(broker):
    broker.make_topic("T")
    refusal = await (await broker.connect()).call(half_request())
    assert refusal.code == ResponseCode.NO_PERMISSION


@on_broker
async def test_half_message_of_a_deleted_topic_cannot_be_committed(broker):
    broker.make_topic("T")
    client = await broker.connect()
    answer = await client.call(half_request())
    await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": "T"})
    broker.make_topic("T")
    refusal = await client.call(end_request(answer))
    assert refusal.code == ResponseCode.TOPIC_NOT_EXIST
    assert "was deleted" in refusal.remark
    assert (await client.pull()).bodies == []


def test_pending_half_messages_survive_a_restart_and_their_ends_count(tmp_path):
    clock = Clock()

    async def first(broker):
        broker.make_topic("T")
        client = await broker.connect()
        await join(client)
        await client.call(half_request("ended"))
        pass_time(broker, clock, 30.1)  # it is stored again, and progress is saved
        check, _ = await next_check(client)
        await client.call(half_request("open"))
        assert (await client.call(end_request(check))).code == 0

    async def second(broker):
        client = await broker.connect()
        await join(client)
        assert (await client.pull()).bodies == ["ended"]
        pass_time(broker, clock, 30.1)
        check, message = await next_check(client)
        assert message.body == b"open"
        assert (await client.call(end_request(check))).code == 0
        pass_time(broker, clock, 30.1)
        await join(client)
        assert (await client.pull()).bodies == ["ended", "open"]
        assert client.notices == []

    tell(first, tmp_path, now_ms=clock, flushDiskType="SYNC_FLUSH")
    tell(second, tmp_path, now_ms=clock, flushDiskType="SYNC_FLUSH")


def test_checks_take_turns_among_the_clients_of_a_group(tmp_path):
    clock = Clock()

    async def story(broker):
        broker.make_topic("T")
        clients = [await broker.connect() for _ in range(2)]
        for client in clients:
            await join(client)
        for number in range(4):
            await clients[0].call(half_request(str(number)))
        pass_time(broker, clock, 30.1)
        for client in clients:
            for _ in range(2):
                await next_check(client)

    tell(story, tmp_path, now_ms=clock)


def test_user_without_a_right_to_the_topic_can_neither_end_nor_be_asked(tmp_path):
    clock = Clock()

    async def story(broker):
        broker.make_topic("T")
        broker.make_topic("own")
        users = Users(broker.controller)
        users.grant("owner", "Topic:T Pub")
        users.grant("mallory", "Topic:own Pub")
        owner, mallory = [await broker.connect() for _ in range(2)]
        for client, user in ((owner, "owner"), (mallory, "mallory")):
            body = encode_body(
                HeartbeatData(client_id=user, producer_data_set=(ProducerData(group_name="P"),))
            )
            heartbeat = RemotingCommand(RequestCode.HEART_BEAT, body=body)
            assert (await client.call(signed(heartbeat, user))).code == 0
        answers = [await owner.call(signed(half_request(str(n)), "owner")) for n in range(2)]
        assert [answer.code for answer in answers] == [0, 0]
        for topic in ("own", None):
            request = end_request(answers[0], ROLLBACK, topic=topic)
            refusal = await mallory.call(signed(request, "mallory"))
            assert refusal.remark == "Find prepared transaction message failed"
        forged = end_request(answers[0], commit_log_offset=3)
        assert (await owner.call(signed(forged, "owner"))).code == ResponseCode.SYSTEM_ERROR
        pass_time(broker, clock, 30.1)
        for _ in range(2):
            check, _ = await next_check(owner)
            assert (await owner.call(signed(end_request(check), "owner"))).code == 0
        await mallory.call(signed(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO), "mallory"))
        assert mallory.notices == []
        assert end_of(broker, "T") == 2

    tell(story, tmp_path, now_ms=clock, **WITH_USERS)


def test_owner_of_a_half_message_can_end_it_as_soon_as_it_is_acknowledged(tmp_path):
    async def story(broker):
        broker.make_topic("T")
        Users(broker.controller).grant("owner", "Topic:T Pub")
        client = await broker.connect()
        for number in range(20):
            answer = await client.call(signed(half_request(str(number)), "owner"))
            assert (await client.call(signed(end_request(answer), "owner"))).code == 0

    tell(story, tmp_path, now_ms=Clock(), flushDiskType="SYNC_FLUSH", **WITH_USERS)
