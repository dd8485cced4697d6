"""The send processor: retries and dead letters, delays, and when a send is answered."""

from collections.abc import Generator
from dataclasses import replace

import pytest
from support.brokers.connections import FakeConnection, finished
from support.brokers.processors import (
    SlowAcknowledger,
    never_parked,
    nobody_waits,
    open_parts,
    saved_at_once,
)
from support.clients.remoting_clients import batch_request, send_request
from support.stores.small_store import bodies, components_of, read_all, small_config

from rmq_spark.wire.codes import MessageSysFlag, RequestCode, ResponseCode
from rmq_spark.wire.message.hosts import parse_host
from rmq_spark.wire.message.message_id import decode_offset_message_id
from rocketpoll.broker.processor.dispatcher import RequestDispatcher
from rocketpoll.broker.processor.request import RequestRejected
from rocketpoll.broker.processor.sends import batch_messages, send_message
from rocketpoll.broker.processor.sends.admission import RetryRules, TopicAdmission
from rocketpoll.broker.processor.sends.send_message import SendMessageProcessor, SendParts
from rocketpoll.broker.settings.config import BrokerConfig
from rocketpoll.broker.store.append.column_batches import FixedSizeBatch, VariableSizeBatch
from rocketpoll.broker.store.append.record_encoding import RecordRun
from rocketpoll.broker.store.results import PutMessageStatus

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


class Room:
    """A processor and one client."""

    def __init__(
        self, parts, *, is_sync=False, host="10.0.0.2:9876", remote="10.0.0.9:40000", **settings
    ):
        self.parts = parts
        self.disk = SlowAcknowledger(is_sync=is_sync)
        self.busy = None
        self.connection = FakeConnection(remote=remote)
        config = BrokerConfig(store=small_config(parts.root), **settings)
        admission = TopicAdmission(config, parts.topics, saved_at_once, nobody_waits)
        self.processor = SendMessageProcessor(
            parts.broker(
                config=config,
                advertised_host=lambda _: parse_host(host),
                busy_reason=lambda: self.busy,
            ),
            SendParts(admission, RetryRules(admission, parts.groups), self.disk),
        )
        self._dispatch = RequestDispatcher([self.processor.handlers()], 1_024, never_parked)

    def ask(self, request):
        answer = self._dispatch(self.connection, request)
        self.processor.end_turn()
        return answer or (self.connection.sent.pop() if self.connection.sent else None)

    def send(self, *given, **named):
        return self.ask(send_request(*given, **named))


def test_busy_broker_refuses_every_kind_of_send(parts):
    room = Room(parts)
    room.busy = "the disk is slow"
    for request in (
        send_request("a"),
        send_request("a", code=RequestCode.SEND_MESSAGE),
        batch_request("a"),
    ):
        answer = room.ask(request)
        assert (answer.code, answer.remark) == (2, "the disk is slow")
    assert bodies(parts.store) == []


def test_flush_timeout_answer_has_all_fields(parts):
    room = Room(parts, is_sync=True)
    room.send("a", opaque=8)
    room.disk.stored(PutMessageStatus.FLUSH_DISK_TIMEOUT)
    (answer,) = room.connection.sent
    assert (answer.code, answer.opaque) == (10, 8)
    assert answer.ext_fields["queueOffset"] == "0"
    assert set(answer.ext_fields) == {"msgId", "queueId", "queueOffset", "MSG_REGION", "TRACE_ON"}


def test_delayed_message_is_stored_under_its_level_with_its_real_queue(parts):
    room = Room(parts)
    answer = room.send("later", queue_id=3, properties={"DELAY": "5", "WAIT": "true"})
    assert (answer.code, answer.ext_fields["queueId"]) == (0, "3")
    (stored,) = read_all(parts.store, SCHEDULE, 4)
    assert stored.body == b"later"
    assert stored.properties["REAL_TOPIC"] == "T"
    assert stored.properties["REAL_QID"] == "3"
    assert "WAIT" not in stored.properties
    assert bodies(parts.store, "T", 3) == []


def test_delay_level_above_the_last_is_clamped(parts):
    Room(parts).send("later", properties={"DELAY": "99"})
    assert bodies(parts.store, SCHEDULE, 17) == ["later"]


def retry(room, times, limit=None, **named):
    request = send_request("again", topic="%RETRY%G", **named)
    fields = {**request.ext_fields, "j": str(times)}
    if limit is not None:
        fields["l"] = str(limit)
    return room.ask(request._replace(ext_fields=fields))


def test_retry_respects_max_reconsume_times_of_the_consumer(parts):
    room = Room(parts)
    assert retry(room, 2, limit=2).code == 0
    assert bodies(parts.store, "%DLQ%G") == ["again"]


def test_delayed_retry_waits_and_a_dead_letter_drops_its_delay(parts):
    room = Room(parts)
    retry(room, 1, properties={"DELAY": "3"})
    assert bodies(parts.store, SCHEDULE, 2) == ["again"]
    retry(room, 50, properties={"DELAY": "3"})
    (dead,) = read_all(parts.store, "%DLQ%G", 0)
    assert "DELAY" not in dead.properties


def test_retry_of_an_unknown_group_without_auto_creation_is_refused(tmp_path):
    from support.brokers.processors import open_parts  # noqa: PLC0415  # parts with other settings than the fixture's

    parts = open_parts(tmp_path, auto_create=False)
    assert retry(Room(parts), 1).code == 26
    parts.store.shutdown()


@pytest.mark.parametrize(
    ("remote", "host", "flags"),
    [
        ("10.0.0.9:40000", "10.0.0.2:9876", 0),
        ("[2001:db8::9]:40000", "10.0.0.2:9876", MessageSysFlag.BORN_HOST_V6),
        ("10.0.0.9:40000", "[2001:db8::2]:9876", MessageSysFlag.STORE_HOST_V6),
    ],
)
def test_hosts_of_either_version_are_stored_and_flags_of_the_sender_about_them_are_not(
    parts, remote, host, flags
):
    room = Room(parts, remote=remote, host=host)
    wrong = (
        MessageSysFlag.BORN_HOST_V6
        | MessageSysFlag.STORE_HOST_V6
        | MessageSysFlag.TRANSACTION_COMMIT
    )
    answer = room.send("a", sys_flag=int(wrong | MessageSysFlag.MULTI_TAGS))
    assert answer.code == 0
    (stored,) = read_all(parts.store, "T", 0)
    assert stored.sys_flag == flags | MessageSysFlag.MULTI_TAGS
    assert (stored.born_host, stored.store_host) == (parse_host(remote), parse_host(host))
    assert decode_offset_message_id(answer.ext_fields["msgId"]) == (parse_host(host), 0)


def test_retry_topic_name_may_exceed_127_characters(parts):
    group = "G" * 200
    request = send_request("again", topic=f"%RETRY%{group}")
    assert Room(parts).ask(request).code == 0
    assert bodies(parts.store, f"%RETRY%{group}") == ["again"]


def test_sends_of_a_turn_are_written_and_answered_together(parts):
    room = Room(parts)
    for text in ("a", "b", "c"):
        assert room._dispatch(room.connection, send_request(text)) is None
    assert room.connection.sent == []
    assert parts.store.state().written_offset == 0
    room.processor.end_turn()
    places = [int(answer.ext_fields["queueOffset"]) for answer in room.connection.sent]
    assert places == [0, 1, 2]
    queue_id = int(room.connection.sent[0].ext_fields["queueId"])
    assert bodies(parts.store, "T", queue_id) == ["a", "b", "c"]


def test_batch_over_the_message_size_limit_is_refused_unparsed(parts):
    room = Room(parts)
    room.processor._batches._bytes_max = 1_000
    answer = room.ask(batch_request(*["x" * 100] * 10))
    assert (answer.code, answer.remark.endswith("is over 1000 (maxMessageSize)")) == (13, True)
    assert room.ask(batch_request(*["x" * 100] * 5)).code == 0
    assert parts.store.queue_offsets("T", 0) == (0, 5)


@pytest.mark.parametrize("count", [50, 2_000])
def test_batch_is_refused_if_its_topic_is_closed_meanwhile(parts, monkeypatch, count):
    """The batch takes many steps, between which operators' requests are served."""
    room = Room(parts)
    monkeypatch.setattr(send_message, "LARGE_BATCH_BYTES", 100)
    request = batch_request(*("x" * 20 for _ in range(count)))
    steps = room.processor.send_message(room.connection, request)
    next(steps)
    parts.topics.put(replace(parts.topics.get("T"), perm=4))
    with pytest.raises(RequestRejected, match="may not be written"):
        finished(steps)
    assert parts.store.queue_offsets("T", 0) == (0, 0)


def test_broker_splits_only_a_few_large_batches_at_a_time(parts, monkeypatch):
    """The limit allows two here; a single one is always allowed."""
    room = Room(parts)
    request = batch_request(*("x" * 20 for _ in range(2_000)))
    monkeypatch.setattr(batch_messages, "SPLITTING_BYTES_MAX", 2 * len(request.body))

    def begun():
        steps = room.processor.send_message(room.connection, request)
        for _ in range(6):
            next(steps)
        return steps

    first, second = begun(), begun()
    with pytest.raises(RequestRejected, match=r"busy, batches of \d+ bytes are being") as raised:
        begun()
    assert raised.value.code is ResponseCode.SYSTEM_BUSY
    first.close()  # its client has disconnected
    third = begun()
    finished(second)
    finished(third)
    assert len(room.connection.sent) == 2
    monkeypatch.setattr(batch_messages, "SPLITTING_BYTES_MAX", 1)
    finished(begun())
    assert len(room.connection.sent) == 3


def test_number_of_messages_in_a_batch_is_limited(parts, monkeypatch):
    """A batch of the maximum number of messages is refused here only for its size."""
    room = Room(parts)
    monkeypatch.setattr(batch_messages, "BATCH_MESSAGES_MAX", 512)

    def send(count):
        request = batch_request(*("x" * 100 for _ in range(count)))
        finished(room.processor.send_message(room.connection, request))
        return room.connection.sent.pop().remark

    with pytest.raises(RequestRejected, match="the batch has over 512 messages: split it"):
        send(513)
    assert "into one file" in send(512)
    assert parts.store.state().written_offset == 0


class BatchKinds:
    """A store that records the types of batches."""

    def __init__(self, store):
        self._store = store
        self.kinds = []

    def __getattr__(self, name):
        return getattr(self._store, name)

    def put_batch(self, batch):
        self.kinds.append(type(batch))
        return self._store.put_batch(batch)


@pytest.mark.parametrize("count", [15, 16, 100])
@pytest.mark.parametrize(
    ("form", "each", "kind"),
    [
        ("{:03}", {"KEYS": "k"}, FixedSizeBatch),
        ("{:03}", {"TAGS": "t"}, FixedSizeBatch),
        ("{:03}", {}, FixedSizeBatch),
        ("{:03}", {"CLUSTER": "x"}, VariableSizeBatch),
        ("{}", {"KEYS": "k l", "TAGS": "t"}, VariableSizeBatch),
        ("{}", {"CLUSTER": "x"}, VariableSizeBatch),
        ("{:*>3{:02}}", {}, VariableSizeBatch),  # the longest of a hundred is stored in steps
        ("{:03}", {"DELAY": "3"}, None),
        ("{:03}", {"TIMER_DELAY_MS": "3"}, None),
    ],
)
def test_batch_is_stored_and_answered_as_without_numpy(
    tmp_path, monkeypatch, count, form, each, kind
):
    """One of the two brokers has not loaded numpy."""
    came_to = []
    for is_loaded in (True, False):
        monkeypatch.setattr(
            batch_messages, "is_numpy_loaded", lambda is_loaded=is_loaded: is_loaded
        )
        parts = open_parts(tmp_path / str(is_loaded))
        store, parts.store = parts.store, BatchKinds(parts.store)
        room = Room(parts)
        room.ask(send_request("first"))
        texts = [form.format(number, number) for number in range(count)]
        answer = room.ask(batch_request(*texts, properties={"a": "b"}, each=each))
        if isinstance(answer, Generator):
            finished(answer)
            answer = room.connection.sent.pop()
        log = bytes(components_of(store).log.read(0, store.state().written_offset))
        came_to.append((answer.code, answer.remark, answer.ext_fields, log))
        usual = kind if is_loaded and count >= 16 else RecordRun
        assert parts.store.kinds == ([usual] if kind else [])
        store.shutdown()
    assert came_to[0] == came_to[1]
