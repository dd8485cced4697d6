"""Responses to sends and pulls become results or errors."""

import numpy as np
import pytest

from rmq_spark.client.api.broker_api import pull_result, send_result
from rmq_spark.client.errors import BrokerRefused, MessageIllegal, ProtocolError
from rmq_spark.client.results import PullStatus, SendStatus
from rmq_spark.wire.chunk.sized_chunk import encode_sizes
from rmq_spark.wire.headers.members import SendMessageRequestHeader
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.command import RemotingCommand

SEND, PULL, PULL_CHUNK = 310, 11, 29_001
HEADER = SendMessageRequestHeader("P", "T", "TBW102", 4, 1, 0, 0, 0, broker_name="b")
STORED = {"msgId": "ID", "queueId": "1", "queueOffset": "7"}
FOUND = {"suggestWhichBrokerId": "1", "nextBeginOffset": "5", "minOffset": "2", "maxOffset": "9"}


def answer(code, fields, body=b"", remark=None):
    return RemotingCommand(code, flag=1, ext_fields=fields, body=body, remark=remark)


@pytest.mark.parametrize(
    ("code", "status"), [(0, SendStatus.SEND_OK), (10, SendStatus.FLUSH_DISK_TIMEOUT)]
)
def test_send_result_has_status_queue_and_offset(code, status):
    result = send_result("h:1", SEND, answer(code, STORED), HEADER, "unique")
    assert result[:5] == (status, "unique", MessageQueue("T", "b", 1), 7, "ID")


def test_refused_or_malformed_send_response_raises_an_error():
    with pytest.raises(MessageIllegal, match="too long"):
        send_result("h:1", SEND, answer(13, {}, remark="too long"), HEADER, "unique")
    with pytest.raises(ProtocolError, match="queueOffset"):
        send_result("h:1", SEND, answer(0, {**STORED, "queueOffset": "x"}), HEADER, "unique")


@pytest.mark.parametrize("status", PullStatus)
def test_pull_result_has_the_next_offset_for_every_status(status):
    result = pull_result("h:1", PULL, answer(status.value, FOUND, b"records"))
    assert result == (status, 5, 2, 9, 1, b"records", None, None)


@pytest.mark.parametrize(
    ("code", "body"), [(PULL, b""), (PULL_CHUNK, encode_sizes([]))], ids=["pull", "chunk"]
)
def test_pulled_refuses_the_status_found_without_records(code, body):
    """Otherwise a consumer would skip messages that it never got."""
    with pytest.raises(ProtocolError, match="status FOUND and no records"):
        pull_result("h:1", code, answer(0, FOUND, body))


def test_refused_pull_response_raises_broker_refused():
    with pytest.raises(BrokerRefused, match="no such group"):
        pull_result("h:1", PULL, answer(26, {}, remark="no such group"))


def test_chunk_response_starts_with_its_record_sizes():
    body = encode_sizes(np.array([3, 4])) + b"onetwo2"
    result = pull_result("h:1", PULL_CHUNK, answer(0, FOUND, body))
    assert (result.sizes.tolist(), bytes(result.records)) == ([3, 4], b"onetwo2")
    with pytest.raises(ProtocolError, match="sized chunk"):
        pull_result("h:1", PULL_CHUNK, answer(0, FOUND, b"\0\0\0\5"))
