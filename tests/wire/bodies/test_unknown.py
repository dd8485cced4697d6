"""Unknown members of a body are reported, and no others."""

import json

import pytest
from hypothesis import given, settings
from support.messages.wire_strategies import CLASSES, EXAMPLES, values_of

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.body_codec import unknown_members
from rmq_spark.wire.bodies.clients import LockBatchRequestBody
from rmq_spark.wire.bodies.configs import TopicConfigSerializeWrapper
from rmq_spark.wire.bodies.operators import TopicStatsTable


@pytest.mark.parametrize("body_type", CLASSES.values(), ids=CLASSES)
def test_encoded_bodies_have_no_unknown_members(body_type):
    @settings(max_examples=EXAMPLES)
    @given(values_of(body_type))
    def check(body):
        assert unknown_members(body_type, encode_body(body)) == []

    check()


TOPIC = {"topicName": "T", "attributes": {"any": "name"}}
FOUND = [
    (TopicConfigSerializeWrapper, {"colour": None}, ["colour"]),
    (TopicConfigSerializeWrapper, {"dataVersion": {"colour": 1}}, ["dataVersion.colour"]),
    (
        TopicConfigSerializeWrapper,
        {"topicConfigTable": {"T": TOPIC | {"colour": 1}, "U": TOPIC | {"colour": {}}, "V": None}},
        ["topicConfigTable.*.colour"],
    ),
    (TopicConfigSerializeWrapper, {"topicConfigTable": {"T": TOPIC}}, []),
    (LockBatchRequestBody, {"mqSet": [{"colour": 1}, None]}, ["mqSet.*.colour"]),
]


@pytest.mark.parametrize(("body_type", "value", "found"), FOUND)
def test_unknown_members_are_reported_once(body_type, value, found):
    assert unknown_members(body_type, json.dumps(value).encode()) == found


def test_unknown_members_are_found_under_object_keys():
    data = b'{"offsetTable":{{"topic":"T","queueId":0}:{"maxOffset":1,"colour":2}}}'
    assert unknown_members(TopicStatsTable, data) == ["offsetTable.*.colour"]
