"""Moving a group reports the members that were not notified."""

from dataclasses import replace

import pytest
from support.clients.fake_members import Consumer
from support.servers.joining_name_server import JoiningNameServer

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.admin.group_offsets import LATEST_MS, ROUNDS_MAX, confirm_members
from rmq_spark.client.api.admin_api import AdminApi
from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    BrokerRefused,
    ConsumerNotOnline,
    NotSupported,
    ProtocolError,
    SystemBusy,
)
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.wire.bodies.clients import ConsumeType
from rmq_spark.wire.bodies.operators import Connection
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import EmbeddedBroker

QUEUE = MessageQueue("T", "broker-a", 0)
MOVES = {
    "to an offset": lambda admin: admin.set_offset("G", QUEUE, 1),
    "to a time": lambda admin: admin.reset_to_time("G", "T", 0),
}


@pytest.fixture(params=MOVES.values(), ids=MOVES.keys())
def move(request):
    return request.param


@pytest.fixture
def admin(running_broker):
    with Admin(running_broker.address) as made:
        made.create_topic("T", 1)
        with Producer("P", instance=made.instance) as producer:
            for body in (b"a", b"b"):
                producer.send(Message("T", body), queue=QUEUE)
        made.create_group("G")
        made.set_offset("G", QUEUE, 2)
        yield made


@pytest.fixture
def member(admin, running_broker):
    with ClientInstance(running_broker.address) as instance:
        instance.routes.route("T")
        consumer = Consumer()
        instance.register_consumer("G", consumer)
        instance.heartbeat()
        yield instance, consumer


def asking(monkeypatch, answer):
    """Replace the request for the state of members by a function that gets the original one."""
    real = AdminApi.consumer_running_info
    asked = []

    def ask(calls, address, group, client_id):
        asked.append(client_id)
        return answer(lambda: real(calls, address, group, client_id))

    monkeypatch.setattr(AdminApi, "consumer_running_info", ask)
    return asked


def refusing(error, code):
    def refuse(_):
        raise error(code, "said so", "h:1", RequestCode.GET_CONSUMER_RUNNING_INFO)

    return refuse


def test_reset_notice_to_member_that_answers_is_sent_once(admin, member, move, monkeypatch):
    instance, consumer = member
    asked = asking(monkeypatch, lambda really: really())
    move(admin)
    assert consumer.resets.acquire(timeout=10)
    assert asked == [instance.client_id]
    assert not consumer.resets.acquire(blocking=False)


def test_reset_notice_answered_with_an_error_counts_as_received(admin, member, move, monkeypatch):
    asked = asking(monkeypatch, refusing(BrokerRefused, 1))
    move(admin)
    assert len(asked) == 1


@pytest.mark.parametrize("code", [206, 207])
def test_reset_names_member_that_never_answers(admin, member, move, monkeypatch, code):
    instance, consumer = member
    asked = asking(monkeypatch, refusing(ConsumerNotOnline, code))
    with pytest.raises(ConsumerNotOnline, match="may overwrite the offsets with its own") as found:
        move(admin)
    assert instance.client_id in str(found.value)
    assert len(asked) == ROUNDS_MAX
    assert consumer.resets.acquire(timeout=10)
    assert admin.lag("G", "T")[0].consumer_offset < 2


def test_reset_reaches_all_brokers_though_one_brokers_members_are_silent(
    running_broker, monkeypatch
):
    with (
        EmbeddedBroker(brokerName="broker-b") as other,
        JoiningNameServer(running_broker, other) as names,
        Admin(names.address) as admin,
        ClientInstance(running_broker.address) as instance,
    ):
        admin.create_topic("T", 1)
        with Producer("P", names.address) as producer:
            for broker_name in ("broker-a", "broker-b"):
                producer.send(Message("T", b"a"), queue=MessageQueue("T", broker_name, 0))
        instance.routes.route("T")
        instance.register_consumer("G", Consumer())
        instance.heartbeat()  # to the first broker only
        asking(monkeypatch, refusing(ConsumerNotOnline, 207))
        with pytest.raises(ConsumerNotOnline, match="are stored on this broker") as found:
            admin.reset_to_time("G", "T", LATEST_MS)
        assert found.value.address == running_broker.address
        assert [each.consumer_offset for each in admin.lag("G", "T")] == [1, 1]
        gone = other.address
        other.stop()
        with pytest.raises(CONNECTION_FAULTS) as stopped:
            admin.reset_to_time("G", "T", 0)
        assert stopped.value.address == gone
        assert running_broker_offset(admin, running_broker) == 0


def running_broker_offset(admin, broker):
    return admin._api.query_consumer_offset(broker.address, "G", QUEUE, set_zero_if_not_found=False)


def test_reset_notice_is_repeated_after_member_reconnects(
    admin, member, move, monkeypatch, running_broker
):
    instance, _ = member
    times = iter([1, 2])

    def over_another(really):
        if next(times) == 1:
            instance.connections.close(running_broker.address)
            instance.heartbeat()
        return really()

    asked = asking(monkeypatch, over_another)
    move(admin)
    assert len(asked) == 2


def test_reset_does_not_wait_for_member_that_leaves(admin, member, move, monkeypatch):
    instance, _ = member

    def leaves(really):
        instance.unregister_consumer("G")
        return really()

    assert len(asking(monkeypatch, leaves)) == 0
    move(admin)
    assert admin.lag("G", "T")[0].consumer_offset < 2


# ---- members that ignore notifications


@pytest.mark.parametrize(
    ("language", "consume_type", "configs", "is_deaf"),
    [
        ("JAVA", ConsumeType.CONSUME_ACTIVELY, {}, True),
        ("JAVA", ConsumeType.CONSUME_PASSIVELY, {}, False),
        ("PYTHON", ConsumeType.CONSUME_ACTIVELY, {}, False),
        ("JAVA", ConsumeType.CONSUME_ACTIVELY, {"useServerSideResetOffset": "true"}, False),
    ],
    ids=["pulls", "listens", "is one of ours", "of RocketMQ 5 learns it by its next pull"],
)
def test_reset_is_refused_while_java_pull_consumer_cannot_be_notified(
    admin, member, move, monkeypatch, language, consume_type, configs, is_deaf
):
    real = AdminApi.consumer_connection

    def connection(*arguments):
        found = real(*arguments)
        of_it = tuple(replace(each, language=language) for each in found.connection_set)
        return replace(found, consume_type=consume_type, connection_set=of_it)

    monkeypatch.setattr(AdminApi, "consumer_connection", connection)
    monkeypatch.setattr(AdminApi, "broker_config", lambda *_: configs)
    instance, consumer = member
    if is_deaf:
        with pytest.raises(NotSupported, match="Java's pull consumers ignore") as found:
            move(admin)
        assert instance.client_id in str(found.value)
        assert consumer.told == []
        assert admin.lag("G", "T")[0].consumer_offset == 2
    else:
        move(admin)
        assert admin.lag("G", "T")[0].consumer_offset < 2


# ---- an unreachable broker


class Told:
    """A broker whose members change before, between and after notifications."""

    def __init__(self, *looks, answers=lambda _: None):
        self.looks = [*looks]
        self.asked, self.tellings = [], 0
        self._answers = answers
        self.admin = self

    def online_members(self, *_):
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return [
            Connection(client_id=each, client_addr=place, language="JAVA", version=401)
            for each, place in look.items()
        ]

    def consumer_running_info(self, _, __, client_id):
        self.asked.append(client_id)
        return self._answers(client_id)

    def tell(self):
        for _ in confirm_members(self, "b:1", "G"):
            self.tellings += 1


HERE = {f"c{number:02}": f"h:{number}" for number in range(64)}
silent = refusing(ConsumerNotOnline, 207)


def in_turn(*answers):
    """Return a function whose n-th call runs the n-th of these functions."""
    left = iter(answers)

    def answer(client_id):
        return next(left)(client_id)

    return answer


def test_reset_with_many_silent_members_asks_at_most_three_rounds():
    """The broker waits ten seconds for each member: one by one, this takes eleven minutes."""
    told = Told(HERE, answers=silent)
    with pytest.raises(ConsumerNotOnline, match=r"c00, .* \d+ more were not asked") as found:
        told.tell()
    assert len(told.asked) <= ROUNDS_MAX * 8
    assert all(each in str(found.value) for each in told.asked)
    assert told.tellings == 1


def test_reset_asks_new_members_before_those_that_were_silent():
    told = Told(HERE, answers=lambda each: silent(each) if each == "c00" else None)
    with pytest.raises(ConsumerNotOnline, match="but c00 did not answer") as found:
        told.tell()
    assert "c01" not in str(found.value)
    assert set(told.asked) == HERE.keys()


def test_reset_notice_is_not_repeated_to_member_that_was_silent_for_a_while():
    """A second reset would seek the member again, and skip messages that it has not consumed."""
    told = Told({"a": "h:1"}, answers=in_turn(silent, silent, lambda _: None))
    told.tell()
    assert (len(told.asked), told.tellings) == (3, 1)


def test_unreadable_answer_to_reset_notice_counts_as_received():
    """Clients in other languages answer with other reports."""

    def answers(_):
        raise ProtocolError("b:1", "the body is no report")

    told = Told({"a": "h:1"}, answers=answers)
    told.tell()
    assert (len(told.asked), told.tellings) == (1, 1)


def test_reset_notice_is_repeated_to_member_whose_broker_was_busy():
    told = Told({"a": "h:1"}, answers=in_turn(refusing(SystemBusy, 2), lambda _: None))
    told.tell()
    assert (len(told.asked), told.tellings) == (2, 2)


@pytest.mark.parametrize("after", [{}, {"a": "h:2"}], ids=["leaves", "is connected anew"])
def test_reset_fails_if_a_member_reconnects_in_every_round(after):
    told = Told(*[{"a": "h:1"}, {"a": "h:1"}, after] * ROUNDS_MAX)
    with pytest.raises(ConsumerNotOnline, match="but a did not answer afterwards, or left or"):
        told.tell()
    assert told.tellings == ROUNDS_MAX
