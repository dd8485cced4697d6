"""Pulls from a whole broker work as with RocketMQ: order of checks, codes, next offsets."""

import re

import pytest
from support.brokers.in_process import on_broker, tell
from support.clients.remoting_clients import pull_request, pulled, send_request
from support.stores.small_store import components_of

from rmq_spark.wire.bodies.clients import MessageModel, SubscriptionData
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig
from rmq_spark.wire.codes import LanguageCode, RequestCode, SerializeType
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.message.record import decode_records
from rmq_spark.wire.remoting.command import RemotingCommand

# ---- the checks in order: each request violates the rules of its row and of all later rows

CHECKS = {
    "the broker may not be read": ({"brokerPermission": "2"}, {}, 16, "forbidden"),
    "no such group": ({"autoCreateSubscriptionGroup": "false"}, {}, 26, r"\[nobody\]"),
    "a group that may not consume": ({}, {"group": "barred"}, 16, "barred"),
    "no such topic": ({}, {"group": "G"}, 17, r"topic\[nothing\] not exist, apply first please!"),
    "a topic that may not be read": ({}, {"group": "G", "topic": "W"}, 16, r"topic\[W\]"),
    "no such queue": ({}, {"group": "G", "topic": "T"}, 1, r"queueId\[4\].*readQueueNums \[4\]"),
    "a queue below zero": ({}, {"group": "G", "topic": "T", "queue_id": -1}, 1, "queueId"),
    "a subscription that cannot be": ({}, {"group": "G", "topic": "T", "queue_id": 0}, 23, "tag"),
}


@pytest.mark.parametrize(("settings", "request_of", "code", "remark"), CHECKS.values(), ids=CHECKS)
def test_pull_is_answered_with_the_first_check_that_fails(
    tmp_path, settings, request_of, code, remark
):
    async def story(broker):
        broker.make_topic("T")
        broker.make_topic("W", perm=2)
        broker.controller.tables.groups.put(
            SubscriptionGroupConfig(group_name="barred", consume_enable=False)
        )
        client = await broker.connect()
        wrong = {"group": "nobody", "topic": "nothing", "queue_id": 4, "subscription": "||"}
        answer = await client.call(pull_request(**{**wrong, **request_of}))
        assert answer.code == code
        assert re.search(remark, answer.remark)

    tell(story, tmp_path, **settings)


@on_broker
async def test_pull_uses_the_heartbeats_subscription_unless_it_has_its_own(broker):
    client = await broker.connect()
    await client.put("a", properties={"TAGS": "A"})
    await client.put("b", properties={"TAGS": "B"})
    assert (await client.pull(0, subscription=None)).code == 24
    await client.heartbeat("G", "Another")
    assert (await client.pull(0, subscription=None)).code == 24
    tags = SubscriptionData(topic="T", sub_string="B", tags_set=frozenset("B"), sub_version=7)
    await client.heartbeat("G", tags)
    assert (await client.pull(0, subscription=None, sub_version=8)).code == 25
    assert (await client.pull(0, subscription=None, sub_version=7)).bodies == ["b"]
    assert (await client.pull(0, subscription="*")).bodies == ["a", "b"]


@on_broker
async def test_broadcast_pull_of_a_group_without_permission_is_refused(broker):
    broker.controller.tables.groups.put(
        SubscriptionGroupConfig(group_name="G", consume_broadcast_enable=False)
    )
    client = await broker.connect()
    await client.put("a")
    await client.heartbeat("G", "T", message_model=MessageModel.BROADCASTING)
    answer = await client.call(pull_request(subscription=None))
    assert answer.code == 16
    assert "broadcast" in answer.remark


# ---- results by offset


@on_broker
async def test_pull_of_an_empty_topic_is_held_at_zero_and_moved_from_elsewhere(broker):
    broker.make_topic("T")
    client = await broker.connect()
    at_start, elsewhere = await client.pull(0), await client.pull(5)
    assert (at_start.code, at_start.next_offset) == (19, 0)
    assert (elsewhere.code, elsewhere.next_offset) == (21, 0)
    assert (elsewhere.min_offset, elsewhere.max_offset) == (0, 0)


ROWS = {
    # offset: code, remark, next offset, bodies; the queue holds messages 4 to 9
    -1: (21, "OFFSET_TOO_SMALL", 4, []),
    0: (21, "OFFSET_TOO_SMALL", 4, []),
    3: (21, "OFFSET_TOO_SMALL", 4, []),
    4: (0, "FOUND", 10, ["4", "5", "6", "7", "8", "9"]),
    9: (0, "FOUND", 10, ["9"]),
    10: (19, "OFFSET_OVERFLOW_ONE", 10, []),
    11: (21, "OFFSET_OVERFLOW_BADLY", 10, []),
    1 << 40: (21, "OFFSET_OVERFLOW_BADLY", 10, []),
}


@on_broker
async def test_every_pull_offset_has_its_code_and_next_offset(broker):
    client = await broker.connect()
    await client.put(*range(10))
    fifth = (await client.pull(0)).messages[4].physical_offset
    for _, _, queue in components_of(broker.store).queues:
        queue.expire_before(fifth)  # as after the log has deleted the earlier records
    for offset, row in ROWS.items():
        found = await client.pull(offset)
        assert (found.code, found.remark, found.next_offset, found.bodies) == row
        assert (found.min_offset, found.max_offset) == (4, 10)
    answer = await client.call(pull_request(4))
    assert answer.ext_fields["suggestWhichBrokerId"] == "0"


@on_broker
async def test_pull_skips_unmatched_messages_without_being_held(broker):
    client = await broker.connect()
    await client.put(*range(5), properties={"TAGS": "A"})
    found = await client.pull(0, subscription="B", suspend_ms=15_000)
    assert (found.code, found.remark, found.next_offset) == (20, "NO_MATCHED_MESSAGE", 5)


@on_broker
async def test_sparse_filter_pull_scans_a_bounded_number_and_advances(broker):
    client = await broker.connect()
    for number in range(0, 1_000, 100):
        client.send(
            b"".join(
                send_request(each, properties={"TAGS": "A"}, flag=2).encode()
                for each in range(number, number + 100)
            )
        )
    await client.put("wanted", properties={"TAGS": "B"})
    await broker.until(lambda: broker.store.queue_offsets("T", 0).next == 1_001)
    first = await client.pull(0, subscription="B")
    assert (first.code, first.next_offset) == (20, 800)
    second = await client.pull(first.next_offset, subscription="B")
    assert (second.code, second.next_offset, second.bodies) == (0, 1_001, ["wanted"])


@on_broker
async def test_pull_is_bounded_by_count_and_bytes_but_has_one_message(broker):
    client = await broker.connect()
    await client.put(*["x" * 1_000] * 50)
    assert len((await client.pull(0, count=7)).bodies) == 7
    assert len((await client.pull(0, count=1_000)).bodies) == 32
    assert len((await client.pull(0, count=0)).bodies) == 1
    assert len((await client.pull(0, bytes_max=5_000)).bodies) == 4
    assert len((await client.pull(0, bytes_max=1)).bodies) == 1


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("maxTransferCountOnMessageInMemory", 3, 3),
        ("maxTransferBytesOnMessageInMemory", 2_500, 2),
    ],
)
def test_pull_is_bounded_by_the_brokers_settings(tmp_path, name, value, found):
    async def story(broker):
        client = await broker.connect()
        await client.put(*["x" * 1_000] * 10)
        assert len((await client.pull(0)).bodies) == found

    tell(story, tmp_path, **{name: value})


# ---- filters


@on_broker
async def test_pull_selects_messages_by_tags_and_sql(broker):
    client = await broker.connect()
    for number, tag in enumerate("ABCAB"):
        await client.put(number, properties={"TAGS": tag, "price": str(number)})
    assert (await client.pull(0, subscription="A")).bodies == ["0", "3"]
    assert (await client.pull(0, subscription="A || B")).bodies == ["0", "1", "3", "4"]
    sql = await client.pull(0, subscription="price > 1 AND TAGS <> 'A'", expression_type="SQL92")
    assert (sql.bodies, sql.next_offset) == (["2", "4"], 5)
    wrong = await client.call(pull_request(0, subscription="price >", expression_type="SQL92"))
    assert wrong.code == 23


@on_broker(enablePropertyFilter=False)
async def test_property_filter_disabled_refuses_sql92(broker):
    client = await broker.connect()
    await client.put("a", properties={"price": "1"})
    answer = await client.call(pull_request(0, subscription="price = 1", expression_type="SQL92"))
    assert answer.code == 1
    assert "does not support consumer to filter message by SQL92" in answer.remark


# ---- commits in pulls


@on_broker
async def test_pull_commits_its_offset_and_never_an_older_one(broker):
    client = await broker.connect()
    await client.put(*range(5))
    await client.pull(0, commit_offset=3)
    assert await client.committed() == 3
    await client.pull(0, commit_offset=2)
    assert await client.committed() == 3
    await client.pull(0)
    assert await client.committed() == 3


@on_broker
async def test_held_pull_commits_its_offset_at_arrival_only(broker):
    client, other = await broker.connect(), await broker.connect()
    await other.put(*range(5))
    client.send(pull_request(5, suspend_ms=30_000, commit_offset=4))
    await broker.held(1)
    assert await other.committed() == 4
    commit = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"}
    assert (await other.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=commit)).code == 0
    await other.put("woken")
    assert pulled(await client.receive()).bodies == ["woken"]
    assert await other.committed() == 1


@on_broker(brokerRole="SLAVE")
async def test_slave_broker_does_not_commit_pulled_offsets(broker):
    broker.make_topic("T")
    client = await broker.connect()
    await client.pull(0, commit_offset=3)
    assert broker.controller.tables.offsets.query("G", "T", 0) is None


# ---- other kinds of pulls


@on_broker
async def test_lite_pull_request_code_is_served_as_a_pull(broker):
    client = await broker.connect()
    await client.put("a")
    assert (await client.pull(0, code=RequestCode.LITE_PULL_MESSAGE)).bodies == ["a"]
    client.send(pull_request(1, code=RequestCode.LITE_PULL_MESSAGE, suspend_ms=30_000, opaque=8))
    await broker.held(1)
    await (await broker.connect()).put("b")
    woken = pulled(await client.receive())
    assert (woken.opaque, woken.bodies) == (8, ["b"])


@on_broker
async def test_large_pulls_need_the_agreed_extension(broker):
    client = await broker.connect()
    client.send(b"".join(send_request("x" * 900, flag=2).encode() for _ in range(700)))
    await client.put("last")
    before = await client.call(pull_request(0, code=RequestCode.PULL_CHUNK, count=10_000))
    assert before.code == 3
    assert await client.agree() == frozenset(Extension)
    answer = await client.call(
        pull_request(0, code=RequestCode.PULL_CHUNK, count=10_000, bytes_max=8 << 20)
    )
    assert answer.code == 0
    count = int.from_bytes(answer.body[:4], "big")
    assert count == 701
    assert len(answer.body) > 262_144  # the limit of an ordinary pull
    records = list(decode_records(answer.body[4 + 4 * count :]))
    assert [record.queue_offset for record in records] == list(range(701))
    assert int(answer.ext_fields["nextBeginOffset"]) == 701


@on_broker
async def test_chunk_pull_is_held_like_others_and_its_response_has_sizes(broker):
    broker.make_topic("T")
    client = await broker.connect()
    await client.agree(Extension.PULL_CHUNK)
    client.send(pull_request(0, code=RequestCode.PULL_CHUNK, suspend_ms=30_000))
    await broker.held(1)
    await (await broker.connect()).put("a")
    answer = await client.receive()
    assert int.from_bytes(answer.body[:4], "big") == 1
    (record,) = decode_records(answer.body[8:])
    assert record.body == b"a"


@on_broker
async def test_broker_and_client_agree_on_common_extensions_only(broker):
    client = await broker.connect()
    fields = {"names": "pull-chunk,telepathy"}
    answer = await client.ask(RequestCode.EXTENSIONS, ext_fields=fields)
    assert (answer.code, answer.ext_fields["names"]) == (0, "pull-chunk")


@pytest.mark.parametrize("serialize_type", SerializeType)
@on_broker
async def test_response_uses_the_codec_of_its_request(broker, serialize_type):
    client = await broker.connect()
    more = {"serialize_type": serialize_type, "language": LanguageCode.JAVA, "version": 433}
    sent = await client.call(send_request("a", opaque=3, **more))
    assert (sent.code, sent.serialize_type, sent.ext_fields["queueOffset"]) == (
        0,
        serialize_type,
        "0",
    )
    found = await client.call(pull_request(0, opaque=4, **more))
    assert (found.code, found.serialize_type) == (0, serialize_type)
    assert pulled(found).bodies == ["a"]
    at_end = await client.call(pull_request(1, opaque=5, **more))
    assert (at_end.code, at_end.serialize_type) == (19, serialize_type)
    assert pulled(at_end)[2:5] == (1, 0, 1)


@pytest.mark.parametrize("version", [0, -1, 1, 32_767, 2_147_483_647])
@on_broker
async def test_unknown_client_version_is_accepted(broker, version):
    client = await broker.connect()
    assert (await client.call(send_request("a", version=version))).code == 0
    assert pulled(await client.call(pull_request(0, version=version))).bodies == ["a"]


@pytest.mark.parametrize("code", [-5, 0, 9_999, 200_056, 2_147_483_647])
@on_broker
async def test_unknown_request_code_is_answered_not_supported(broker, code):
    client = await broker.connect()
    answer = await client.ask(code, opaque=77)
    assert (answer.code, answer.opaque) == (3, 77)
    assert answer.remark == f" request type {code} not supported"
    client.send(RemotingCommand(code, flag=2, opaque=78))  # one-way, so no response comes
    assert (await client.ask(code, opaque=79)).opaque == 79


@on_broker
async def test_missing_or_non_numeric_header_field_is_named(broker):
    client = await broker.connect()
    fields = dict(pull_request(0).ext_fields)
    for name, value in (("queueOffset", None), ("queueOffset", "x"), ("topic", None)):
        wrong = {**fields, name: value} if value else {k: v for k, v in fields.items() if k != name}
        answer = await client.ask(RequestCode.PULL_MESSAGE, ext_fields=wrong)
        assert answer.code == 1
        assert name in answer.remark
