import dataclasses
import struct
import zlib

import java_vectors
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.errors import BodyError
from rmq_spark.wire.bodies import decode_body
from rmq_spark.wire.bodies.configs import (
    DataVersion,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicFilterType,
)
from rmq_spark.wire.bodies.registration import (
    REGISTRATION_BYTES_MAX,
    VERSION_5,
    RegisterBrokerBody,
    decode_compressed_registration,
    encode_compressed_registration,
)

words = st.text("abcXYZ_-%", min_size=1, max_size=12)
numbers = st.integers(-(1 << 31), (1 << 31) - 1)
topics = st.builds(
    TopicConfig,
    topic_name=words,
    read_queue_nums=numbers,
    write_queue_nums=numbers,
    perm=numbers,
    topic_filter_type=st.sampled_from(TopicFilterType),
    attributes=st.none() | st.dictionaries(words, words, min_size=1, max_size=2),
)
registrations = st.builds(
    RegisterBrokerBody,
    topic_config_serialize_wrapper=st.builds(
        TopicConfigSerializeWrapper,
        topic_config_table=st.lists(topics, max_size=3).map(
            lambda configs: {config.topic_name: config for config in configs}
        ),
        data_version=st.builds(DataVersion, timestamp=numbers, counter=numbers),
    ),
    filter_server_list=st.lists(words, max_size=2).map(tuple),
)


def without_attributes(body):
    wrapper = body.topic_config_serialize_wrapper
    table = {
        name: dataclasses.replace(topic, attributes=None)
        for name, topic in wrapper.topic_config_table.items()
    }
    wrapper = dataclasses.replace(wrapper, topic_config_table=table)
    return dataclasses.replace(body, topic_config_serialize_wrapper=wrapper)


@given(registrations)
def test_a_registration_is_read_as_it_was_written(body):
    assert decode_compressed_registration(encode_compressed_registration(body, VERSION_5)) == body


@given(registrations)
def test_brokers_of_4_9_write_no_attributes(body):
    data = encode_compressed_registration(body, VERSION_5 - 1)
    assert decode_compressed_registration(data) == without_attributes(body)


def test_attributes_that_5_x_would_drop_are_refused():
    topic = TopicConfig(topic_name="T", attributes={"a": "b c"})
    body = RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigSerializeWrapper(topic_config_table={"T": topic})
    )
    with pytest.raises(BodyError, match="registration at T: needed attributes without spaces"):
        encode_compressed_registration(body, VERSION_5)


@java_vectors.each("register_compressed")
def test_javas_registrations(vector):
    data = bytes.fromhex(vector["body"])
    read = decode_compressed_registration if vector["compressed"] else _read_plain
    wrapper = read(data).topic_config_serialize_wrapper
    theirs = vector["value"]["topicConfigSerializeWrapper"]
    assert wrapper.data_version.counter == theirs["dataVersion"]["counter"]
    assert set(wrapper.topic_config_table) == set(theirs["topicConfigTable"])
    for name, topic in wrapper.topic_config_table.items():
        fields = theirs["topicConfigTable"][name]
        assert topic.topic_name == fields["topicName"]
        assert topic.read_queue_nums == fields["readQueueNums"]
        assert topic.write_queue_nums == fields["writeQueueNums"]
        assert topic.perm == fields["perm"]
        assert topic.topic_filter_type.name == fields["topicFilterType"]
        assert (topic.attributes or {}) == fields.get("attributes", {})
    assert list(read(data).filter_server_list) == vector["value"]["filterServerList"]


def _read_plain(data):
    return decode_body(RegisterBrokerBody, data)


def sized(data):
    return struct.pack(">i", len(data)) + data


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        (b"", "registration at byte 0: needed a length of at most 0"),
        (struct.pack(">i", 9), "at byte 0: needed a length of at most 0"),
        (struct.pack(">i", -1) + b"{}", "at byte 0: needed a length of at most 2"),
        (sized(b"{}") + struct.pack(">i", 5), "at byte 6: needed a length of at most 0"),
        (sized(b"[]") + b"\0\0\0\0", "needed an object"),
        (
            sized(b"{}") + b"\0\0\0\1" + sized(b"T 4 4"),
            "a topic: needed name, 3 numbers and a filter type",
        ),
        (
            sized(b"{}") + b"\0\0\0\1" + sized(b"T 4 4 x SINGLE_TAG"),
            "a topic: needed name, 3 numbers",
        ),
        (
            sized(b"{}") + b"\0\0\0\1" + sized(b"T 4_0 4 6 SINGLE_TAG"),
            "a topic: needed name, 3 numbers",
        ),
        (
            sized(b"{}") + b"\0\0\0\1" + sized(b"T 4 4 2147483648 SINGLE_TAG"),
            "a topic: needed name, 3",
        ),
        (sized(b"{}") + b"\0\0\0\1" + sized(b"T 4 4 6 SINGLE"), "a topic: needed name, 3 numbers"),
        (
            sized(b"{}") + b"\0\0\0\1" + sized(b"T 4 4 6 SINGLE_TAG []"),
            "attributes: needed an object",
        ),
        (sized(b"{}") + bytes(4) + sized(b"[1]"), "filterServerList: needed texts"),
    ],
)
def test_registrations_that_do_not_fit_say_where_and_what(plain, message):
    with pytest.raises(BodyError, match=message):
        decode_compressed_registration(zlib.compress(plain))


def test_a_bomb_is_stopped():
    with pytest.raises(BodyError, match=f"at most {REGISTRATION_BYTES_MAX} bytes inflated"):
        decode_compressed_registration(zlib.compress(bytes(REGISTRATION_BYTES_MAX + 1)))
