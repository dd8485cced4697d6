"""Commands of the broker to clients."""

import pytest

from rmq_spark.errors import HeaderError
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.members import ConsumerGroupRequestHeader
from rocketpoll.broker.processor.request import one_way_command, request_command


def test_one_way_command_needs_no_answer_and_a_request_does():
    header = ConsumerGroupRequestHeader("g")
    told = one_way_command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, b"body")
    assert (told.code, told.ext_fields, told.body) == (40, {"consumerGroup": "g"}, b"body")
    assert told.is_one_way
    assert not told.is_response
    asked = request_command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
    assert not asked.is_one_way
    assert asked.body == b""


def test_request_command_for_a_code_without_a_header_is_refused():
    with pytest.raises(HeaderError, match="a code with a header"):
        request_command(RequestCode.GET_BROKER_CONFIG, None)
