"""Start and end of reads of a topic (words, times, offsets), and errors of invalid ones."""

from datetime import datetime, timedelta, timezone

import pytest

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.errors import BrokerRefused, MessageRejected, OffsetOutOfRange, RouteNotFound
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.reading.read_bounds import normalize_bound, resolve_read_ranges
from rmq_spark.wire.message_queue import MessageQueue

QUEUES = [MessageQueue("T", "broker-a", n) for n in range(2)]
NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
NOON_MS = 1_769_860_800_000


@pytest.fixture
def admin(running_broker):
    with Admin(running_broker.address) as made:
        made.create_topic("T", 2)
        with Producer("P", instance=made.instance) as producer:
            for number in range(20):
                producer.send(Message("T", b"%d" % number), QUEUES[0])
        yield made


def offsets(admin, start="earliest", end="latest"):
    spans = resolve_read_ranges(admin.instance, "T", start, end)
    return [(span.queue.queue_id, span.start, span.end) for span in spans]


def times(admin):
    rows = admin.read_table("T", columns=["storeTimestamp"]).to_pydict()["storeTimestamp"]
    return [
        (each - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(milliseconds=1)
        for each in rows
    ]


def test_read_bound_words_mean_the_ends_of_each_queue(admin):
    assert offsets(admin) == [(0, 0, 20), (1, 0, 0)]
    assert offsets(admin, "latest") == [(0, 20, 20), (1, 0, 0)]
    assert offsets(admin, "latest", "earliest") == [(0, 20, 20), (1, 0, 0)]


def test_offset_map_as_read_bound_selects_the_queues_to_read(admin):
    assert offsets(admin, {QUEUES[0]: 5}) == [(0, 5, 20)]
    assert offsets(admin, end={QUEUES[0]: 5}) == [(0, 0, 5)]
    assert offsets(admin, {QUEUES[0]: 5}, {QUEUES[0]: 7}) == [(0, 5, 7)]
    assert offsets(admin, dict.fromkeys(QUEUES, 0)) == [(0, 0, 20), (1, 0, 0)]


@pytest.mark.parametrize("is_hint_given", [True, False])
def test_time_bound_is_the_first_message_stored_at_or_after_it(admin, monkeypatch, is_hint_given):
    stored = times(admin)

    def refused(*_):
        raise BrokerRefused(1, "no", "127.0.0.1:1", 29)

    monkeypatch.setattr(BrokerApi, "search_offset", (lambda *_: 13) if is_hint_given else refused)
    for time in (stored[0], stored[7], stored[-1]):
        assert offsets(admin, time)[0] == (0, stored.index(time), 20)
        assert offsets(admin, end=time)[0] == (0, 0, stored.index(time))
    assert offsets(admin, stored[-1] + 1) == [(0, 20, 20), (1, 0, 0)]
    assert offsets(admin, 0) == offsets(admin)


def test_datetime_bound_means_the_same_milliseconds_in_any_zone():
    assert normalize_bound("start", NOON) == NOON_MS
    assert normalize_bound("start", NOON.astimezone(timezone(timedelta(hours=5)))) == NOON_MS
    assert normalize_bound("start", NOON + timedelta(microseconds=1_999)) == NOON_MS + 1


@pytest.mark.parametrize(
    "text", ["2026-01-31T12:00:00Z", "2026-01-31 12:00", "2026-01-31T13:00+01:00"]
)
def test_time_text_as_read_bound_is_in_utc_or_its_own_zone(text):
    assert normalize_bound("start", text) == NOON_MS


def test_read_bound_counted_back_from_now(admin):
    assert offsets(admin, "-1h") == offsets(admin, "-1h", "LATEST") == offsets(admin)
    assert offsets(admin, end="-90 minutes") == [(0, 0, 0), (1, 0, 0)]


REJECTED = {
    "a word": ("newest", "needed .earliest."),
    "a number as a text": ("-10", "needed .earliest."),
    "no such day": ("2026-02-30", "needed .earliest."),
    "long before 1970": ("-99999d", "needed .earliest."),
    "no zone": (datetime(2026, 1, 31), "time zone"),  # noqa: DTZ001  # the error under test
    "seconds": (1_769_860_800, "if these are seconds, write 1769860800000"),
    "an offset": (10, "if this is an offset, write .queue: offset"),
    "before 1970": (-1, "milliseconds since 1970"),
    "another queue": ({MessageQueue("T", "broker-a", 2): 0}, "queues of T"),
}


@pytest.mark.parametrize("name", ["start", "end"])
@pytest.mark.parametrize(("bound", "why"), REJECTED.values(), ids=REJECTED)
def test_invalid_read_bound_is_refused(admin, name, bound, why):
    with pytest.raises(MessageRejected, match=why) as raised:
        offsets(admin, **{name: bound})
    assert name in str(raised.value)


@pytest.mark.parametrize(
    "bound", [None, 1.5, True, [QUEUES[0]], {"T": 0}, {0: 5}, {QUEUES[0]: "5"}]
)
def test_read_bound_of_wrong_type_is_refused_with_an_example(bound):
    with pytest.raises(TypeError, match=r"start.*: needed .+, found .+; for example: .+"):
        normalize_bound("start", bound)


def test_read_bound_offsets_outside_of_a_queue_are_refused(admin):
    with pytest.raises(OffsetOutOfRange, match="0 to 20, not 21"):
        offsets(admin, {QUEUES[0]: 21})
    with pytest.raises(OffsetOutOfRange, match="not -1"):
        offsets(admin, end={QUEUES[0]: -1})


def test_contradicting_read_bounds_are_refused(admin):
    needed = (
        r"end: needed a time that is not before the start, (\S+:00\.000Z), found '\S+:59\.999Z'"
    )
    with pytest.raises(MessageRejected, match=needed):
        offsets(admin, NOON, NOON_MS - 1)
    with pytest.raises(MessageRejected, match="end: needed the same queues as start"):
        offsets(admin, {QUEUES[0]: 0}, {QUEUES[1]: 0})


def test_read_of_a_missing_topic_names_it(admin):
    with pytest.raises(RouteNotFound, match="ordres"):
        resolve_read_ranges(admin.instance, "ordres", "earliest", "latest")
    with pytest.raises(MessageRejected, match="topic"):
        resolve_read_ranges(admin.instance, "no spaces", "earliest", "latest")
