"""Messages sent back: delay, origin, limits, and dead letters."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.brokers.connections import FakeConnection, finished
from support.brokers.processors import (
    SlowAcknowledger,
    nobody_waits,
    open_parts,
    refused,
    saved_at_once,
)
from support.stores.small_store import STORE_HOST, encoded, message, read_all, small_config

from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.codes import RequestCode as Code
from rmq_spark.wire.codes import ResponseCode as Answer
from rmq_spark.wire.headers.members import ConsumerSendMsgBackRequestHeader
from rmq_spark.wire.message.hosts import parse_host
from rmq_spark.wire.message.message_id import encode_offset_message_id
from rocketpoll.broker.processor.sends.admission import RetryRules, TopicAdmission
from rocketpoll.broker.processor.sends.message_back import MessageBackProcessor
from rocketpoll.broker.processor.sends.send_message import SendParts
from rocketpoll.broker.settings.config import BrokerConfig
from rocketpoll.broker.state.broker_stats import BrokerStats
from rocketpoll.broker.store.append.record_encoding import draft_of
from rocketpoll.broker.store.results import PutMessageStatus

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
ADVERTISED = parse_host("10.0.0.2:9876")


class Room:
    """A processor and the parts that it uses."""

    def __init__(self, parts, *, permission=6, is_sync=False, host=ADVERTISED, levels=18):
        self.parts = parts
        self.disk = SlowAcknowledger(is_sync=is_sync)
        self.stats = BrokerStats("DefaultCluster", parts.clock.now_ms)
        self.busy = None
        delays = tuple(range(1_000, 1_000 * levels + 1, 1_000))
        config = BrokerConfig(
            store=small_config(parts.root, message_delay_level_ms=delays),
            broker_permission=permission,
        )
        admission = TopicAdmission(config, parts.topics, saved_at_once, nobody_waits)
        self.processor = MessageBackProcessor(
            parts.broker(
                config=config,
                stats=self.stats,
                advertised_host=lambda _: host,
                busy_reason=lambda: self.busy,
            ),
            SendParts(admission, RetryRules(admission, parts.groups), self.disk),
            choose_queue=lambda queues: queues - 1,
        )

    def put(self, **more):
        """Store a message; return its physical offset."""
        changes = {
            name: more.pop(name) for name in ("reconsume_times", "sys_flag", "flag") if name in more
        }
        sent = replace(message("body", tags="a", keys="k", **more), **changes)
        return self.parts.store.put_message(sent).physical_offset

    def ask(self, physical_offset, level=0, group="g", *, client=None, **more):
        client = client or FakeConnection()
        header = ConsumerSendMsgBackRequestHeader(physical_offset, group, level, **more)
        return client, client.ask(Code.CONSUMER_SEND_MSG_BACK, header)

    def send_back(self, physical_offset, level=0, **more):
        client, request = self.ask(physical_offset, level, **more)
        answer = self.processor.consumer_send_msg_back(client, request) or client.sent.pop()
        assert answer.code == Answer.SUCCESS

    def refused(self, *arguments, **more):
        return refused(self.processor.consumer_send_msg_back, *self.ask(*arguments, **more))

    def waiting(self, level):
        """Return the messages that wait in a delay level."""
        return read_all(self.parts.store, SCHEDULE, level - 1)


@pytest.fixture
def room(parts):
    return Room(parts)


def test_sent_back_message_is_delayed_for_its_groups_retry_topic(room, parts):
    place = room.put(WAIT="false", flag=7, queue_id=2)
    room.send_back(place)
    (found,) = room.waiting(3)
    assert found.body == b"body"
    assert found.properties == {
        "KEYS": "k",
        "TAGS": "a",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": encode_offset_message_id(STORE_HOST, place),
        "DELAY": "3",
        "REAL_TOPIC": "%RETRY%g",
        "REAL_QID": "0",
    }
    (original,) = read_all(parts.store, "T", 2)
    assert (found.flag, found.reconsume_times) == (7, 1)
    assert (found.born_timestamp, found.born_host) == (original.born_timestamp, original.born_host)
    assert found.store_host == ADVERTISED
    assert parts.topics.get("%RETRY%g").write_queue_nums == 1
    assert parts.groups.get("g") is not None
    finished(room.stats.sample(parts.clock.now_ms + 10_000))
    assert room.stats.data("SNDBCK_PUT_NUMS", "T@g").stats_minute.sum == 1


def test_send_back_statistics_count_existing_topics_only(room, parts):
    """A sender may name any topic as origin, so the number of names is unlimited."""
    for number in range(3):
        room.send_back(room.put(RETRY_TOPIC=f"{number}" + "y" * 1_000))
    room.send_back(room.put(RETRY_TOPIC="../T"))
    room.send_back(room.put(RETRY_TOPIC="T"))
    assert room.waiting(3)[0].properties["RETRY_TOPIC"] == "0" + "y" * 1_000
    assert [key for key in room.stats._sums if key[0] == "send back"] == [("send back", "T@g")]


@pytest.mark.parametrize(
    ("asked", "times", "level"),
    [
        *[(0, 0, 3), (0, 1, 4), (0, 15, 18), (5, 0, 5), (5, 9, 5), (99, 0, 18)],
        *[(0, -1, 2), (0, -2, 1), (0, -3, 1), (0, -(1 << 31), 1), (4, -(1 << 31), 4)],
    ],
)
def test_send_back_delay_grows_unless_the_consumer_sets_one(room, asked, times, level):
    room.send_back(room.put(reconsume_times=times), asked)
    (found,) = room.waiting(level)
    assert found.reconsume_times == times + 1


def test_send_back_delay_is_capped_at_the_brokers_last_level(parts):
    room = Room(parts, levels=2)
    room.send_back(room.put())
    assert len(room.waiting(2)) == 1


def test_repeated_retry_keeps_its_first_origin(room):
    place = room.put(topic="%RETRY%g", reconsume_times=1, RETRY_TOPIC="T", ORIGIN_MESSAGE_ID="ID")
    room.send_back(place)
    (found,) = room.waiting(4)
    assert found.properties["RETRY_TOPIC"] == "T"
    assert found.properties["ORIGIN_MESSAGE_ID"] == "ID"


def test_send_back_drops_delay_properties_of_a_real_rocketmq(room):
    place = room.put(
        topic="%RETRY%g", DELAY="9", REAL_TOPIC="%RETRY%other", REAL_QID="7", RETRY_TOPIC="T"
    )
    room.send_back(place, -1)
    (found,) = read_all(room.parts.store, "%DLQ%g", 0)
    assert set(found.properties) == {"KEYS", "TAGS", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID"}


def test_message_sent_back_too_often_becomes_a_dead_letter(room, parts):
    room.send_back(room.put(reconsume_times=15))
    assert read_all(parts.store, "%DLQ%g", 0) == []
    room.send_back(room.put(reconsume_times=16))
    (found,) = read_all(parts.store, "%DLQ%g", 0)
    assert found.reconsume_times == 17
    assert found.properties["RETRY_TOPIC"] == "T"
    assert "DELAY" not in found.properties
    assert parts.topics.get("%DLQ%g").perm == 6


def test_send_back_keeps_reconsume_times_beyond_the_counter(room, parts):
    room.send_back(room.put(reconsume_times=(1 << 31) - 1))
    (found,) = read_all(parts.store, "%DLQ%g", 0)
    assert found.reconsume_times == (1 << 31) - 1


@pytest.fixture
def large_room(tmp_path):
    """Return a room with files large enough for the longest properties."""
    parts = open_parts(tmp_path, mapped_file_size_commit_log=1 << 20)
    parts.make_topic("T")
    yield Room(parts)
    parts.store.shutdown()


def given_back(room):
    queues = [(SCHEDULE, level) for level in range(18)] + [("%DLQ%g", 0)]
    return sum(room.parts.store.queue_offsets(*queue).next for queue in queues)


INT32 = st.one_of(
    st.integers(-(1 << 31), (1 << 31) - 1), st.sampled_from([-(1 << 31), -3, 0, (1 << 31) - 1])
)


@given(
    times=INT32,
    level=INT32,
    most=st.none() | INT32,
    flags=st.tuples(INT32, INT32),
    spare=st.integers(0, 600),
)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_send_back_always_stores_the_message_in_retry_or_dead_letter_topic(
    large_room, times, level, most, flags, spare
):
    room = large_room
    before = given_back(room)
    place = room.put(
        reconsume_times=times, flag=flags[0], sys_flag=flags[1] & 0xF, long="v" * (32_700 - spare)
    )
    room.send_back(place, level, max_reconsume_times=most)
    assert given_back(room) == before + 1


LOG_BYTES = 4096


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    spare=st.integers(0, 400) | st.just(0),
    topic=st.sampled_from(["T", "T" * 127]),
    group=st.sampled_from(["g", "g" * 247]),
    host=st.sampled_from([ADVERTISED, parse_host("[2001:db8::1]:5000")]),
    level=st.sampled_from([-1, 0, 1, 18]),
    delay=st.sampled_from([None, "3"]),
)
def test_send_back_accepts_every_message_that_a_client_may_send(
    tmp_path_factory, spare, topic, group, host, level, delay
):
    """Even a message whose retry record would not fit into a log file is accepted."""
    parts = open_parts(tmp_path_factory.mktemp("store"), mapped_file_size_commit_log=LOG_BYTES)
    parts.make_topic(topic)
    parts.groups.put(SubscriptionGroupConfig(group_name=group))
    room = Room(parts, host=host)
    sent = message("", topic, keys="k", DELAY=delay)
    body = "x" * (parts.store.record_bytes_max - len(encoded(sent)) - spare)
    stored = parts.store.put_draft(draft_of(replace(sent, body=body.encode())))
    assert stored.status is PutMessageStatus.PUT_OK
    room.send_back(stored.physical_offset, level, group=group)
    queues = [(SCHEDULE, each) for each in range(18)] + [(f"%DLQ%{group}", 0)]
    assert sum(len(read_all(parts.store, *queue)) for queue in queues) == 1
    parts.store.shutdown()


def test_send_back_of_a_message_too_large_for_retry_keeps_the_original(tmp_path, caplog):
    """Another broker may have stored such a message, up to the end of a file."""
    parts = open_parts(tmp_path, mapped_file_size_commit_log=LOG_BYTES)
    parts.make_topic("T")
    room = Room(parts)
    body = "x" * (LOG_BYTES - 8 - len(encoded(message(""))))
    for level in (0, -1):
        stored = parts.store.put_message(message(body))
        assert stored.status is PutMessageStatus.PUT_OK
        room.send_back(stored.physical_offset, level)
        assert f"stays at offset {stored.queue_offset} of queue 0 of T" in caplog.text
        [loss] = parts.losses.recent()
        assert f"stays at offset {stored.queue_offset} of" in loss.text
    assert room.stats.failed_messages_dropped == {"retries_disabled": 0, "unstorable": 2}
    assert given_back(room) == 0
    assert len(read_all(parts.store, "T", 0)) == 2
    parts.store.shutdown()


def test_message_without_space_for_its_origin_becomes_a_dead_letter(large_room):
    place = large_room.put(long="v" * 32_700)
    large_room.send_back(place)
    (found,) = read_all(large_room.parts.store, "%DLQ%g", 0)
    (original,) = read_all(large_room.parts.store, "T", 0)
    assert (found.properties, found.body) == (original.properties, original.body)
    assert found.reconsume_times == 1


@pytest.mark.parametrize(("version", "is_dead"), [(121, True), (120, False)])
def test_consumers_retry_limit_counts_from_a_new_enough_version(room, parts, version, is_dead):
    client = FakeConnection(version=version)
    room.send_back(room.put(reconsume_times=2), client=client, max_reconsume_times=2)
    assert len(read_all(parts.store, "%DLQ%g", 0)) == is_dead
    assert len(room.waiting(5)) == (not is_dead)


def test_groups_retry_settings_apply_to_sent_back_messages(room, parts):
    parts.groups.put(SubscriptionGroupConfig(group_name="g", retry_max_times=1, retry_queue_nums=3))
    room.send_back(room.put())
    assert parts.topics.get("%RETRY%g").write_queue_nums == 3
    assert room.waiting(3)[0].properties["REAL_QID"] == "2"
    room.send_back(room.put(reconsume_times=1))
    assert len(read_all(parts.store, "%DLQ%g", 0)) == 1


def test_group_without_retry_queues_gets_no_retries(room, parts):
    parts.groups.put(SubscriptionGroupConfig(group_name="g", retry_queue_nums=0))
    room.send_back(room.put())
    assert parts.topics.get("%RETRY%g") is None
    assert room.waiting(3) == []
    assert room.stats.failed_messages_dropped["retries_disabled"] == 1
    [loss] = parts.losses.recent()
    assert (loss.kind, loss.is_failure) == ("failed without retry", False)


def test_send_back_records_ipv6_store_host(parts):
    room = Room(parts, host=parse_host("[::1]:9876"))
    room.send_back(room.put())
    (found,) = room.waiting(3)
    assert str(found.store_host) == "[::1]:9876"
    assert found.sys_flag & MessageSysFlag.STORE_HOST_V6
    again = Room(parts)
    again.send_back(found.physical_offset)
    assert again.waiting(4)[0].store_host == ADVERTISED


def test_group_with_a_long_name_gets_retries_and_dead_letters(room, parts):
    group = "g" * 248
    room.send_back(room.put(), group=group)
    assert room.waiting(3)[0].properties["REAL_TOPIC"] == "%RETRY%" + group
    room.send_back(room.put(), -1, group=group)
    assert len(read_all(parts.store, "%DLQ%" + group, 0)) == 1


def test_sync_flush_send_back_is_answered_after_the_flush(parts):
    room = Room(parts, is_sync=True)
    client = FakeConnection()
    assert room.processor.consumer_send_msg_back(*room.ask(room.put(), client=client)) is None
    assert client.sent == []
    room.disk.stored()
    assert client.codes() == [Answer.SUCCESS]
    assert client.sent[0].opaque == 7


def test_send_back_answers_flush_timeout_if_flush_fails(parts):
    room = Room(parts, is_sync=True)
    client = FakeConnection()
    room.processor.consumer_send_msg_back(*room.ask(room.put(), client=client))
    room.disk.stored(PutMessageStatus.FLUSH_DISK_TIMEOUT)
    assert client.codes() == [Answer.FLUSH_DISK_TIMEOUT]


def test_send_back_refused_by_store_answers_the_reason(room, parts):
    place = room.put()
    parts.store.stop_accepting("the disk is 95% full, over 90%")
    client, request = room.ask(place)
    room.processor.consumer_send_msg_back(client, request)
    (answer,) = client.sent
    assert answer.code == Answer.SERVICE_NOT_AVAILABLE
    assert answer.remark == "the disk is 95% full, over 90%"


def test_send_back_of_a_missing_message_is_refused(room):
    place = room.put()
    for wrong in (place + 1, 1 << 40, -1):
        assert room.refused(wrong) == (
            Answer.SYSTEM_ERROR,
            f"look message by offset failed, {wrong}",
        )


def test_send_back_without_permission_answers_the_reason(tmp_path, parts, room):
    place = room.put()
    assert Room(parts, permission=4).refused(place)[0] == Answer.NO_PERMISSION
    room.busy = "[REJECTREQUEST]system busy"
    assert room.refused(place) == (Answer.SYSTEM_BUSY, "[REJECTREQUEST]system busy")
    strict = open_parts(tmp_path / "strict", auto_create=False)
    assert Room(strict).refused(0)[0] == Answer.SUBSCRIPTION_GROUP_NOT_EXIST
    strict.store.shutdown()


@pytest.mark.parametrize(("topic", "level"), [("%RETRY%g", 0), ("%DLQ%g", -1)])
def test_send_back_to_an_unwritable_topic_is_refused(room, parts, topic, level):
    parts.make_topic(topic, perm=4)
    code, remark = room.refused(room.put(), level)
    assert code == Answer.NO_PERMISSION
    assert topic in remark


UNIQUE = "7F0000010A1B2C3D4E5F000000000001"
FRESH = {"topic": "NS%T", "UNIQ_KEY": UNIQUE}
RETRIED = {"topic": "%RETRY%g", "RETRY_TOPIC": "NS%T"}


@pytest.mark.parametrize(
    ("stored", "message_id", "topic"),
    [
        (FRESH, UNIQUE, "T"),
        (FRESH, UNIQUE, "whatever a listener has made of it"),
        (FRESH, "its place", "NS%T"),
        (FRESH, "its place", "T"),
        (FRESH, "", "NS%T"),
        (FRESH, None, None),
        (RETRIED, "its place in small letters", "%RETRY%g"),
        (RETRIED, "its place", "NS%T"),
        (RETRIED, "its place", "T"),
    ],
)
def test_send_back_identifies_the_message_by_any_of_its_ids(room, stored, message_id, topic):
    place = room.put(**stored)
    by_place = encode_offset_message_id(STORE_HOST, place)
    names = {"its place": by_place, "its place in small letters": by_place.lower()}
    room.send_back(place, 3, origin_msg_id=names.get(message_id, message_id), origin_topic=topic)
    assert len(room.waiting(3)) == 1


@pytest.mark.parametrize(
    ("message_id", "topic"),
    [
        (UNIQUE, "T"),
        (encode_offset_message_id(STORE_HOST, 77), "T"),
        ("its place", "Other"),
        ("", "Other"),
        (None, "Other"),
    ],
)
def test_send_back_refuses_another_message_at_the_given_offset(room, message_id, topic):
    """For example after an older copy of the store was restored: the client then sends the message
    itself."""
    place = room.put(UNIQ_KEY=UNIQUE[:-1] + "2")
    by_place = encode_offset_message_id(STORE_HOST, place)
    given = by_place if message_id == "its place" else message_id
    code, remark = room.refused(place, origin_msg_id=given, origin_topic=topic)
    assert code == Answer.SYSTEM_ERROR
    assert remark == f"look message by offset failed, {place}: another message is there"
    missing, _ = room.refused(1 << 40, origin_msg_id=given, origin_topic=topic)
    assert missing == code
    assert not room.waiting(3)
