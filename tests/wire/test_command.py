"""Remoting commands in Java's bytes."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.messages.wire_strategies import commands
from support.rocketmq import java_vectors

from rmq_spark.errors import HeaderError
from rmq_spark.wire.codes import CommandFlag, LanguageCode, RequestCode, ResponseCode, SerializeType
from rmq_spark.wire.remoting.command import RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import HEADER_BYTES_MAX, Frame, FrameReader
from rmq_spark.wire.remoting.header import EXT_FIELDS_MAX


def read_one(data: bytes) -> RemotingCommand:
    reader = FrameReader()
    reader.feed(data)
    frame = reader.next_frame()
    assert frame is not None
    assert reader.buffered_bytes == 0
    return decode_command(frame)


@given(commands)
@example(RemotingCommand(11, serialize_type=SerializeType.ROCKETMQ))
def test_remoting_command_round_trip(command):
    assert read_one(command.encode()) == command


@given(commands, st.binary(min_size=1, max_size=9))
def test_remoting_command_is_decoded_byte_by_byte_and_with_trailing_bytes(command, trailing):
    reader = FrameReader()
    data = command.encode()
    for byte in data[:-1]:
        reader.feed(bytes([byte]))
        assert reader.next_frame() is None
    reader.feed(data[-1:] + trailing)
    frame = reader.next_frame()
    assert frame is not None
    assert decode_command(frame) == command


@java_vectors.each("frames")
def test_javas_frames_are_read_as_java_reads_them(vector):
    command = read_one(bytes.fromhex(vector["frame"]))
    assert command.code == vector["code"]
    assert command.language.name == vector["language"]
    assert command.version == vector["version"]
    assert command.opaque == vector["opaque"]
    assert command.flag == vector["flag"]
    assert command.serialize_type.name == vector["serializeType"]
    assert bytes(command.body).hex() == (vector["body"] or "")
    # The binary header cannot distinguish null from empty.
    assert (command.remark or "") == (vector["remark"] or "")
    ext = vector["ext"] or {}
    assert {key: value or "" for key, value in command.ext_fields.items()} == {
        "" if key == "null" else key: value or "" for key, value in ext.items()
    }


NOT_WRITTEN_LIKE_JAVA = {
    "4.9.7-odd-ext-control-characters-JSON": "4.9 escapes DEL, NEL, U+2028 and U+2029",
    "4.9.7-odd-signed-310-ROCKETMQ": "Java writes the header's fields, and their map once more",
    "5.5.0-odd-signed-310-ROCKETMQ": "the same",
}


@java_vectors.each("frames")
def test_javas_frames_are_written_with_the_same_bytes(vector, name):
    data = bytes.fromhex(vector["frame"])
    if name in NOT_WRITTEN_LIKE_JAVA:
        assert read_one(read_one(data).encode()) == read_one(data)
        return
    # A response without fields has an empty object in Java's JSON, and nothing in ours.
    ours_of = data.replace(b'"extFields":{},', b"")
    if ours_of != data:
        lengths = len(ours_of) - 4 - len(bytes.fromhex(vector["body"] or ""))
        ours_of = (
            len(ours_of[4:]).to_bytes(4, "big") + (lengths - 4).to_bytes(4, "big") + ours_of[8:]
        )
    assert read_one(data).encode() == ours_of


def test_command_flags_distinguish_requests_responses_and_oneway():
    request = RemotingCommand(RequestCode.HEART_BEAT)
    assert not request.is_response
    assert not request.is_one_way
    assert RemotingCommand(40, flag=CommandFlag.ONE_WAY).is_one_way
    assert RemotingCommand(0, flag=CommandFlag.RESPONSE).is_response


@pytest.mark.parametrize("serialize_type", SerializeType)
def test_response_repeats_opaque_and_codec_of_its_request(serialize_type):
    request = RemotingCommand(
        105, opaque=77, serialize_type=serialize_type, ext_fields={"topic": "T"}
    )
    answer = read_one(
        request.respond(ResponseCode.TOPIC_NOT_EXIST, "no such topic", body=b"x").encode()
    )
    assert answer.is_response
    assert (answer.opaque, answer.code, answer.remark) == (77, 17, "no such topic")
    assert answer.serialize_type is serialize_type
    assert answer.language is LanguageCode.PYTHON
    assert answer.ext_fields == {}
    assert answer.body == b"x"


def test_encode_head_precedes_a_body_sent_separately():
    command = RemotingCommand(0, body=b"records")
    assert command.encode_head(len(b"records")) + b"records" == command.encode()


@pytest.mark.parametrize("serialize_type", SerializeType)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"code": 1 << 40}, "code: needed an integer"),
        ({"code": True}, "code: needed an integer.*found True"),
        ({"code": "11"}, "code: needed an integer.*found '11'"),
        ({"code": None}, "code: needed an integer.*found None"),
        ({"opaque": None}, "opaque: needed an integer.*found None"),
        (
            {"code": RequestCode.PULL_MESSAGE, "opaque": None},
            "opaque: needed an integer.*found None",
        ),
        ({"version": None}, "version: needed an integer.*found None"),
        ({"flag": 1.5}, "flag: needed an integer.*found 1.5"),
        ({"language": 3}, "language: needed a LanguageCode, found 3"),
        ({"remark": 5}, "remark: needed text, found 5"),
        (
            {"ext_fields": {f"k{n}": "" for n in range(EXT_FIELDS_MAX + 1)}},
            "extFields: needed at most 128",
        ),
        ({"ext_fields": {"k": "v" * HEADER_BYTES_MAX}}, f"needed at most {HEADER_BYTES_MAX} bytes"),
        ({"ext_fields": {"k" * 9999: 5}}, r"kkk\.\.\.: needed text"),
    ],
)
def test_unencodable_command_is_refused(serialize_type, change, message):
    command = RemotingCommand(11, serialize_type=serialize_type)._replace(**change)
    with pytest.raises(HeaderError, match=message) as caught:
        command.encode()
    assert len(str(caught.value)) < 400


def test_unknown_serialize_type_is_named():
    with pytest.raises(HeaderError, match="at byte 4: needed serialize type 0, 1 or 2, found 9"):
        decode_command(Frame(9, memoryview(b""), memoryview(b"")))
