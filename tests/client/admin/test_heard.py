"""Whoever moves a group learns which members have not heard of it."""

import pytest
from client_members import Consumer

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.admin.heard import TELLINGS_MAX
from rmq_spark.client.errors import BrokerRefused, ConsumerNotOnline
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.requests.admin_calls import AdminCalls
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.message_queue import MessageQueue

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
    """Have members answer the question how they do by a function, which gets what really asks."""
    real = AdminCalls.consumer_running_info
    asked = []

    def ask(calls, address, group, client_id):
        asked.append(client_id)
        return answer(lambda: real(calls, address, group, client_id))

    monkeypatch.setattr(AdminCalls, "consumer_running_info", ask)
    return asked


def refusing(error, code):
    def refuse(_):
        raise error(code, "said so", "h:1", RequestCode.GET_CONSUMER_RUNNING_INFO)

    return refuse


def test_who_answers_is_told_once(admin, member, move, monkeypatch):
    instance, consumer = member
    asked = asking(monkeypatch, lambda really: really())
    move(admin)
    assert consumer.resets.acquire(timeout=10)
    assert asked == [instance.client_id]
    assert not consumer.resets.acquire(blocking=False)


def test_who_answers_with_an_error_has_heard(admin, member, move, monkeypatch):
    asked = asking(monkeypatch, refusing(BrokerRefused, 1))
    move(admin)
    assert len(asked) == 1


@pytest.mark.parametrize("code", [206, 207])
def test_who_never_answers_is_named(admin, member, move, monkeypatch, code):
    instance, consumer = member
    asked = asking(monkeypatch, refusing(ConsumerNotOnline, code))
    with pytest.raises(ConsumerNotOnline, match="may store the offsets that it had") as found:
        move(admin)
    assert instance.client_id in str(found.value)
    assert len(asked) == TELLINGS_MAX
    for _ in asked:
        assert consumer.resets.acquire(timeout=10)
    assert admin.lag("G", "T")[0].consumer_offset < 2


def test_who_answers_over_another_connection_is_told_once_more(
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


def test_who_leaves_without_an_answer_is_not_waited_for(admin, member, move, monkeypatch):
    instance, _ = member

    def leaves(really):
        instance.unregister_consumer("G")
        return really()

    assert len(asking(monkeypatch, leaves)) == 0
    move(admin)
    assert admin.lag("G", "T")[0].consumer_offset < 2
