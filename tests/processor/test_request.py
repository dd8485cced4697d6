"""Request handlers: typed headers, JSON bodies, refusals, and permission checks."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.brokers.connections import FakeConnection
from support.disks.faulty_disk import FaultyDisk, ManualClock, Refusal
from support.stores.small_store import message, open_store

from rmq_spark.errors import BodyError, HeaderError
from rmq_spark.wire.bodies.clients import HeartbeatData
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers.members import OffsetResponseHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.processor.queues import (
    NO_TIME,
    check_queue,
    earliest_timestamp,
    require_topic,
    store_timestamp,
)
from rocketpoll.broker.processor.request import (
    RequestRejected,
    body_of,
    header_of,
    negotiated,
    not_supported,
    reply,
    success_response,
)


def test_header_of_decodes_by_the_requests_code():
    request = RemotingCommand(RequestCode.GET_MAX_OFFSET, ext_fields={"topic": "T", "queueId": "3"})
    assert (header_of(request).topic, header_of(request).queue_id) == ("T", 3)
    with pytest.raises(HeaderError, match="queueId"):
        header_of(request._replace(ext_fields={"topic": "T"}))
    with pytest.raises(HeaderError, match="a code with a header"):
        header_of(
            RemotingCommand(next(code for code, each in HEADERS.items() if each.request is None))
        )


def test_long_json_body_must_be_strict_json():
    """Parsing lenient JSON takes a hundred times as long."""
    long = b'{"clientID":"%s",%s:1}'
    request = RemotingCommand(RequestCode.HEART_BEAT, body=long % (b"c" * 20_000, b'"0"'))
    assert len(body_of(request, HeartbeatData).client_id) == 20_000
    with pytest.raises(BodyError, match="strict JSON in over 16384 bytes"):
        body_of(request._replace(body=long % (b"c" * 20_000, b"0")), HeartbeatData)
    assert body_of(request._replace(body=long % (b"c", b"0")), HeartbeatData).client_id == "c"


def test_missing_request_body_is_refused():
    request = RemotingCommand(RequestCode.HEART_BEAT, body=b'{"clientID":"c"}')
    assert body_of(request, HeartbeatData).client_id == "c"
    with pytest.raises(RequestRejected, match="request 34 needs a body") as raised:
        body_of(request._replace(body=b""), HeartbeatData)
    assert raised.value.code is ResponseCode.SYSTEM_ERROR


def test_success_response_has_a_header_a_body_or_neither():
    request = RemotingCommand(RequestCode.GET_MAX_OFFSET, opaque=5)
    assert success_response(request, OffsetResponseHeader(7)).ext_fields == {"offset": "7"}
    assert success_response(request, body=HeartbeatData(client_id="c")).body.startswith(b'{"')
    assert success_response(request) == request.respond(0, None, {})
    with pytest.raises(HeaderError, match="a code with a header"):
        success_response(
            RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET), OffsetResponseHeader(7)
        )


@pytest.mark.parametrize(("flag", "sent"), [(0, 1), (2, 0)])
def test_late_reply_is_sent_unless_oneway(flag, sent):
    connection, request = FakeConnection(), RemotingCommand(10, flag=flag)
    reply(connection, request, request.respond(0))
    assert len(connection.sent) == sent


@pytest.mark.parametrize(("code", "feature"), [(513, "static topics"), (200_070, "lite topics")])
def test_request_of_a_feature_that_is_not_served_names_the_feature(code, feature):
    refusal = not_supported(RemotingCommand(code))
    assert refusal.code is ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert refusal.remark == f" request type {code} not supported: this broker has no {feature}"


def test_extension_request_without_agreement_is_not_supported():
    connection, request = FakeConnection(), RemotingCommand(29001)
    handle = negotiated(Extension.PULL_CHUNK, lambda _, request: request.respond(0))
    connection.extensions = frozenset([Extension.APPEND_CHUNK])
    with pytest.raises(RequestRejected, match=" request type 29001 not supported") as raised:
        handle(connection, request)
    assert raised.value.code is ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    connection.extensions = frozenset([Extension.PULL_CHUNK])
    assert handle(connection, request).code == 0


# ---- which queues exist for requests


def test_require_topic_refuses_a_missing_topic(parts):
    assert require_topic(parts.topics, "T").topic_name == "T"
    with pytest.raises(RequestRejected, match=r"topic\[U\] not exist") as refusal:
        require_topic(parts.topics, "U")
    assert refusal.value.code == ResponseCode.TOPIC_NOT_EXIST


@given(queue_id=st.integers(-3, 12), read=st.integers(1, 6), write=st.integers(1, 6))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_queue_exists_if_it_is_readable_writable_or_holds_messages(parts, queue_id, read, write):
    if not parts.store.queue_offsets("T", 9).next:
        parts.put("x", queue_id=9)
    parts.make_topic("T", queues=read, write=write)
    is_there = 0 <= queue_id < max(read, write) or queue_id == 9
    try:
        check_queue(parts.store, parts.topics.get("T"), queue_id)
    except RequestRejected as refusal:
        assert not is_there
        assert refusal.code == ResponseCode.SYSTEM_ERROR
    else:
        assert is_there


# ---- store times of messages by offset


def test_store_timestamp_of_a_message_is_found_by_offset(room):
    start = room.clock()
    room.put("first", start + 10)
    room.put("second", start + 20)
    assert [store_timestamp(room.store, "T", 0, offset) for offset in (0, 1)] == [
        start + 10,
        start + 20,
    ]


def test_store_timestamp_without_message_is_none(room):
    room.put("only")
    assert [store_timestamp(room.store, "T", 0, offset) for offset in (-1, 1, 2)] == [NO_TIME] * 3
    assert store_timestamp(room.store, "T", 1, 0) == NO_TIME
    assert store_timestamp(room.store, "nowhere", 0, 0) == NO_TIME


def test_unreadable_message_has_no_store_timestamp(tmp_path):
    disk, clock = FaultyDisk(), ManualClock()
    store = open_store(tmp_path, disk, clock=clock, mapped_file_size_commit_log=1 << 20)
    start = clock.now_ms
    store.put_message(message("x" * 5_000))
    clock.now_ms += 20
    store.put_message(message("readable"))
    disk.unreadable.append(Refusal("commitlog", 0))
    assert [store_timestamp(store, "T", 0, at) for at in (0, 1)] == [NO_TIME, start + 20]
    assert earliest_timestamp(store, "T", 0) == NO_TIME
    disk.unreadable.clear()
    assert earliest_timestamp(store, "T", 0) == start
    store.shutdown()
