"""Requests to a broker: results, refusals and malformed responses."""

import pytest
from support.servers.fake_servers import FakeServer, answering

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.errors import (
    BrokerRefused,
    NotSupported,
    ProtocolError,
    SubscriptionRejected,
    TopicNotFound,
)
from rmq_spark.client.results import PullStatus, SendStatus
from rmq_spark.client.transport.remoting_client import RemotingClient
from rmq_spark.wire.chunk import encode_chunk
from rmq_spark.wire.chunk.sized_chunk import encode_sizes
from rmq_spark.wire.codes import PullSysFlag
from rmq_spark.wire.headers.members import (
    AppendChunkRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeader,
)
from rmq_spark.wire.message.record import decode_records
from rmq_spark.wire.message_queue import MessageQueue

QUEUE = MessageQueue("T", "broker-a", 0)
SUBSCRIBED = PullSysFlag.SUBSCRIPTION.value


def send_header(topic="T", batch=False, **more):
    header = SendMessageRequestHeader(
        "P", topic, "TBW102", 4, 0, 0, 1_000, 0, "UNIQ_KEY\x01ID\x02", batch=batch
    )
    return header._replace(broker_name="broker-a", **more)


def pull_header(offset=0, sys_flag=SUBSCRIBED, suspend_ms=0, max_nums=32):
    return PullMessageRequestHeader(
        consumer_group="G",
        topic="T",
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=max_nums,
        sys_flag=sys_flag,
        commit_offset=0,
        suspend_timeout_millis=suspend_ms,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
    )


def bodies(result):
    return [stored.body for stored in decode_records(result.records)]


@pytest.fixture
def address(running_broker):
    return running_broker.address


def test_pull_result_has_status_and_offsets(api, address):
    api.send(address, send_header(), b"one", "ID")
    assert api.pull(address, pull_header(1)).pull_status is PullStatus.NO_NEW_MSG
    moved = api.pull(address, pull_header(9))
    assert (moved.pull_status, moved.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 1)
    unmatched = api.pull(address, pull_header()._replace(subscription="other"))
    assert (unmatched.pull_status, unmatched.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, 1)
    with pytest.raises(SubscriptionRejected):
        api.pull(address, pull_header()._replace(subscription="((", expression_type="SQL92"))
    with pytest.raises(TopicNotFound):
        api.pull(address, pull_header()._replace(topic="Nobody"))


def test_chunk_is_pulled_and_appended_with_its_sizes(api, address):
    api.send(address, send_header(), b"zero", "ID")
    agreement = api.agreement(address)
    assert api.supports_chunks(address)
    chunk = encode_chunk(
        {
            "topic": "T",
            "queueId": 0,
            "body": [b"one", b"two"],
            "bornHost": agreement.born_host,
            "storeHost": agreement.store_host,
        }
    )
    sized = encode_sizes(chunk.sizes) + chunk.data.to_pybytes()
    appended = api.append_chunk(address, AppendChunkRequestHeader("P", "T", 0), sized).result(10)
    assert (appended.queue_offset, appended.message_count) == (1, 2)
    found = api.pull_async(address, pull_header(max_nums=1_000), is_chunk=True).result(10)
    assert bodies(found) == [b"zero", b"one", b"two"]
    assert len(found.sizes) == 3
    wrong = AppendChunkRequestHeader("P", "T", 1)
    with pytest.raises(BrokerRefused):
        api.append_chunk(address, wrong, sized).result(10)


def test_send_result_shows_flush_timeout(api):
    def answer(request):
        if request.code == 310:
            return request.respond(
                10, "slow disk", {"msgId": "M", "queueId": "0", "queueOffset": "7"}
            )
        return None

    with FakeServer(answering(answer)) as server:
        result = api.send(server.address, send_header(), b"x", "ID")
    assert (result.send_status, result.queue_offset) == (SendStatus.FLUSH_DISK_TIMEOUT, 7)


@pytest.mark.parametrize("ext_fields", [{}, {"msgId": "M", "queueId": "x", "queueOffset": "7"}])
def test_malformed_send_response_is_a_protocol_error(api, ext_fields):
    with FakeServer(
        answering(lambda r: r.respond(0, None, ext_fields) if r.code == 310 else None)
    ) as server:
        with pytest.raises(ProtocolError):
            api.send(server.address, send_header(), b"x", "ID")
        with pytest.raises(ProtocolError):
            api.send_async(server.address, send_header(), b"x", "ID").result(10)


def test_offset_minus_one_of_rocketmq_4_9_is_read_as_0_or_none(api):
    def answer(request):
        return request.respond(0, None, {"offset": "-1"}) if request.code < 100 else None

    with FakeServer(answering(answer)) as server:
        assert api.min_offset(server.address, QUEUE) == 0
        assert api.query_consumer_offset(server.address, "G", QUEUE) is None


def test_failed_member_query_is_not_an_empty_group(api):
    def answer(request):
        return request.respond(1, "disk on fire") if request.code == 38 else None

    with (
        FakeServer(answering(answer)) as server,
        pytest.raises(BrokerRefused, match="disk on fire"),
    ):
        api.consumer_ids(server.address, "G")


def test_rocketmq_broker_does_not_support_chunks(api):
    with FakeServer(answering(lambda _: None)) as server:
        assert not api.supports_chunks(server.address)


def test_append_chunk_without_agreement_is_not_supported(running_broker):
    api = BrokerApi(RemotingClient(extensions=frozenset()))
    with pytest.raises(NotSupported):
        api.append_chunk(
            running_broker.address, AppendChunkRequestHeader("P", "T", 0), b"\0\0\0\0"
        ).result(10)
    api.connections.shutdown()


def test_requests_about_a_queue_name_its_broker_for_a_proxy(api):
    """Without the name, RocketMQ's proxy refuses: "Request doesn't have field bname"."""
    named = {}

    def answer(request):
        if request.code < 1_000:
            named[request.code] = request.ext_fields.get("bname")
            return request.respond(1, "refused")
        return None

    with FakeServer(answering(answer)) as server:
        for ask in (
            lambda at: api.max_offset(at, QUEUE),
            lambda at: api.min_offset(at, QUEUE),
            lambda at: api.search_offset(at, QUEUE, 0),
            lambda at: api.query_consumer_offset(at, "G", QUEUE),
            lambda at: api.update_consumer_offset(at, "G", QUEUE, 1),
            lambda at: api.peek(at, "G", QUEUE, 0),
        ):
            with pytest.raises(BrokerRefused, match="refused"):
                ask(server.address)
    assert named == dict.fromkeys([30, 31, 29, 14, 15, 11], "broker-a")
