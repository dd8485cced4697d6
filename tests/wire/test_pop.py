"""Receipts, topics and offset lists of pops, and bodies of the revive topic.

The texts in quotes were written by the classes of RocketMQ 5.5.0.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.errors import HeaderError
from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.bodies.clients import MessageRequestMode
from rmq_spark.wire.bodies.fastjson import loads
from rmq_spark.wire.bodies.pop import (
    AckMsg,
    BatchAck,
    BatchAckMessageRequestBody,
    BatchAckMsg,
    ConsumerOrderInfoWrapper,
    MessageRequestModeWrapper,
    OrderInfo,
    PopCheckPoint,
    SetMessageRequestModeRequestBody,
)
from rmq_spark.wire.pop import (
    NORMAL,
    RETRY_V1,
    RETRY_V2,
    PopReceipt,
    decode_bits,
    decode_offsets,
    encode_bits,
    encode_message_offsets,
    encode_order_counts,
    encode_start_offsets,
    normal_topic,
    pop_retry_topic,
    real_topic,
    retry_mark,
)

NAMES = st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True)
OFFSETS = st.integers(0, (1 << 63) - 1)

POP_TIME = 1_700_000_000_123
CHECK_POINT = PopCheckPoint(
    start_offset=5,
    pop_time=POP_TIME,
    invisible_time=60_000,
    count=2,
    queue_id=3,
    topic="t",
    group="g",
    diffs=(0, 2),
    broker_name="b",
)
OF_CHECK_POINT = {
    "start_offset": 5,
    "consumer_group": "g",
    "topic": "t",
    "queue_id": 3,
    "pop_time": POP_TIME,
    "broker_name": "b",
}
MODE = SetMessageRequestModeRequestBody(
    topic="t", consumer_group="g", mode=MessageRequestMode.POP, pop_share_queue_num=2
)
BODIES = [
    (
        (
            '{"bm":0,"bn":"b","c":"g","d":[0,2],"it":60000,"n":2,"pt":1700000000123,"q":3,'
            '"reviveTime":1700000060123,"ro":0,"so":5,"sp":false,"t":"t"}'
        ),
        CHECK_POINT,
    ),
    (
        '{"ao":7,"bn":"b","c":"g","pt":1700000000123,"q":3,"so":5,"t":"t"}',
        AckMsg(ack_offset=7, **OF_CHECK_POINT),
    ),
    (
        '{"ao":-1,"aol":[5,7],"bn":"b","c":"g","pt":1700000000123,"q":3,"so":5,"t":"t"}',
        BatchAckMsg(ack_offset_list=(5, 7), **OF_CHECK_POINT),
    ),
    (
        (
            '{"acks":[{"b":"AQI=","c":"g","it":60000,"pt":1700000000123,"q":3,"r":"1","rq":4,"so":5,'
            '"t":"t"}],"brokerName":"b"}'
        ),
        BatchAckMessageRequestBody(
            broker_name="b",
            acks=(
                BatchAck(
                    consumer_group="g",
                    topic="t",
                    retry="1",
                    start_offset=5,
                    queue_id=3,
                    revive_queue_id=4,
                    pop_time=POP_TIME,
                    invisible_time=60_000,
                    bit_set=encode_bits([0, 9]),
                ),
            ),
        ),
    ),
    ('{"consumerGroup":"g","mode":"POP","popShareQueueNum":2,"topic":"t"}', MODE),
    (
        (
            '{"messageRequestModeMap":{"t":{"g":'
            '{"consumerGroup":"g","mode":"POP","popShareQueueNum":2,"topic":"t"}}}}'
        ),
        MessageRequestModeWrapper(message_request_mode_map={"t": {"g": MODE}}),
    ),
    (
        (
            '{"orderInfoCount":1,"orderedConsumptionLevel":"QUEUE","table":{"t@g":{3:{"a":"att",'
            '"cm":0,"i":60000,"l":1796009871276,"o":[5,2],"ot":{5:1700000099999},'
            '"popTime":1700000000123}}}}'
        ),
        ConsumerOrderInfoWrapper(
            table={
                "t@g": {
                    3: OrderInfo(
                        pop_time=POP_TIME,
                        invisible_time=60_000,
                        offset_list=(5, 2),
                        next_visible_times={5: 1_700_000_099_999},
                        last_consume_timestamp=1_796_009_871_276,
                        attempt_id="att",
                    )
                }
            }
        ),
    ),
]


@pytest.mark.parametrize(("text", "body"), BODIES, ids=lambda each: type(each).__name__)
def test_bodies_of_pops_equal_rocketmqs(text, body):
    assert decode_body(type(body), text.encode()) == body
    ours, java = loads(encode_body(body)), loads(text.encode())
    of_getters = {"reviveTime", "orderInfoCount", "orderedConsumptionLevel"}
    assert {name: java[name] for name in java.keys() - of_getters}.items() <= ours.items()


@pytest.mark.parametrize(
    ("topic", "mark", "text"),
    [
        ("t", NORMAL, "5 1700000000123 60000 4 0 b 3 7"),
        ("%RETRY%g_t", RETRY_V1, "5 1700000000123 60000 4 1 b 3 7"),
        ("%RETRY%g+t", RETRY_V2, "5 1700000000123 60000 4 2 b 3 7"),
    ],
)
def test_receipt_handles_equal_rocketmqs(topic, mark, text):
    receipt = PopReceipt(5, POP_TIME, 60_000, 4, retry_mark(topic), "b", 3, 7)
    assert receipt.encode() == text
    assert PopReceipt.decode(text) == receipt
    assert receipt.retry == mark
    assert real_topic("t", "g", mark) == topic
    assert normal_topic(topic, "g") == "t"


def test_receipt_of_rocketmqs_proxy_has_the_physical_offset_as_well():
    receipt = PopReceipt.decode("5 1700000000123 60000 4 0 b 3 7 1234")
    assert receipt == PopReceipt(5, POP_TIME, 60_000, 4, NORMAL, "b", 3, 7)


def test_pop_offset_lists_equal_rocketmqs():
    assert encode_start_offsets([("t", 3, 5), ("%RETRY%g_t", 0, 9)]) == "0 3 5;1 0 9"
    lists = encode_message_offsets([("t", 3, [5, 7]), ("%RETRY%g_t", 0, [9])])
    assert lists == "0 3 5,7;1 0 9"
    assert decode_offsets(lists) == {("0", "3"): "5,7", ("1", "0"): "9"}
    assert encode_order_counts("t", 3, {5: 2}, 1) == "0 qo3%5 2;0 3 1"


@given(OFFSETS, OFFSETS, OFFSETS, st.integers(0, 999), NAMES, st.integers(0, 4_095), OFFSETS)
def test_receipt_handles_round_trip(start, pop, invisible, revive, name, queue, at):
    receipt = PopReceipt(start, pop, invisible, revive, NORMAL, name, queue, at)
    assert PopReceipt.decode(receipt.encode()) == receipt


@given(st.text())
def test_any_text_is_a_valid_receipt_or_refused(text):
    try:
        assert PopReceipt.decode(text).encode().split(" ")[5] == text.split(" ")[5]
    except HeaderError as error:
        assert "pop receipt" in str(error)


@given(NAMES, NAMES, st.booleans())
def test_retry_topics_of_every_group_lead_back_to_their_topic(topic, group, is_v2):
    retry = pop_retry_topic(topic, group, is_v2=is_v2)
    assert normal_topic(retry, group) == topic
    assert real_topic(topic, group, retry_mark(retry)) == retry


@given(st.sets(st.integers(0, 200)))
def test_ack_bit_sets_round_trip(bits):
    assert decode_bits(encode_bits(bits), 32) == sorted(bits)


@pytest.mark.parametrize("text", ["?", "AQ", "A" * 48, "\u00e9"])
def test_invalid_ack_bit_sets_are_refused(text):
    with pytest.raises(HeaderError, match="batch of acks"):
        decode_bits(text, 32)


@pytest.mark.parametrize("text", ["0 1", "0 1 2;0 1 3", ";", "0 1 2 3"])
def test_invalid_pop_offset_lists_are_refused(text):
    with pytest.raises(HeaderError, match="list of offsets"):
        decode_offsets(text)
