"""A call encodes its header, and decodes the response or raises its error."""

import pytest

from rmq_spark.client.errors import NotFound, ProtocolError
from rmq_spark.client.transport.remoting_client import (
    TypedRequests,
    build_request,
    check_response,
    response_body,
    response_header,
)
from rmq_spark.wire.bodies.operators import TopicList
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.members import GetMaxOffsetRequestHeader
from rmq_spark.wire.remoting.command import RemotingCommand

MAX_OFFSET = RequestCode.GET_MAX_OFFSET
HEADER = GetMaxOffsetRequestHeader("T", 1)


def answered(answer):
    asked = []

    def ask(address, command, timeout_ms):
        asked.append((address, command, timeout_ms))
        return answer

    return TypedRequests(ask, 3_000), asked


def test_remoting_call_encodes_its_request_header_and_decodes_the_response_header():
    calls, asked = answered(RemotingCommand(0, ext_fields={"offset": "17"}))
    assert calls.header("h:1", MAX_OFFSET, HEADER).offset == 17
    ((address, command, timeout_ms),) = asked
    assert (address, command.code, timeout_ms) == ("h:1", 30, 3_000)
    assert command.ext_fields == {"topic": "T", "queueId": "1"}


def test_request_body_is_given_as_a_body_class_or_bytes():
    assert (
        build_request(34, None, TopicList(topic_list=frozenset({"T"}))).body
        == b'{"topicList":["T"]}'
    )
    assert build_request(320, None, b"x").body == b"x"


def test_unexpected_response_code_is_a_refusal():
    calls, _ = answered(RemotingCommand(22, remark="none"))
    with pytest.raises(NotFound, match="none"):
        calls.call("h:1", MAX_OFFSET, HEADER)
    assert calls.call("h:1", MAX_OFFSET, HEADER, accepted={22}, timeout_ms=1).remark == "none"
    assert check_response("h:1", MAX_OFFSET, RemotingCommand(0)).code == 0


def test_response_without_required_fields_is_a_protocol_error():
    with pytest.raises(ProtocolError, match=r"extFields\.offset"):
        response_header("h:1", MAX_OFFSET, RemotingCommand(0))
    with pytest.raises(ProtocolError):
        response_body("h:1", TopicList, RemotingCommand(0, body=b"<html>"))


def test_empty_response_body_decodes_to_defaults():
    calls, _ = answered(RemotingCommand(0))
    assert calls.body(TopicList, "h:1", 206) == TopicList()


def test_call_with_an_undefined_response_header_is_an_internal_error():
    with pytest.raises(TypeError):
        build_request(RequestCode.HEART_BEAT, HEADER)
    with pytest.raises(TypeError):
        response_header("h:1", RequestCode.HEART_BEAT, RemotingCommand(0))
