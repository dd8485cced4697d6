"""Attempts of one send share its timeout; only errors that a retry can help are retried."""

from types import SimpleNamespace

import pytest

from rmq_spark.client.errors import (
    BrokerRefused,
    ConnectionClosed,
    ConnectionFailed,
    RequestTimeout,
    SendFailed,
    TopicNotFound,
)
from rmq_spark.client.producer import sync_sender as sends
from rmq_spark.client.producer.sync_sender import SyncSender
from rmq_spark.client.producer.topic_sender import QueueSelector
from rmq_spark.client.results import SendResult, SendStatus
from rmq_spark.wire.message_queue import MessageQueue

QUEUES = [MessageQueue("T", name, 0) for name in "abc"]
PREPARED = SimpleNamespace(
    topic="T", header=lambda queue: queue, body=b"x", message_id="id", is_reply=False
)


class Brokers:
    """Brokers with the answers and delays that the test sets."""

    def __init__(self):
        self.now, self.answers, self.asked, self.reached, self.refreshed = 1_000.0, [], [], [], []
        self.waited = []
        self.refreshed_soon = 0
        self.away, self.told = {}, []

    def monotonic(self):
        return self.now

    def master_address(self, broker_name):
        return broker_name

    def refresh_within(self, topic, seconds):
        self.refreshed.append(topic)
        self.waited.append(seconds)
        self.now += seconds  # a silent name server takes time

    def refresh_routes_soon(self):
        self.refreshed_soon += 1

    def connect(self, address, timeout_ms):
        self.reached.append((address, timeout_ms))
        if address in self.away:
            self.now += min(timeout_ms / 1000, self.away[address])
            raise ConnectionFailed(address, "nobody is there")

    def send_one_way(self, address, header, body, *, is_reply):  # noqa: ARG002  # the client's signature
        assert body == b"x"
        assert header.broker_name == address
        self.told.append(address)

    def send(self, address, header, body, message_id, timeout_ms, *, is_reply):  # noqa: ARG002  # the client's signature
        assert body == b"x"
        self.asked.append((address, timeout_ms))
        seconds, answer = self.answers.pop(0)
        self.now += seconds
        if isinstance(answer, Exception):
            raise answer
        return SendResult(answer, message_id, header, 0, "offset id")

    @property
    def brokers(self):
        return [address for address, _ in self.asked]


@pytest.fixture
def brokers(monkeypatch):
    brokers = Brokers()
    monkeypatch.setattr(sends, "time", brokers)
    return brokers


@pytest.fixture
def sending(brokers):
    def make(*answers, retries=2, retries_not_ok=False):
        brokers.answers = [each if isinstance(each, tuple) else (0.0, each) for each in answers]
        instance = SimpleNamespace(
            routes=brokers,
            connections=brokers,
            api=brokers,
            refresh_routes_soon=brokers.refresh_routes_soon,
        )
        sender = SimpleNamespace(
            instance=instance,
            queue_selector=QueueSelector(brokers.monotonic, lambda _: False),
            publish_queues=lambda _: QUEUES,
            tracer=None,
            strip_result=lambda result: result,
        )
        return SyncSender(sender, retries=retries, is_retried_when_not_ok=retries_not_ok)

    return make


OK = SendStatus.SEND_OK
NOT_SAFE = SendStatus.FLUSH_DISK_TIMEOUT
CLOSED = ConnectionClosed("a", "gone")
LATE = RequestTimeout("a", 310, 1_000)


def test_send_stops_after_success(sending, brokers):
    assert sending(OK).send(PREPARED, 3_000).send_status is OK
    assert len(brokers.asked) == 1


def test_send_retry_chooses_another_broker(sending, brokers):
    assert sending(CLOSED, LATE, OK).send(PREPARED, 3_000).send_status is OK
    assert len(brokers.asked) == 3
    assert all(
        first != second for first, second in zip(brokers.brokers, brokers.brokers[1:], strict=False)
    )


def test_send_error_lists_all_tries(sending):
    with pytest.raises(SendFailed) as raised:
        sending(CLOSED, LATE, CLOSED).send(PREPARED, 3_000)
    assert raised.value.tries == (CLOSED, LATE, CLOSED)


@pytest.mark.parametrize(("left_ms", "tries"), [(49, 1), (51, 2)])
def test_send_is_not_retried_with_too_little_time_left(sending, brokers, left_ms, tries):
    """Otherwise the producer would give up while the broker stores the message."""
    late = ((3_000 - left_ms) / 1000, LATE)
    with pytest.raises(SendFailed):
        sending(late, (1.0, LATE), LATE).send(PREPARED, 3_000)
    assert len(brokers.asked) == tries


def test_first_send_try_is_made_even_with_a_millisecond_left(sending, brokers):
    assert sending(OK).send(PREPARED, 1).send_status is OK
    assert brokers.asked == [(brokers.brokers[0], 1)]


def test_slow_connect_shares_the_send_timeout_between_tries(sending, brokers):
    sending((1.0, LATE), (1.0, LATE), OK).send(PREPARED, 3_000)
    assert [timeout_ms for _, timeout_ms in brokers.reached] == [1_000, 1_000, 1_000]
    assert [timeout_ms for _, timeout_ms in brokers.asked] == [3_000, 2_000, 1_000]


def test_send_error_that_no_retry_can_help_is_raised_at_once(sending, brokers):
    refused = BrokerRefused(13, "illegal", "a", 310)
    with pytest.raises(BrokerRefused) as raised:
        sending(refused).send(PREPARED, 3_000)
    assert raised.value is refused
    assert len(brokers.asked) == 1


@pytest.mark.parametrize(
    ("error", "refreshes"),
    [
        (LATE, 0),
        (CLOSED, 1),
        (ConnectionFailed("a", "no"), 1),
        (TopicNotFound(17, "no", "a", 310), 1),
        (BrokerRefused(1, "request queueId[3] is illegal", "a", 310), 1),
        (BrokerRefused(14, "not now", "a", 310), 0),
    ],
)
def test_send_retry_refreshes_route_only_if_topic_may_have_moved(
    sending, brokers, error, refreshes
):
    sending(error, OK).send(PREPARED, 3_000)
    assert brokers.refreshed == ["T"] * refreshes


def test_silent_name_servers_do_not_block_sends_to_a_known_broker(sending, brokers):
    brokers.away = {"a": 0.0, "b": 0.0}
    sending(OK, retries=2).send(PREPARED, 3_000)
    assert [address for address, _ in brokers.asked] == ["c"]
    assert brokers.waited == [0] * len(brokers.waited)
    assert brokers.now == 1_000.0


@pytest.mark.parametrize(
    "error", [CLOSED, BrokerRefused(1, "request queueId[3] is illegal", "a", 310)]
)
def test_silent_name_servers_cost_a_send_to_the_only_broker_its_share_of_the_time(
    sending, brokers, error
):
    sends = sending(error, error, OK, retries=2)
    sends._sender.publish_queues = lambda _: QUEUES[:1]
    sends.send(PREPARED, 3_000)
    assert brokers.waited == pytest.approx([1.0, 1.0])
    assert brokers.now == pytest.approx(1_002.0)


@pytest.mark.parametrize("retries", [0, 2])
def test_last_send_try_refreshes_the_route_in_background(sending, brokers, retries):
    with pytest.raises(SendFailed):
        sending((3.0 if retries else 0.0, CLOSED), retries=retries).send(PREPARED, 3_000)
    assert (brokers.refreshed, brokers.refreshed_soon) == ([], 1)


def test_route_lookup_counts_against_the_send_timeout(sending, brokers):
    sends = sending(OK)

    def found_late(_):
        brokers.now += 2.0
        return QUEUES

    sends._sender.publish_queues = found_late
    sends.send(PREPARED, 3_000)
    assert brokers.asked == [(brokers.brokers[0], 1_000)]


@pytest.mark.parametrize("second", [CLOSED, BrokerRefused(13, "illegal", "a", 310)])
def test_send_not_safely_stored_keeps_its_result_if_the_retry_fails(sending, second):
    result = sending(NOT_SAFE, second, retries=1, retries_not_ok=True).send(PREPARED, 3_000)
    assert result.send_status is NOT_SAFE


def test_oneway_send_skips_unreachable_brokers(sending, brokers):
    brokers.away = {"a": 0.0, "b": 60.0}
    sends = sending(retries=2)
    for _ in range(6):
        sends.send_one_way(PREPARED, 3_000)
    assert set(brokers.told) == {"c"}
    assert len(brokers.told) == 6
    assert brokers.refreshed, "it may live elsewhere now"


def test_oneway_send_without_reachable_broker_fails_within_timeout(sending, brokers):
    brokers.away = dict.fromkeys("abc", 60.0)
    began = brokers.now
    with pytest.raises(SendFailed) as caught:
        sending(retries=2).send_one_way(PREPARED, 3_000)
    assert len(caught.value.tries) == 3
    assert brokers.now - began == pytest.approx(3.0)
    assert not brokers.told


def test_oneway_send_to_a_fixed_queue_has_one_try(sending, brokers):
    brokers.away = {"a": 0.0}
    with pytest.raises(ConnectionFailed):
        sending(retries=2).send_one_way_once(PREPARED, QUEUES[0], 3_000)
    assert brokers.reached == [("a", 3_000)]
