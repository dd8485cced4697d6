"""The pull processor: its response for each status of the store, holds and replays."""

from dataclasses import replace

import pytest
from support.brokers.connections import FakeConnection, finished
from support.brokers.processors import refused
from support.brokers.state_tables import room
from support.clients.remoting_clients import pull_request
from support.stores.small_store import small_config

from rmq_spark.errors import HeaderError
from rmq_spark.wire.bodies.clients import ConsumerData, SubscriptionData
from rmq_spark.wire.chunk import record_locations
from rmq_spark.wire.chunk.record_locations import decode_located
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.extensions import Extension
from rocketpoll.broker.processor.pulls.pull_message import PullMessageProcessor
from rocketpoll.broker.processor.pulls.subscription_filters import CACHED_MAX, SubscriptionFilters
from rocketpoll.broker.processor.request import RequestRejected
from rocketpoll.broker.settings.config import BrokerConfig, HoldLimits
from rocketpoll.broker.state.broker_stats import BrokerStats
from rocketpoll.broker.state.members.client_channel_info import ClientChannelInfo
from rocketpoll.broker.state.members.consumers import ConsumerManager
from rocketpoll.broker.store.results import GetMessageResult, GetMessageStatus


class Room:
    """A processor, its clock, and a hold service that records holds."""

    def __init__(self, parts, store=None, **settings):
        self.parts = parts
        self.held = []
        self.accepts = True
        self.config = BrokerConfig(store=small_config(parts.root), **settings)
        self.stats = BrokerStats("C", 0)
        self.consumers = ConsumerManager(lambda _: None, room())
        self.processor = PullMessageProcessor(
            parts.broker(
                config=self.config,
                store=store or parts.store,
                consumers=self.consumers,
                stats=self.stats,
                monotonic_ms=lambda: 1_000_000,
                suspend=self.suspend,
            ),
            SubscriptionFilters(self.config.filters),
        )
        self.connection = FakeConnection()

    def suspend(self, request):
        self.held.append(request)
        return self.accepts

    def pull(self, *given, **named):
        answer = finished(
            self.processor.pull_message(self.connection, pull_request(*given, **named))
        )
        return answer or (self.connection.sent.pop() if self.connection.sent else None)


class Finding:
    """A store that returns what the test sets, and records the arguments."""

    def __init__(self, status, buffers=(), next_begin_offset=40):
        sizes = [len(each) for each in buffers]
        self.result = GetMessageResult(status, next_begin_offset, 3, 40, tuple(buffers), sizes)
        self.asked = []

    def get_message(self, *given, **named):
        self.asked.append((given, named))
        return self.result

    def queue_offsets(self, _topic, _queue_id):
        return 3, 40


STATUSES = {
    # status: code, and whether the pull is held
    GetMessageStatus.NO_MATCHED_MESSAGE: (20, False),
    GetMessageStatus.MESSAGE_WAS_REMOVING: (20, False),
    GetMessageStatus.OFFSET_FOUND_NULL: (19, True),
    GetMessageStatus.OFFSET_OVERFLOW_ONE: (19, True),
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: (21, False),
    GetMessageStatus.OFFSET_TOO_SMALL: (21, False),
    GetMessageStatus.NO_MESSAGE_IN_QUEUE: (21, False),
}


@pytest.mark.parametrize(
    ("status", "row"), STATUSES.items(), ids=lambda each: getattr(each, "name", "")
)
def test_each_store_status_has_its_pull_code_and_two_are_held(parts, status, row):
    code, is_held = row
    room = Room(parts, Finding(status))
    answer = room.pull(5)
    assert (answer.code, answer.remark) == (code, status.name)
    assert answer.ext_fields == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "40",
        "minOffset": "3",
        "maxOffset": "40",
    }
    assert room.held == []
    assert (room.pull(5, suspend_ms=5_000) is None) is is_held
    assert len(room.held) == is_held


def test_empty_pulls_are_counted_with_their_time(parts):
    room = Room(parts, Finding(GetMessageStatus.OFFSET_OVERFLOW_ONE))
    times = iter([1_000, 1_007, 2_000, 2_003])
    room.processor._now_ms = times.__next__
    room.pull(5)
    room.pull(5)
    finished(room.stats.sample(10_000))
    assert room.stats.rates().missed.ten_seconds == 0.2
    assert (room.stats.got_messages, room.stats.get_latency_ms_max) == (0, 7)


def test_store_status_table_covers_every_status():
    assert {*STATUSES, GetMessageStatus.FOUND} == set(GetMessageStatus)


def test_pull_of_an_empty_queue_is_held_at_its_start(parts):
    room = Room(parts, Finding(GetMessageStatus.NO_MESSAGE_IN_QUEUE))
    assert room.pull(0).code == 19
    assert room.pull(0, suspend_ms=5_000) is None
    assert len(room.held) == 1


def test_held_pull_past_the_queue_end_ignores_messages_before_its_offset(parts):
    """The message at its offset is in the log, but earlier ones are dispatched first."""
    room = Room(parts, Finding(GetMessageStatus.OFFSET_OVERFLOW_ONE, next_begin_offset=43))
    assert room.pull(43, suspend_ms=5_000) is None
    (held,) = room.held
    assert held.no_match_before == 43


@pytest.mark.parametrize(
    ("asked", "limits", "waits"),
    [
        (15_000, HoldLimits(), 15_000),
        (-1, HoldLimits(), 1_000),
        (1 << 62, HoldLimits(), 60_000),
        (15_000, HoldLimits(long_polling_enable=False), 1_000),
        (15_000, HoldLimits(long_polling_enable=False, short_polling_time_ms=300), 300),
    ],
)
def test_held_pull_keeps_header_only_and_bounded_timeout(parts, asked, limits, waits):
    room = Room(parts, holds=limits)
    assert room.pull(0, suspend_ms=asked, opaque=9) is None
    (held,) = room.held
    assert (held.suspend_timestamp_ms, held.timeout_ms) == (1_000_000, waits)
    assert held.queue == ("T", 0)
    assert (held.request.opaque, dict(held.request.ext_fields), held.request.body) == (9, {}, b"")


@pytest.mark.parametrize(
    ("fields", "is_kept"),
    [
        ({"brokerName": "x", "proxyFrowardClientId": "x"}, False),
        ({"sysFlag": "2", "subscription": "x", "expressionType": "TAG"}, False),
        ({"subscription": "x", "expressionType": "TAG"}, True),
    ],
)
def test_held_pull_keeps_only_the_fields_that_its_replay_needs(parts, fields, is_kept):
    room = Room(parts)
    room.consumers.register(
        ClientChannelInfo(room.connection, "c", "JAVA", 1, 0),
        ConsumerData(group_name="G", subscription_data_set=(SubscriptionData(topic="T"),)),
    )
    long = {name: text.replace("x", "x" * 60_000) for name, text in fields.items()}
    request = pull_request(0, suspend_ms=5_000)
    request = request._replace(remark="x" * 240_000, ext_fields={**request.ext_fields, **long})
    assert finished(room.processor.pull_message(room.connection, request)) is None
    (held,) = room.held
    texts = [each for each in (*held.header, *held.request) if isinstance(each, str)]
    assert (sum(map(len, texts)) > 60_000) is is_kept
    assert held.quota_cost == (43 if is_kept else 1)


def test_pull_that_cannot_be_held_is_refused_as_busy(parts):
    room = Room(parts)
    room.accepts = False
    code, remark = refused(
        room.processor.pull_message, room.connection, pull_request(0, suspend_ms=5_000)
    )
    assert (code, remark) == (
        ResponseCode.SYSTEM_BUSY,
        "no more pulls can be held: raise maxHolds, or pull from fewer queues",
    )


def test_pull_of_missing_entries_with_later_messages_is_not_held(parts):
    """A file of the queue is missing; the client must continue after it."""
    room = Room(parts, Finding(GetMessageStatus.OFFSET_FOUND_NULL, next_begin_offset=17))
    answer = room.pull(5, suspend_ms=5_000)
    assert (answer.code, answer.ext_fields["nextBeginOffset"], room.held) == (19, "17", [])


def test_pull_of_missing_entries_at_the_queue_end_is_held(parts):
    room = Room(parts, Finding(GetMessageStatus.OFFSET_FOUND_NULL))
    assert room.pull(5, suspend_ms=5_000) is None
    assert [held.no_match_before for held in room.held] == [40]


def test_pull_of_a_congested_client_is_not_held(parts):
    room = Room(parts)
    room.connection.is_congested = True
    assert room.pull(0, suspend_ms=5_000).code == 19


def test_replayed_pull_is_never_held_again(parts):
    room = Room(parts)
    room.pull(0, suspend_ms=5_000, opaque=9, commit_offset=4)
    (held,) = room.held
    again = room.processor.execute_request_when_wakeup(held)
    assert (again.code, again.opaque, len(room.held)) == (19, 9, 1)
    parts.offsets.commit("G", "T", 0, 2)
    parts.put("a")
    assert room.processor.execute_request_when_wakeup(held) is None
    (sent,) = room.connection.sent
    assert (sent.code, sent.opaque, sent.ext_fields["nextBeginOffset"]) == (0, 9, "1")
    assert parts.offsets.query("G", "T", 0) == 2


def test_replayed_pull_of_a_congested_client_gets_no_messages(parts):
    room = Room(parts)
    room.pull(0, suspend_ms=5_000, opaque=9)
    parts.put("a", "b")
    room.connection.is_congested = True
    answer = room.processor.execute_request_when_wakeup(room.held[0])
    assert (answer.code, answer.remark) == (19, "congested")
    assert answer.ext_fields["nextBeginOffset"] == "0"
    assert answer.ext_fields["maxOffset"] == "2"


def test_sql_filter_of_held_pull_is_matched_against_all_new_messages(parts):
    room = Room(parts)
    room.pull(0, suspend_ms=5_000, subscription="price = 7", expression_type="SQL92")
    parts.put(*range(3_000), price="6")

    def matched(*arguments):
        return finished(room.processor.is_matched_by_commit_log(*arguments))

    assert not matched(room.held[0], 0)
    parts.put("it", price="7")
    assert matched(room.held[0], 0)
    assert matched(room.held[0], 3_000)
    assert not matched(room.held[0], 3_001)


def test_texts_of_held_pulls_are_not_parsed_again_when_more_are_held_than_remembered(
    parts, monkeypatch
):
    room = Room(parts)
    count = CACHED_MAX + 20
    for number in range(count):
        text = f"price = {number}"
        room.pull(0, suspend_ms=5_000, subscription=text, expression_type="SQL92")
    assert len(room.held) == count
    parts.put("it", price=str(count))
    monkeypatch.setattr("rocketpoll.broker.filter.sql_parser.compile_sql", None)
    for held in room.held:
        assert not finished(room.processor.is_matched_by_commit_log(held, 0))
    answer = room.processor.execute_request_when_wakeup(room.held[0])
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (20, "1")


def test_sql_filter_of_held_pull_checks_a_bounded_number_of_messages(parts, monkeypatch):
    monkeypatch.setattr(
        "rocketpoll.broker.processor.pulls.pull_message._EXTENDED_ENTRIES_FILTERED", 1_000
    )
    room = Room(parts)
    room.pull(0, suspend_ms=5_000, subscription="price = 7", expression_type="SQL92")
    parts.put(*range(700), price="6")
    assert not finished(room.processor.is_matched_by_commit_log(room.held[0], 0))
    parts.put(*range(5_000), price="6")
    assert finished(room.processor.is_matched_by_commit_log(room.held[0], 0))
    answer = room.processor.execute_request_when_wakeup(room.held[0])
    assert (answer.code, 0 < int(answer.ext_fields["nextBeginOffset"]) <= 1_000) == (20, True)


class Expiring:
    """A queue whose messages before an offset have expired, and that has none past its end."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def get_message(self, _topic, _queue_id, _queue_offset, **_):
        status, next_begin_offset = self.answers.pop(0)
        return GetMessageResult(status, next_begin_offset, 3, 40)


PASSED_OVER = [
    GetMessageStatus.OFFSET_TOO_SMALL,
    GetMessageStatus.MESSAGE_WAS_REMOVING,
    GetMessageStatus.OFFSET_FOUND_NULL,
    GetMessageStatus.NO_MATCHED_MESSAGE,
]


@pytest.mark.parametrize("status", PASSED_OVER)
@pytest.mark.parametrize(
    ("then", "is_match"),
    [(GetMessageStatus.FOUND, True), (GetMessageStatus.OFFSET_OVERFLOW_ONE, False)],
)
def test_held_pull_finds_match_past_expired_messages(parts, status, then, is_match):
    room = Room(parts)
    room.pull(0, suspend_ms=5_000)
    room.processor._store = Expiring((status, 7), (then, 7))
    assert finished(room.processor.is_matched_by_commit_log(room.held[0], 0)) is is_match


@pytest.mark.parametrize(
    ("status", "next_begin_offset"),
    [(GetMessageStatus.OFFSET_OVERFLOW_BADLY, 40), (GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0)],
)
def test_held_pull_is_woken_if_its_queue_is_truncated_or_deleted(parts, status, next_begin_offset):
    room = Room(parts)
    room.pull(0, suspend_ms=5_000)
    room.processor._store = Expiring((status, next_begin_offset))
    assert finished(room.processor.is_matched_by_commit_log(room.held[0], 50))


def test_held_pull_is_woken_if_its_group_has_left(parts):
    room = Room(parts)
    room.pull(0, suspend_ms=5_000)
    held = replace(room.held[0], header=room.held[0].header._replace(sys_flag=2))
    assert finished(room.processor.is_matched_by_commit_log(held, 0))
    with pytest.raises(RequestRejected) as raised:
        room.processor.execute_request_when_wakeup(held)
    assert raised.value.code is ResponseCode.SUBSCRIPTION_NOT_EXIST


def limits_of(found):
    named = found.asked[-1][1]
    return named["count_max"], named["bytes_max"], named["scan_max"]


def test_pull_limits_of_count_bytes_and_scan_are_capped(parts):
    found = Finding(GetMessageStatus.NO_MATCHED_MESSAGE)
    room = Room(parts, found)
    room.connection.extensions = frozenset(["all"])
    room.pull(0, count=10, bytes_max=1_000)
    assert limits_of(found) == (10, 1_000, 800)
    room.pull(0, count=10_000, bytes_max=1 << 30)
    assert limits_of(found) == (32, 262_144, 800)
    room.pull(0, count=-5)
    assert limits_of(found) == (1, 262_144, 800)


def test_chunk_pull_limits_of_count_bytes_and_scan_are_capped(parts):
    found = Finding(GetMessageStatus.NO_MATCHED_MESSAGE)
    room = Room(parts, found)
    chunk = {"code": RequestCode.PULL_CHUNK, "count": 100_000}
    room.pull(0, **chunk)
    assert limits_of(found) == (100_000, 8 << 20, 300_000)
    room.pull(0, bytes_max=1 << 30, subscription="a = 1", expression_type="SQL92", **chunk)
    assert limits_of(found) == (100_000, 8 << 20, 4_000)


def test_pull_places_are_sent_to_clients_with_the_extension(monkeypatch, parts):
    monkeypatch.setattr(record_locations, "RUN_BYTES_MIN", 1)
    room = Room(parts)
    parts.put(*"abc")
    asks = {"code": RequestCode.PULL_PLACES, "count": 100, "bytes_max": 1 << 20}
    handle = room.processor.handlers()[RequestCode.PULL_PLACES]
    room.connection.extensions = frozenset([Extension.PULL_CHUNK])
    with pytest.raises(RequestRejected, match="not supported"):
        handle(room.connection, pull_request(0, **asks))
    room.connection.extensions = frozenset([Extension.READ_FILES])
    assert finished(handle(room.connection, pull_request(0, **asks))) is None
    found = decode_located(room.connection.sent.pop().body)
    chunk = parts.store.get_message("T", 0, 0, count_max=100, bytes_max=1 << 20)
    assert found.sizes.tolist() == list(chunk.sizes)
    assert found.physical_offsets.tolist() == list(chunk.physical_offsets)
    assert not found.records


def test_pull_of_scattered_records_returns_their_bytes(parts):
    room = Room(parts)
    parts.put("a", "b")
    room.connection.extensions = frozenset([Extension.READ_FILES])
    found = decode_located(room.pull(0, code=RequestCode.PULL_PLACES).body)
    assert found.physical_offsets is None
    assert len(found.sizes) == 2
    assert len(found.records) == sum(found.sizes.tolist())


def test_pulled_messages_are_counted_in_group_tps(parts):
    room = Room(parts)
    parts.put("a", "b")
    assert room.pull(0).code == 0
    finished(room.stats.sample(10_000))
    assert room.stats.group_get_tps("G", ["T"]) > 0


def test_pull_with_an_invalid_header_is_refused(parts):
    with pytest.raises(HeaderError):
        Room(parts).processor.pull_message(FakeConnection(), pull_request()._replace(ext_fields={}))
