"""Each pending request gets exactly one outcome: its response, its timeout or the end of the
connection."""

from math import inf

import pytest

from rmq_spark.client.errors import ConnectionClosed, ProtocolError, RequestTimeout
from rmq_spark.client.transport.pending_requests import (
    UNSOLICITED_MAX,
    PendingRequest,
    PendingRequests,
)
from rmq_spark.errors import HeaderError
from rmq_spark.wire.remoting.command import RemotingCommand

HERE = "broker:10911"


class Told(PendingRequest):
    """Records the outcomes of requests."""

    def __init__(self, timeout_ms=1_000, asked_at=0.0, wrong=None):
        super().__init__(11, timeout_ms, asked_at)
        self.heard = []
        self.wrong = wrong

    def on_response(self, command):
        if self.wrong is not None:
            raise self.wrong
        self.heard.append(command.remark)

    def on_error(self, error):
        self.heard.append(error)


def answer_to(waiter, remark="yes"):
    return RemotingCommand(0, opaque=waiter.opaque, flag=1, remark=remark)


@pytest.fixture
def waiters():
    return PendingRequests(HERE)


def test_waiter_gets_its_own_response_once(waiters):
    first, second = Told(), Told()
    assert waiters.add(first) != waiters.add(second)
    assert len(waiters) == 2
    waiters.resolve(answer_to(second, "two"))
    waiters.resolve(answer_to(first, "one"))
    waiters.resolve(answer_to(first, "again"))
    assert (first.heard, second.heard, len(waiters)) == (["one"], ["two"], 0)


def test_response_error_is_reported_to_its_request_only(waiters):
    unreadable = Told(wrong=HeaderError("header", at="x", needed="y", found="z"))
    failing = Told(wrong=ZeroDivisionError())
    for each in (unreadable, failing):
        waiters.add(each)
        waiters.resolve(answer_to(each))
    assert isinstance(unreadable.heard[0], ProtocolError)
    assert failing.heard == [failing.wrong]


def test_late_response_is_accepted_and_unsolicited_ones_are_limited(waiters):
    late = Told()
    waiters.add(late)
    error = RequestTimeout(HERE, 11, 1_000)
    assert waiters.expire(late, error)
    assert not waiters.expire(late, error)
    waiters.resolve(answer_to(late))
    assert late.heard == [error]
    stray = RemotingCommand(0, opaque=1_000, flag=1)
    for _ in range(UNSOLICITED_MAX):
        waiters.resolve(stray)
    with pytest.raises(
        ProtocolError, match="65 responses to no request, the last with opaque 1000"
    ):
        waiters.resolve(stray)


def test_each_waiter_has_its_own_timeout(waiters):
    soon, later = Told(100), Told(10_000)
    assert waiters.next_deadline == inf
    for each in (later, soon):
        waiters.add(each)
    assert waiters.next_deadline == soon.deadline
    assert waiters.overdue(0.05) == []
    assert waiters.next_deadline == soon.deadline
    assert waiters.overdue(0.1) == [soon]
    assert waiters.next_deadline == later.deadline
    assert waiters.overdue(10) == [later, soon]
    assert waiters.next_deadline == inf


def test_closed_pending_requests_return_waiters_and_refuse_new_ones(waiters):
    first, second = Told(), Told()
    waiters.add(first)
    waiters.add(second)
    assert waiters.remove(second)
    assert not waiters.remove(second)
    assert waiters.close(ConnectionClosed(HERE, "it rains")) == [first]
    assert waiters.close(ConnectionClosed(HERE, "again")) is None
    for come_in in (waiters.check_open, waiters.next_opaque, lambda: waiters.add(second)):
        with pytest.raises(ConnectionClosed, match="it rains"):
            come_in()
