"""Every body class, with values of hypothesis and with Java's vectors."""

import dataclasses
import enum
import re
import typing
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from support.messages.wire_strategies import CLASSES, EXAMPLES, values_of
from support.rocketmq import java_vectors

from rmq_spark.errors import BodyError
from rmq_spark.wire.bodies import clients, configs, decode_body, encode_body, operators
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.message_queue import MessageQueue

JAVA_NAMES = {**CLASSES, "UnlockBatchRequestBody": clients.LockBatchRequestBody}

# A body class of RocketMQ without a request.
NOT_OURS = {"ConsumeByWho"}
# Computed by Java's getters, from fields that the body also has.
COMPUTED = {"minTimeStampStr", "maxTimeStampStr", "consumeTimeStampStr"}
# Static topics and pop consumption, which the broker does not offer.
NOT_SERVED = {
    "topicQueueMappingByBroker",
    "topicQueueMappingDetailMap",
    "topicQueueMappingInfoMap",
    "mappingDataVersion",
    "mqPopTable",
    "userConsumerInfo",
}
# Java itself reads these back wrong: references to map keys do not say which key.
AMBIGUOUS = {("4.9.7", "GetConsumerStatusBody", "shared"), ("4.9.7", "ConsumeStatsList", "shared")}


def parts_of(hint):
    yield from (part for argument in typing.get_args(hint) for part in parts_of(argument))
    if dataclasses.is_dataclass(hint):
        yield hint


def test_body_docstrings_name_their_request():
    """The request or the file; parts of other bodies name none."""
    hints = [hint for body in CLASSES.values() for hint in typing.get_type_hints(body).values()]
    parts = {part for hint in hints for part in parts_of(hint)}
    for name, body in CLASSES.items():
        first_line = body.__doc__.splitlines()[0]
        assert body in parts or {*re.findall(r"[A-Z][A-Z0-9_]+", first_line)} & {
            *RequestCode.__members__
        }, name


@pytest.mark.parametrize("body_class", CLASSES.values(), ids=CLASSES)
def test_body_class_round_trip(body_class):
    @settings(max_examples=EXAMPLES)
    @given(values_of(body_class))
    def round_trip(body):
        assert decode_body(body_class, encode_body(body)) == body

    round_trip()


def as_dumped(value):
    """Return our value in the form of the vectors."""
    if dataclasses.is_dataclass(value):
        hints = dataclasses.fields(value)
        members = {json_name(each): getattr(value, each.name) for each in hints}
        return {name: as_dumped(member) for name, member in members.items() if member is not None}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, frozenset):
        return sorted((as_dumped(item) for item in value), key=repr)
    if isinstance(value, tuple):
        return sorted((as_dumped(item) for item in value), key=repr)
    if isinstance(value, Mapping):
        if any(isinstance(key, MessageQueue) for key in value):
            pairs = [
                {"key": as_dumped(key), "value": as_dumped(item)} for key, item in value.items()
            ]
            return sorted(pairs, key=repr)
        return {str(key): as_dumped(item) for key, item in value.items()}
    return value


def json_name(each):
    first, *rest = each.name.split("_")
    return each.metadata.get("json name") or first + "".join(word.capitalize() for word in rest)


def in_any_order(value):
    """Return a dump without the order of its collections, and without members that are not ours."""
    if isinstance(value, list):
        return sorted((in_any_order(item) for item in value), key=repr)
    if isinstance(value, dict):
        return {
            key: in_any_order(item)
            for key, item in sorted(value.items())
            if key not in COMPUTED | NOT_SERVED
        }
    return value


def is_ours(vector):
    return vector["class"] not in NOT_OURS


@java_vectors.each("bodies", where=is_ours)
def test_javas_bodies_are_read_as_java_means_them(vector, name):
    version = name.partition("-")[0]
    body_class = JAVA_NAMES[vector["class"]]
    if (version, vector["class"], vector["variant"]) in AMBIGUOUS:
        with pytest.raises(BodyError, match="needed the path of exactly one object"):
            decode_body(body_class, vector["text"].encode())
        return
    body = decode_body(body_class, vector["text"].encode())
    assert in_any_order(as_dumped(body)) == in_any_order(vector["value"])


def order_and_digits_are_determined(vector):
    return (
        is_ours(vector)
        and vector["variant"] in ("single", "standard")
        # Numbers as keys, which we quote; floats, whose digits the two languages write differently.
        and not any(
            f"{mark}{digit}" in vector["text"] for mark in ("{", "{-") for digit in "123456789"
        )
        and "E" not in "".join(vector["text"].split('"')[2::2])
        and not any(name in vector["text"] for name in COMPUTED | NOT_SERVED)
        and not (vector["variant"] == "standard" and "\\u" in vector["text"])
    )


@java_vectors.each("bodies", where=order_and_digits_are_determined)
def test_javas_bodies_are_written_with_the_same_text(vector):
    body = decode_body(JAVA_NAMES[vector["class"]], vector["text"].encode())
    assert encode_body(body).decode() == vector["text"]


QUEUE = {"brokerName": "b", "queueId": 0, "topic": "T"}


@pytest.mark.parametrize(
    "text",
    [
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}',
        rb'{"offsetTable":{"{\"brokerName\":\"b\",\"queueId\":0,\"topic\":\"T\"}":5}}',
        b'{"offsetTable":{{"topic":"T","queueId":"0","brokerName":"b","more":null}:"5"}}',
    ],
)
def test_message_queue_map_key_is_decoded_in_every_dialect(text):
    assert decode_body(operators.ResetOffsetBody, text).offset_table == {
        MessageQueue("T", "b", 0): 5
    }


def test_message_queue_map_key_is_encoded_readable_for_all_java_versions():
    body = operators.ResetOffsetBody(offset_table={MessageQueue("T", "b", 0): 5})
    assert encode_body(body) == b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}'


def test_body_map_keys_that_are_numbers_are_quoted():
    body = clients.BrokerData(broker_name="b", broker_addrs={0: "10.0.0.1:10911"})
    assert encode_body(body) == b'{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"b"}'


def test_body_sets_are_encoded_in_sorted_order():
    body = operators.TopicList(topic_list=frozenset({"b", "c", "a"}))
    assert encode_body(body) == b'{"topicList":["a","b","c"]}'


@pytest.mark.parametrize(
    ("body_class", "text", "message"),
    [
        (operators.TopicList, b"[]", r"JSON body at \$: needed an object, found \[\]"),
        (operators.TopicList, b'{"topicList":5}', r"\$.topicList: needed an array, found 5"),
        (
            operators.TopicList,
            b'{"topicList":[{}]}',
            r"\$.topicList\[0\]: needed text, found {}",
        ),
        (clients.BrokerData, b'{"brokerName":"b"}', r"\$.brokerAddrs: needed a value, found None"),
        (
            clients.BrokerData,
            b'{"brokerName":null,"brokerAddrs":{}}',
            r"\$.brokerName: needed a value",
        ),
        (
            clients.BrokerData,
            b'{"brokerName":"b","brokerAddrs":[]}',
            r"\$.brokerAddrs: needed an object",
        ),
        (
            clients.BrokerData,
            b'{"brokerName":"b","brokerAddrs":{"x":"a"}}',
            r"a key of \$.brokerAddrs: needed a 64-bit integer",
        ),
        (configs.TopicConfig, b'{"topicName":"T","perm":[1]}', r"\$.perm: needed a 64-bit integer"),
        (
            configs.TopicConfig,
            b'{"topicName":"T","perm":9223372036854775808}',
            "needed a 64-bit integer",
        ),
        (configs.TopicConfig, b'{"topicName":"T","order":"?"}', r"\$.order: needed true or false"),
        (
            configs.TopicConfig,
            b'{"topicName":"T","topicFilterType":"X"}',
            "needed one of SINGLE_TAG, MULTI",
        ),
        (operators.ConsumeStats, b'{"consumeTps":"x"}', r"\$.consumeTps: needed a number"),
        (
            clients.HeartbeatData,
            b'{"clientID":"c","consumerDataSet":[{}]}',
            r"\[0\].groupName: needed a value",
        ),
    ],
)
def test_body_of_a_wrong_type_is_refused_with_path_and_need(body_class, text, message):
    with pytest.raises(BodyError, match=message):
        decode_body(body_class, text)


def test_body_scalars_become_text_as_in_java():
    body = decode_body(operators.KVTable, b'{"table":{"a":true,"b":false,"c":1.5,"d":7}}')
    assert body.table == {"a": "true", "b": "false", "c": "1.5", "d": "7"}


def test_nulls_in_maps_and_lists_equal_absent_entries():
    assert decode_body(operators.KVTable, b'{"table":{"a":null,"b":"x"}}').table == {"b": "x"}
    assert decode_body(operators.TopicList, b'{"topicList":[null,"T"]}').topic_list == {"T"}


@pytest.mark.parametrize("number", [1e300, -1e300, 2.0**63])
def test_large_floats_in_bodies_round_trip(number):
    body = operators.ConsumeStats(consume_tps=number)
    assert decode_body(operators.ConsumeStats, encode_body(body)) == body


def test_number_beyond_float_range_is_refused_by_both_json_readers():
    for data in (b'{"consumeTps":1e999}', b'{0:0,"consumeTps":1e999}'):
        with pytest.raises(BodyError):
            decode_body(operators.ConsumeStats, data)


@pytest.mark.parametrize("word", ["1_0", " 5", "5 ", "x", "0x5"])
def test_quoted_numbers_in_bodies_are_parsed_as_in_java(word):
    with pytest.raises(BodyError, match=r"\$.perm: needed a 64-bit integer"):
        decode_body(configs.TopicConfig, b'{"topicName":"T","perm":"%s"}' % word.encode())


@pytest.mark.timeout(60)  # a quadratic reader would take minutes
def test_long_map_key_does_not_slow_down_its_items():
    items = b",".join(b'"k%d":5' % number for number in range(100_000))
    data = b'{"forbiddenTable":{"' + b"x" * 10_000_000 + b'":{' + items + b"}}}"
    body = decode_body(configs.SubscriptionGroupWrapper, data)
    assert len(body.forbidden_table["x" * 10_000_000]) == 100_000


def test_body_error_path_shortens_long_keys_and_shows_objects():
    with pytest.raises(BodyError, match=r"at \$\.table\.x{60}: needed text, found \[\]"):
        decode_body(operators.KVTable, b'{"table":{"%s":[]}}' % (b"x" * 100_000))
    with pytest.raises(
        BodyError, match=r"at \$\.offsetTable\.\{'brokerName': 'b'.*: needed a 64-bit integer"
    ):
        decode_body(
            operators.ResetOffsetBody,
            b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:[]}}',
        )
    with pytest.raises(BodyError, match=r"at a key of \$\.offsetTable\.queueId: needed a value"):
        decode_body(
            operators.ResetOffsetBody, b'{"offsetTable":{{"brokerName":"b","topic":"T"}:1}}'
        )


def test_array_of_bodies_is_read():
    users = (operators.UserInfo(username="a"), operators.UserInfo(username="b"))
    data = b"[%b]" % b",".join(map(encode_body, users))
    assert decode_body(operators.USER_LIST, data) == users


def test_user_shows_no_password():
    assert "s3cret" not in repr(operators.UserInfo(username="a", password="s3cret"))
