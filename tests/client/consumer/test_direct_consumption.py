"""Direct consumption by an operator: the listener's result is returned, and no offset moves."""

import pytest
from support.clients.manual_scheduler import MovedTasks
from support.messages.received_messages import several

from rmq_spark.client.consumer.dispatch.consume_services import (
    ConsumeMessageConcurrentlyService,
    ConsumeMessageOrderlyService,
)
from rmq_spark.client.consumer.dispatch.listeners import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
)
from rmq_spark.client.consumer.push_consumer_impl import call_listener_directly
from rmq_spark.wire.bodies.operators import ConsumeResult


def never(*_):
    raise AssertionError("nothing is acknowledged, locked or sent again")


def orderly(listener):
    return ConsumeMessageOrderlyService(listener, MovedTasks(), None, never, never, never, 1, 1_000)


def concurrently(listener):
    return ConsumeMessageConcurrentlyService(listener, MovedTasks(), never, None, never, 1)


def fails(*_):
    raise RuntimeError("no")


@pytest.mark.parametrize(
    ("service", "listener", "result"),
    [
        (orderly, lambda *_: None, "CR_SUCCESS"),
        (orderly, lambda *_: ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, "CR_LATER"),
        (orderly, fails, "CR_LATER"),
        (concurrently, lambda *_: ConsumeConcurrentlyStatus.CONSUME_SUCCESS, "CR_SUCCESS"),
        (concurrently, lambda *_: ConsumeConcurrentlyStatus.RECONSUME_LATER, "CR_LATER"),
        (concurrently, fails, "CR_LATER"),
    ],
)
def test_direct_consumption_answers_the_listeners_result(service, listener, result):
    (message,) = several(7)
    answer = call_listener_directly(service(listener), message, "")
    assert answer.consume_result is ConsumeResult[result]
    assert answer.order == (service is orderly)
    assert answer.spent_time_mills >= 0


def test_direct_consumption_passes_the_broker_name():
    seen = []
    service = concurrently(lambda _, context: seen.append(context.queue.broker_name))
    (message,) = several(7)
    call_listener_directly(service, message, "broker-z")
    call_listener_directly(service, message, "")
    assert seen == ["broker-z", message.queue.broker_name]
