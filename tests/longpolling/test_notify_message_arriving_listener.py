"""The listener through which the store wakes held pulls."""

from support.brokers.hold_service import Hold, a_pull

from rocketpoll.broker.longpolling.pull_request_hold_service import (
    NotifyMessageArrivingListener,
)


def test_arrival_wakes_held_pulls_and_calls_the_callback():
    hold, told = Hold(), []
    pull = a_pull()
    hold.service.suspend_pull_request(pull)
    listener = NotifyMessageArrivingListener(hold.service, lambda *arrival: told.append(arrival))
    listener.arriving("T", 0, 1, [0])
    assert hold.woken == [pull]
    assert told == [("T", 0, [0])]
