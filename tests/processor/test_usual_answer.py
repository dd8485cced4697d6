"""Responses from templates decode to the same values as those of the codecs."""

import pytest
from support.brokers.connections import FakeConnection

from rmq_spark.wire.codes import LanguageCode, SerializeType
from rmq_spark.wire.remoting.command import RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import FrameReader
from rocketpoll.broker.processor.fast_paths import ResponseTemplate

ANSWER = ResponseTemplate(
    {"nextBeginOffset": "%d", "minOffset": "%s%04X"},
    {"suggestWhichBrokerId": "0", "50%": "%s"},
    "FOUND",
)


@pytest.mark.parametrize("serialize_type", SerializeType)
@pytest.mark.parametrize("opaque", [0, 1, -1, 1_234_567_890, (1 << 31) - 1])
@pytest.mark.parametrize("body", [(), (b"some ", memoryview(b"pieces"))])
def test_response_template_equals_the_encoded_answer(serialize_type, opaque, body):
    connection = FakeConnection()
    request = RemotingCommand(
        11, opaque=opaque, serialize_type=serialize_type, language=LanguageCode.JAVA, version=433
    )
    ANSWER.send(connection, request, 5, "at ", 171, body=body)
    fields = {
        "suggestWhichBrokerId": "0",
        "50%": "%s",
        "nextBeginOffset": "5",
        "minOffset": "at 00AB",
    }
    (sent,) = connection.sent
    assert sent == request.respond(0, "FOUND", fields, b"".join(body))


def test_oneway_request_gets_no_fast_answer():
    connection = FakeConnection()
    ANSWER.send(connection, RemotingCommand(11, flag=2), 5, "", 1)
    assert connection.sent == []


def test_response_template_answers_to_many_equal_single_answers():
    answer = ResponseTemplate({"at": "%s%04X"}, {"region": "köln"})
    one_by_one, together = FakeConnection(), FakeConnection()
    rows = [("x", number, 10**number) for number in range(10)]
    for *values, opaque in rows:
        answer.send(one_by_one, RemotingCommand(310, opaque=opaque), *values)
    frames = []
    together.send_frame = frames.append
    answer.send_all(together, [])
    assert frames == []
    answer.send_all(together, rows)
    reader = FrameReader()
    reader.feed(*frames)
    read = [decode_command(reader.next_frame()) for _ in rows]
    assert read == one_by_one.sent
    assert reader.next_frame() is None
