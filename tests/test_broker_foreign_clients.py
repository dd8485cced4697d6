"""Clients in other languages against a whole broker: it understands their spellings of requests.

The broker logs each refusal, because such clients often report nothing.
"""

import json

import pytest
from support.brokers.in_process import on_broker, tell
from support.clients.remoting_clients import pull_request, send_request

from rmq_spark.wire.bodies import decode_body
from rmq_spark.wire.bodies.clients import (
    ConsumeFromWhere,
    ConsumeType,
    GetConsumerListByGroupResponseBody,
    MessageModel,
)
from rmq_spark.wire.bodies.operators import ConsumerConnection
from rmq_spark.wire.codes import PullSysFlag, RequestCode, ResponseCode
from rmq_spark.wire.remoting.command import RemotingCommand

HEARTBEATS = {
    # librocketmq, the base of rocketmq-client-python, rocketmq-client-php and Node's addon
    "C++": b'{"clientID":"CLIENT","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,'
    b'"groupName":"G","messageModel":1,"subscriptionDataSet":[{"codeSet":["65"],"subString":"A",'
    b'"subVersion":"1700000000000","tagsSet":["A"],"topic":"T"}]}],"producerDataSet":[]}\n',
    # ex_rocketmq
    "Elixir": b'{"clientID":"CLIENT","consumerDataSet":[{"consumeFromWhere":'
    b'"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"G",'
    b'"messageModel":"Clustering","subscriptionDataSet":[{"classFilterMode":false,"codeSet":["65"],'
    b'"expressionType":"TAG","subString":"A","subVersion":1700000000000,"tagsSet":["A"],"topic":"T"}],'
    b'"unitMode":false}],"producerDataSet":[]}',
    # NewLife.RocketMQ
    ".NET": b'{"ClientID":"CLIENT","ConsumerDataSet":[{"GroupName":"G","ConsumeType":'
    b'"CONSUME_PASSIVELY","MessageModel":"CLUSTERING","ConsumeFromWhere":'
    b'"CONSUME_FROM_FIRST_OFFSET","SubscriptionDataSet":[{"ClassFilterMode":false,"Topic":"T",'
    b'"SubString":"A","TagsSet":["A"],"CodeSet":["65"],"SubVersion":1700000000000,'
    b'"ExpressionType":"TAG"}],"UnitMode":false}],"ProducerDataSet":[]}',
}


def json_frame(body=b"", **header):
    """Return a request whose header is spelled as given."""
    text = json.dumps(header).encode()
    length = (4 + len(text) + len(body)).to_bytes(4, "big")
    return length + len(text).to_bytes(4, "big") + text + body


@pytest.mark.parametrize("spelling", HEARTBEATS)
@on_broker
async def test_foreign_push_consumer_joins_a_group_and_receives_messages(broker, spelling):
    broker.make_topic("T")
    client, producer = await broker.connect(), await broker.connect()
    client.send(
        json_frame(
            HEARTBEATS[spelling],
            code="34",
            opaque="7",
            flag="0",
            version="401",
            language="cpp",
            extFields={},
        )
    )
    while not (answer := await client.receive()).is_response:
        assert answer.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    assert (answer.code, answer.opaque) == (0, 7), answer.remark
    listed = await producer.call(
        RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext_fields={"consumerGroup": "G"})
    )
    members = decode_body(GetConsumerListByGroupResponseBody, listed.body)
    assert members.consumer_id_list == ("CLIENT",)
    described = await producer.call(
        RemotingCommand(RequestCode.GET_CONSUMER_CONNECTION_LIST, ext_fields={"consumerGroup": "G"})
    )
    group = decode_body(ConsumerConnection, described.body)
    assert group.consume_type is ConsumeType.CONSUME_PASSIVELY
    assert group.message_model is MessageModel.CLUSTERING
    assert group.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    pull = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": int(PullSysFlag.SUSPEND),
        "commitOffset": 0,
        "suspendTimeoutMillis": 15_000,
        "subVersion": 1_700_000_000_000,
    }
    client.send(json_frame(code=11, opaque=8, flag=0, version=401, language=1, extFields=pull))
    await producer.put("other", properties={"TAGS": "B"})
    await producer.put("wanted", properties={"TAGS": "A"})
    while (pulled := await client.receive()).opaque != 8:
        assert not pulled.is_response  # a notification
    assert pulled.code == 0, pulled.remark
    assert b"wanted" in bytes(pulled.body)


UNNAMED = "unknown"
REFUSALS = {
    "a heartbeat that is no heartbeat": (
        RemotingCommand(RequestCode.HEART_BEAT, body=b'{"clientID":"me","consumerDataSet":7}'),
        ("WARNING", "HEART_BEAT", "me", "SYSTEM_ERROR"),
        "JSON body at $.consumerDataSet: needed an array, found 7",
    ),
    "a heartbeat that is no JSON": (
        RemotingCommand(RequestCode.HEART_BEAT, body=b'{"clientID":"me",'),
        ("WARNING", "HEART_BEAT", "me", "SYSTEM_ERROR"),
        "JSON body at byte 17: needed JSON",
    ),
    "a heartbeat without a body": (
        RemotingCommand(RequestCode.HEART_BEAT),
        ("WARNING", "HEART_BEAT", UNNAMED, "SYSTEM_ERROR"),
        "request 34 needs a body",
    ),
    "a heartbeat that wants no answer": (
        RemotingCommand(RequestCode.HEART_BEAT, flag=2, body=b"[]"),
        ("WARNING", "HEART_BEAT", UNNAMED, "SYSTEM_ERROR"),
        "JSON body at $: needed an object",
    ),
    "a group whose name cannot be": (
        RemotingCommand(
            RequestCode.HEART_BEAT,
            body=b'{"clientID":"me","consumerDataSet":[{"groupName":"a b"}]}',
        ),
        ("WARNING", "HEART_BEAT", "me", "SYSTEM_ERROR"),
        "",
    ),
    "a lock that is no lock": (
        RemotingCommand(RequestCode.LOCK_BATCH_MQ, body=b'{"clientId":"me"}'),
        ("WARNING", "LOCK_BATCH_MQ", "me", "SYSTEM_ERROR"),
        "JSON body at $.consumerGroup: needed a value",
    ),
    "a header without a field": (
        RemotingCommand(RequestCode.GET_MAX_OFFSET, ext_fields={"topic": "T"}),
        ("WARNING", "GET_MAX_OFFSET", UNNAMED, "SYSTEM_ERROR"),
        "GetMaxOffsetRequestHeader at extFields.queueId: needed a 32-bit integer",
    ),
    "a pull without a number": (
        RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields={"topic": "T", "queueId": "x"}),
        ("WARNING", "PULL_MESSAGE", UNNAMED, "SYSTEM_ERROR"),
        "PullMessageRequestHeader at extFields.",
    ),
    "a send to a queue that is not there": (
        send_request("x", queue_id=99),
        ("INFO", "SEND_MESSAGE_V2", UNNAMED, "SYSTEM_ERROR"),
        "",
    ),
    "an unknown request": (
        RemotingCommand(12_345),
        ("INFO", "request 12345", UNNAMED, "REQUEST_CODE_NOT_SUPPORTED"),
        " request type 12345 not supported",
    ),
    "a list of members of nobody": (
        RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext_fields={"consumerGroup": "G"}),
        ("INFO", "GET_CONSUMER_LIST_BY_GROUP", UNNAMED, "SYSTEM_ERROR"),
        "no consumer for this group, G",
    ),
    "a line break in a name": (
        RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext_fields={"consumerGroup": "\n"}),
        ("INFO", "GET_CONSUMER_LIST_BY_GROUP", UNNAMED, "SYSTEM_ERROR"),
        "no consumer for this group, \\n",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_refused_request_is_logged_and_counted(tmp_path, caplog, refusal):
    request, (level, name, client_id, code), cause = REFUSALS[refusal]

    async def story(broker):
        broker.make_topic("T")
        asker = await broker.connect()
        port = asker.address[1]
        asker.send(request)
        await asker.ask(RequestCode.GET_BROKER_RUNTIME_INFO, opaque=99)
        lines = [
            f"{record.levelname} {record.getMessage()}"
            for record in caplog.records
            if record.name.endswith("dispatcher")
        ]
        client = f"127.0.0.1:{port}, client id {client_id}"
        assert lines[0].startswith(f"{level} {name} of {client}, refused with {code}")
        assert f": {cause}" in lines[-1]
        assert len(lines) == 1 or lines[1].startswith(f"{level} 127.0.0.1:{port}: {cause}")
        assert all("\n" not in line and len(line) <= 200 - 24 for line in lines)
        assert sum(broker.controller.processors.dispatch.refused.values()) == 1

    caplog.set_level("INFO")
    tell(story, tmp_path)


JAVA_5 = 413  # V5_0_0
RESET_TO_THE_START = {"topic": "T", "group": "G", "timestamp": "0", "isForce": "true"}


async def member_of(broker, client_id, version, language="JAVA", model=b"CLUSTERING"):
    """Return a client that has sent its heartbeat."""
    client = await broker.connect()
    body = (
        b'{"clientID":"%s","consumerDataSet":[{"groupName":"G","messageModel":"%s",'
        b'"subscriptionDataSet":[{"topic":"T","subString":"*"}]}]}' % (client_id.encode(), model)
    )
    client.send(json_frame(body, code=34, opaque=1, flag=0, version=version, language=language))
    while not (answer := await client.receive()).is_response:
        pass
    assert answer.code == 0, answer.remark
    return client


async def commit(client, offset):
    fields = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": offset}
    return await client.call(
        RemotingCommand(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            ext_fields={name: str(value) for name, value in fields.items()},
        )
    )


async def reset_to_the_start(operator):
    answer = await operator.call(
        RemotingCommand(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext_fields=RESET_TO_THE_START)
    )
    assert answer.code == 0, answer.remark


@pytest.mark.parametrize("is_held", [False, True], ids=["pulls next", "waits for messages"])
@on_broker
async def test_offset_reset_moves_a_java_5_client_by_its_next_pull(broker, is_held):
    """Java's client sleeps ten seconds in a shared thread when it is notified of a reset."""
    client = await member_of(broker, "five", JAVA_5)
    operator = await broker.connect()
    await operator.put("a", "b", "c")
    await commit(client, 3)
    if is_held:
        client.send(pull_request(3, group="G", opaque=5, suspend_ms=15_000))
        await broker.held(1)
    await reset_to_the_start(operator)
    assert await operator.committed() == 0
    if not is_held:
        await commit(client, 3)  # of messages from before the reset
        assert await operator.committed() == 0
        client.send(pull_request(3, group="G", opaque=5))
    while (moved := await client.receive()).opaque != 5:
        assert moved.code != RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    assert moved.code == ResponseCode.PULL_OFFSET_MOVED
    assert moved.ext_fields["nextBeginOffset"] == "0"
    found = await client.pull(0, group="G")
    assert found.bodies == ["a", "b", "c"]
    await commit(client, 2)
    assert await operator.committed() == 2


@pytest.mark.parametrize(
    "others",
    [
        [("four", 409, "JAVA", b"CLUSTERING")],
        [("plus", JAVA_5, "CPP", b"CLUSTERING")],
        [("all", JAVA_5, "JAVA", b"BROADCASTING")],
    ],
    ids=["a member of 4.9", "a member in C++", "a broadcast"],
)
@on_broker
async def test_offset_reset_notifies_all_members_if_one_cannot_be_moved_by_its_pull(broker, others):
    members = [await member_of(broker, "five", JAVA_5)]
    members += [await member_of(broker, *other) for other in others]
    operator = await broker.connect()
    await operator.put("a", "b", "c")
    await commit(members[0], 3)
    await reset_to_the_start(operator)
    for member in members:
        while (notice := await member.receive()).code != (RequestCode.RESET_CONSUMER_CLIENT_OFFSET):
            assert notice.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    assert await operator.committed() == 3  # members store the new offset themselves


@on_broker
async def test_offset_reset_is_forgotten_with_the_last_member(broker):
    client = await member_of(broker, "five", JAVA_5)
    operator = await broker.connect()
    await operator.put("a", "b", "c")
    await commit(client, 3)
    await reset_to_the_start(operator)
    leave = {"clientID": "five", "consumerGroup": "G"}
    await client.call(RemotingCommand(RequestCode.UNREGISTER_CLIENT, ext_fields=leave))
    await commit(operator, 2)
    assert await operator.committed() == 2


@on_broker
async def test_pull_of_a_non_member_does_not_take_a_members_reset(broker):
    client = await member_of(broker, "five", JAVA_5)
    operator = await broker.connect()
    await operator.put("a", "b", "c")
    await commit(client, 3)
    await reset_to_the_start(operator)
    assert (await operator.pull(1, group="G")).bodies == ["b", "c"]
    assert (await client.pull(3, group="G")).code == ResponseCode.PULL_OFFSET_MOVED
