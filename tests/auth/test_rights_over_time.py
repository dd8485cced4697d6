"""Rights change over time: waiting requests are checked again, and sinks belong to their users."""

import asyncio
import dataclasses
import struct

import pytest
from support.brokers.access import WITH_USERS, Users, signed
from support.brokers.every_request import (
    DENIED,
    GROUP,
    REQUESTS,
    SINK,
    TOPIC,
    Names,
)
from support.brokers.in_process import tell
from support.clients.remoting_clients import pull_request, send_request
from support.suite.coroutine_tests import run_by

from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.bodies.clients import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from rmq_spark.wire.bodies.operators import QueryCorrectionOffsetBody
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.message.record import StoredMessage, encode_record
from rmq_spark.wire.message.record_layout import RECORD_BYTES_MIN
from rmq_spark.wire.remoting.command import RemotingCommand

EVERYTHING = "Topic:* All", "Group:* All"
NAMES = Names()


def play(story, root):
    """Run a scenario with a broker and the users root, alice and bob; alice may do everything."""

    async def whole(broker):
        users = Users(broker.controller)
        for user in ("alice", "bob"):
            users.grant(user, *EVERYTHING)
        broker.make_topic(TOPIC)
        await story(broker, users)

    tell(whole, root, **WITH_USERS)


on_broker_with_users = run_by(play, given=2)


async def ask(client, user, code, **fields):
    """Return the response to a request of `every_request`; some of its fields may be replaced."""
    request = REQUESTS[code].build(NAMES)
    changed = {**request.ext_fields, **{name: str(value) for name, value in fields.items()}}
    return await client.call(signed(request._replace(ext_fields=changed), user))


async def connect(broker, user):
    """Return a client and the extensions it has negotiated."""
    client = await broker.connect()
    answer = await ask(client, user, RequestCode.EXTENSIONS)
    assert answer.code == 0, answer.remark
    header = HEADERS[RequestCode.EXTENSIONS].response.decode(answer.ext_fields)
    return client, header.extensions


@on_broker_with_users
async def test_held_pull_is_refused_at_its_wakeup_after_its_user_was_deleted(broker, users):
    client, other = await broker.connect(), await broker.connect()
    client.send(signed(pull_request(0, TOPIC, suspend_ms=20_000), "alice"))
    await broker.held(1)
    users.delete("alice")
    sent = await other.call(signed(send_request("news", TOPIC), "bob"))
    assert sent.code == 0, sent.remark
    answer = await client.receive()
    assert (answer.code, bytes(answer.body)) == (DENIED, b"")


@pytest.mark.parametrize("is_made_again", [False, True])
@on_broker_with_users
async def test_held_pull_is_refused_at_its_wakeup_after_a_password_change(
    broker, users, is_made_again
):
    client, other = await broker.connect(), await broker.connect()
    client.send(signed(pull_request(0, TOPIC, suspend_ms=20_000), "alice"))
    await broker.held(1)
    if is_made_again:
        users.delete("alice")
    users.grant("alice", *EVERYTHING, password="another one")
    sent = await other.call(signed(send_request("news", TOPIC), "bob"))
    assert sent.code == 0, sent.remark
    answer = await client.receive()
    assert (answer.code, bytes(answer.body)) == (DENIED, b"")
    again = signed(pull_request(0, TOPIC), "alice", "another one")
    assert (await client.call(again)).code == 0


def test_delayed_messages_are_hidden_from_a_user_who_may_not_consume_every_topic(tmp_path):
    """Delayed messages of all topics wait in one topic."""
    waiting = Names(topic="SCHEDULE_TOPIC_XXXX")

    async def story(broker, users):
        client = await broker.connect()
        delayed = send_request("secret", TOPIC, properties={"DELAY": "18", "KEYS": "k"})
        msg_id = (await client.call(signed(delayed, "alice"))).ext_fields["msgId"]
        found = dataclasses.replace(waiting, position=int(msg_id[16:], 16), msg_id=msg_id)
        requests = (
            pull_request(0, waiting.topic, queue_id=17),
            REQUESTS[RequestCode.QUERY_MESSAGE].build(found),
            REQUESTS[RequestCode.VIEW_MESSAGE_BY_ID].build(found),
            REQUESTS[RequestCode.CONSUMER_SEND_MSG_BACK].build(found),
        )
        reader = await broker.connect()
        users.grant("bob", *EVERYTHING, denied=[f"Topic:{TOPIC} Sub Get"])
        for request in requests:
            answer = await reader.call(signed(request, "bob"))
            assert (answer.code, b"secret" in answer.body) in ((DENIED, False), (1, False))
        users.grant("bob", *EVERYTHING)
        for request in requests:
            assert (await reader.call(signed(request, "bob"))).code == 0, request.code

    play(story, tmp_path)


def looks_like_a_record(topic, position, properties_bytes):
    """Return the head of a record that takes the bytes after it in the log for its properties."""
    message = StoredMessage(
        topic=topic, body=b"x", queue_id=0, queue_offset=0, physical_offset=position
    )
    record = encode_record(message)
    total, properties = len(record) + properties_bytes, properties_bytes
    return struct.pack(">i", total) + record[4:-2] + struct.pack(">H", properties)


@pytest.mark.parametrize(
    "code", [RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.CONSUMER_SEND_MSG_BACK]
)
@on_broker_with_users
async def test_body_with_the_form_of_a_record_does_not_show_the_messages_of_others(
    broker, users, code
):
    """The body is a record of its sender that claims the next message as its properties."""
    client, other = await broker.connect(), await broker.connect()
    broker.make_topic("own")
    users.grant("bob", "Topic:own All", f"Group:{GROUP} All")
    place = broker.store.state().written_offset
    inner = place + RECORD_BYTES_MIN - 3  # after the head, before topic and properties
    body = looks_like_a_record("own", inner, 200)
    sent = await client.call(signed(send_request(body, "own"), "bob"))
    assert int(sent.ext_fields["msgId"][16:], 16) == place
    secret = await other.call(signed(send_request("secret " * 20, TOPIC), "alice"))
    assert secret.code == 0
    shown = broker.store.record_at(inner)
    assert shown is not None
    assert b"secret" in bytes(shown)
    fields = {"offset": str(inner), "group": GROUP, "delayLevel": "1"}
    request = RemotingCommand(code, ext_fields=fields)
    answer = await client.call(signed(request, "bob"))
    assert (answer.code, bytes(answer.body)) == (1, b"")
    request = RemotingCommand(code, ext_fields={**fields, "offset": str(place)})
    assert (await client.call(signed(request, "bob"))).code == 0


@on_broker_with_users
async def test_consumer_is_not_given_a_message_that_it_may_no_longer_consume(broker, users):
    member, operator = await broker.connect(), await broker.connect()
    data = HeartbeatData(client_id="member", consumer_data_set=(ConsumerData(group_name=GROUP),))
    heartbeat = RemotingCommand(RequestCode.HEART_BEAT, body=encode_body(data))
    assert (await member.call(signed(heartbeat, "alice"))).code == 0
    sent = await operator.call(signed(send_request("secret", TOPIC), "root"))
    fields = {"consumerGroup": GROUP, "clientId": "member", "msgId": sent.ext_fields["msgId"]}
    request = RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext_fields=fields)
    users.delete("alice")
    answer = await operator.call(signed(request, "root"))
    assert (answer.code, "member" in answer.remark) == (DENIED, True)


def test_correction_offsets_leave_out_groups_that_the_user_may_not_see(tmp_path):
    code = RequestCode.QUERY_CORRECTION_OFFSET

    async def story(broker, users):
        client, other = await broker.connect(), await broker.connect()
        committed = await ask(
            other, "bob", RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="hidden", commitOffset=0
        )
        assert committed.code == 0, committed.remark
        fields = {"topic": TOPIC, "compareGroup": GROUP, "filterGroups": ""}
        for rights, count in ((EVERYTHING, 1), ((f"Topic:{TOPIC} All", f"Group:{GROUP} All"), 0)):
            users.grant("alice", *rights)
            answer = await client.call(signed(RemotingCommand(code, ext_fields=fields), "alice"))
            offsets = decode_body(QueryCorrectionOffsetBody, answer.body).correction_offsets
            assert len(offsets) == count

    play(story, tmp_path)


def test_deleted_user_and_taken_right_do_not_come_back_with_the_backup_of_a_damaged_file(tmp_path):
    async def first(broker, users):
        root = await broker.connect()
        delete = RemotingCommand(RequestCode.AUTH_DELETE_USER, ext_fields={"username": "alice"})
        assert (await root.call(signed(delete, "root"))).code == 0
        take = {"subject": "User:bob", "resource": "Topic:*"}
        request = RemotingCommand(RequestCode.AUTH_DELETE_ACL, ext_fields=take)
        assert (await root.call(signed(request, "root"))).code == 0

    async def second(broker):
        client = await broker.connect()
        answer = await client.call(signed(send_request("x", TOPIC), "alice"))
        assert (answer.code, answer.remark) == (DENIED, "User:alice is not found.")
        other = await broker.connect()
        answer = await other.call(signed(send_request("x", TOPIC), "bob"))
        assert (answer.code, "no permission" in answer.remark) == (DENIED, True)

    play(first, tmp_path)
    files = [tmp_path / "config" / name for name in ("users.json", "acls.json")]
    for file in files:
        assert file.exists()
        file.write_bytes(b"damaged")
    tell(second, tmp_path, **WITH_USERS)


@on_broker_with_users
async def test_send_that_waited_for_its_topic_is_refused_once_its_user_lost_the_right(
    broker, users
):
    saves = []
    pending = broker.controller.processors.pending_sends
    save, pending._run_in_thread = pending._run_in_thread, lambda *job: saves.append(job)
    client = await broker.connect()
    client.send(signed(send_request("x", "created-by-it"), "alice"))
    await broker.until(lambda: pending.has("created-by-it"))
    users.grant("alice", "Topic:other Pub")
    save(*saves.pop())
    assert (await client.receive()).code == DENIED
    assert broker.store.queue_offsets("created-by-it", 0).next == 0


@on_broker_with_users
async def test_batch_is_not_committed_once_its_user_lost_the_right_to_send(broker, users):
    client, _ = await connect(broker, "alice")
    assert (await ask(client, "alice", RequestCode.STAGE_CHUNK, sink=SINK)).code == 0
    users.grant("alice", "Topic:other Pub")
    answer = await ask(client, "alice", RequestCode.COMMIT_BATCH)
    assert (answer.code, "no permission" in answer.remark) == (DENIED, True)
    assert broker.store.queue_offsets(TOPIC, 0).next == 0
    users.grant("alice", f"Topic:{TOPIC} Pub")
    assert (await ask(client, "alice", RequestCode.COMMIT_BATCH)).code == 0
    assert broker.store.queue_offsets(TOPIC, 0).next == 1


OF_SINKS = (
    RequestCode.STAGE_CHUNK,
    RequestCode.COMMIT_BATCH,
    RequestCode.ABORT_BATCH,
    RequestCode.LAST_BATCH,
)


@on_broker_with_users
async def test_sink_belongs_to_its_first_user_also_after_commits(broker, users):
    alice, _ = await connect(broker, "alice")
    bob, _ = await connect(broker, "bob")
    root, _ = await connect(broker, "root")
    assert (await ask(alice, "alice", RequestCode.STAGE_CHUNK, sink=SINK)).code == 0
    for commit in (RequestCode.COMMIT_BATCH, None):
        for code in OF_SINKS:
            answer = await ask(bob, "bob", code, sink=SINK)
            assert answer.code == DENIED, code
            assert "alice" not in answer.remark
        if commit is not None:
            assert (await ask(alice, "alice", commit)).code == 0
    assert (await ask(root, "root", RequestCode.LAST_BATCH)).code == 0
    assert (await ask(root, "root", RequestCode.FORGET_SINK)).code == 0
    assert (await ask(bob, "bob", RequestCode.STAGE_CHUNK, sink=SINK)).code == 0
    assert (await ask(alice, "alice", RequestCode.COMMIT_BATCH)).code == DENIED


def test_sink_keeps_its_user_over_a_restart(tmp_path):
    async def first(broker, _):
        alice, _ = await connect(broker, "alice")
        assert (await ask(alice, "alice", RequestCode.STAGE_CHUNK, sink=SINK)).code == 0
        assert (await ask(alice, "alice", RequestCode.COMMIT_BATCH)).code == 0

    async def second(broker, _):
        bob, _ = await connect(broker, "bob")
        for code in OF_SINKS:
            assert (await ask(bob, "bob", code, sink=SINK)).code == DENIED
        alice, _ = await connect(broker, "alice")
        assert (await ask(alice, "alice", RequestCode.LAST_BATCH)).code == 0

    play(first, tmp_path)
    play(second, tmp_path)


@on_broker_with_users
async def test_log_files_are_named_only_to_users_who_may_consume_every_topic(broker, users):
    pull = RequestCode.PULL_PLACES
    client, agreed = await connect(broker, "alice")
    assert Extension.READ_FILES in agreed
    assert (await ask(client, "alice", pull)).code != DENIED
    for rights, denied in (
        ((f"Topic:{TOPIC} Sub", f"Group:{GROUP} Sub"), ()),
        (("Topic:* Sub", f"Group:{GROUP} Sub"), ("Topic:payroll Sub",)),
        (("Topic:o* Sub", f"Group:{GROUP} Sub"), ()),
    ):
        users.grant("alice", *rights, denied=denied)
        assert (await ask(client, "alice", pull)).code == DENIED
        assert (await ask(client, "alice", RequestCode.PULL_CHUNK)).code != DENIED
        _, agreed = await connect(broker, "alice")
        assert agreed == frozenset(Extension) - {Extension.READ_FILES}


@on_broker_with_users
async def test_held_pull_of_places_is_refused_once_its_user_may_not_consume_every_topic(
    broker, users
):
    client, _ = await connect(broker, "alice")
    pull = pull_request(0, TOPIC, group=GROUP, code=RequestCode.PULL_PLACES, suspend_ms=20_000)
    client.send(signed(pull, "alice"))
    await broker.held(1)
    users.grant("alice", f"Topic:{TOPIC} All", f"Group:{GROUP} All")
    other = await broker.connect()
    assert (await other.call(signed(send_request("news", TOPIC), "bob"))).code == 0
    assert (await client.receive()).code == DENIED


def test_reply_reaches_its_producer_and_the_topic_of_replies_without_a_right_to_send(tmp_path):
    replies = "DefaultCluster_REPLY_TOPIC"

    async def reply(broker, topic):
        producer, consumer = await broker.connect(), await broker.connect()
        data = HeartbeatData(
            client_id="the producer", producer_data_set=(ProducerData(group_name="P"),)
        )
        heartbeat = RemotingCommand(RequestCode.HEART_BEAT, body=encode_body(data))
        assert (await producer.call(signed(heartbeat, "alice"))).code == 0
        request = send_request(
            "re",
            topic,
            code=RequestCode.SEND_REPLY_MESSAGE_V2,
            properties={"REPLY_TO_CLIENT": "the producer"},
        )
        waiting = asyncio.ensure_future(consumer.call(signed(request, "bob")))
        if topic == replies:
            pushed = await producer.receive()
            assert (pushed.code, bytes(pushed.body)) == (
                RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
                b"re",
            )
            producer.send(pushed.respond(0))
        return (await waiting).code

    async def story(broker, users):
        users.grant("bob", f"Topic:{TOPIC} Sub")
        assert await reply(broker, replies) == 0
        assert broker.store.queue_offsets(replies, 0).next == 1
        assert await reply(broker, TOPIC) == DENIED
        assert broker.store.queue_offsets(TOPIC, 0).next == 0

    play(story, tmp_path)


@on_broker_with_users
async def test_heartbeat_of_many_topics_is_checked_before_it_registers_anything(broker, users):
    """A body of this size is checked in steps, between which other requests are served."""
    topics = [f"orders-{number}" for number in range(400)]
    subscriptions = tuple(SubscriptionData(topic=topic) for topic in topics)
    group = ConsumerData(group_name=GROUP, subscription_data_set=subscriptions)
    body = encode_body(HeartbeatData(client_id="c", consumer_data_set=(group,)))
    request = RemotingCommand(RequestCode.HEART_BEAT, body=body)
    assert len(body) > 16_384
    client = await broker.connect()
    users.grant(
        "alice", "Topic:orders-* Sub", f"Group:{GROUP} Sub", denied=["Topic:orders-399 Sub"]
    )
    answer = await client.call(signed(request, "alice"))
    assert (answer.code, "orders-399" in answer.remark) == (DENIED, True)
    assert broker.controller.processors.consumers.group(GROUP) is None
    users.grant("alice", "Topic:orders-* Sub", f"Group:{GROUP} Sub")
    assert (await client.call(signed(request, "alice"))).code == 0
    members = broker.controller.processors.consumers.group(GROUP)
    assert members.subscriptions.keys() == set(topics)


def producer(client_id):
    data = HeartbeatData(client_id=client_id, producer_data_set=(ProducerData(group_name="P"),))
    return RemotingCommand(RequestCode.HEART_BEAT, body=encode_body(data))


@on_broker_with_users
async def test_client_id_shared_by_two_users_gets_no_replies_and_blocks_no_consumer(broker, users):
    victim, thief = await broker.connect(), await broker.connect()
    assert (await thief.call(signed(producer("its id"), "bob"))).code == 0
    data = HeartbeatData(
        client_id="its id",
        producer_data_set=(ProducerData(group_name="P"),),
        consumer_data_set=(ConsumerData(group_name=GROUP),),
    )
    heartbeat = RemotingCommand(RequestCode.HEART_BEAT, body=encode_body(data))
    assert (await victim.call(signed(heartbeat, "alice"))).code == 0
    members = broker.controller.processors.consumers.group(GROUP)
    assert tuple(members.client_ids) == ("its id",)
    find = broker.controller.processors.producers.find
    assert find("its id") is None
    again = await broker.connect()
    assert (await again.call(signed(producer("its id"), "alice"))).code == 0
    assert find("its id") is None
    thief.close()
    await broker.until(lambda: find("its id") is not None)
    assert find("its id").connection.identity.name == "alice"
    for client in (victim, again):
        client.close()
    await broker.until(lambda: find("its id") is None)


@on_broker_with_users
async def test_reply_does_not_reach_a_producer_whose_user_was_deleted(broker, users):
    requester, replier = await broker.connect(), await broker.connect()
    assert (await requester.call(signed(producer("its id"), "alice"))).code == 0
    users.delete("alice")
    request = send_request(
        "re",
        "DefaultCluster_REPLY_TOPIC",
        code=RequestCode.SEND_REPLY_MESSAGE_V2,
        properties={"REPLY_TO_CLIENT": "its id"},
    )
    answer = await asyncio.wait_for(replier.call(signed(request, "bob")), 5)
    assert (answer.code, "not found" in answer.remark) == (1, True)


@on_broker_with_users
async def test_relayed_request_to_a_consumer_has_no_operator_credentials(broker, users):
    member, operator = await broker.connect(), await broker.connect()
    group = ConsumerData(group_name=GROUP)
    data = HeartbeatData(client_id="member", consumer_data_set=(group,))
    heartbeat = RemotingCommand(RequestCode.HEART_BEAT, body=encode_body(data))
    assert (await member.call(signed(heartbeat, "alice"))).code == 0
    fields = {"consumerGroup": GROUP, "clientId": "member", "jstackEnable": "false"}
    request = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, ext_fields=fields)
    waiting = asyncio.ensure_future(operator.call(signed(request, "root")))
    while (passed_on := await member.receive()).code != request.code:
        pass  # members of a group are notified of each other first
    assert passed_on.ext_fields == fields
    member.send(passed_on.respond(0, body=b"{}"))
    assert (await waiting).code == 0
