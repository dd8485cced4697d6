"""Starting a thread succeeds, or raises an error with the reason."""

import asyncio
import threading
from functools import partial

import pyarrow as pa
import pytest
from support.suite.selection import spread

from rmq_spark.client.concurrency.threads import start_thread
from rocketpoll import (
    Admin,
    ConsumeFromWhere,
    EmbeddedBroker,
    LitePullConsumer,
    LitePullSettings,
    Message,
    Producer,
    PushConsumer,
    PushSettings,
    aio,
)
from rocketpoll.errors import RocketPollError


def test_thread_limit_error_is_raised_as_by_python(monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        start_thread(threading.Thread())
    try:
        [].pop()
    except IndexError:
        with pytest.raises(RuntimeError, match="can't start"):
            start_thread(threading.Thread())


class Births:
    """Records thread starts; some fail as at a system limit."""

    def __init__(self, monkeypatch):
        self._start = threading._start_new_thread
        self._count, self._failing = 0, frozenset()
        self._is_counting = False
        monkeypatch.setattr(threading, "_start_new_thread", self._begin)

    def _begin(self, *arguments, **keywords):
        if self._is_counting:
            self._count += 1
            if self._count in self._failing:
                raise RuntimeError("can't start new thread")
        return self._start(*arguments, **keywords)

    def during(self, call, failing=()):
        """Make a call while these starts fail; return its outcome and the number of starts.

        The call runs in its own thread: a call that never returns fails the test.
        """
        outcomes = []

        def run():
            self._count, self._failing, self._is_counting = 0, frozenset(failing), True
            try:
                outcomes.append(call())
            except BaseException as error:
                outcomes.append(error)
            finally:
                self._is_counting = False

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        assert outcomes, "the call has not ended"
        return outcomes[0], self._count


PATIENCE_S = 30
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


def _sent(address, send):
    with Producer("P", address, send_timeout_ms=1_000) as producer:
        return send(producer, Message("T", b"x"))


def _consumed(make, wait):
    with make as consumer:
        consumer.subscribe("T")
        return wait(consumer)


async def _in_a_loop(address):
    async with aio.Client(address) as client, aio.Producer("A", client=client) as producer:
        await producer.send(Message("T", b"x"))
        async with aio.Consumer(
            "AG", client=client, settings=LitePullSettings(consume_from_where=FIRST)
        ) as one:
            await one.subscribe("T")
            await one.poll(50)
            await one.commit()


def _lite(address):
    return LitePullConsumer("L", address, LitePullSettings(consume_from_where=FIRST))


def _push(address):
    settings = PushSettings(consume_from_where=FIRST)
    return PushConsumer("C", address, listener=lambda *_: None, settings=settings)


TABLE = pa.table({"body": [b"x", b"y"]})
CALLS = {
    "send": lambda at: _sent(at, lambda producer, each: producer.send(each)),
    "send_async": lambda at: _sent(at, lambda producer, each: producer.send_async(each).result(9)),
    "send_one_way": lambda at: _sent(at, lambda producer, each: producer.send_one_way(each)),
    "send_batch": lambda at: _sent(at, lambda producer, each: producer.send_batch([each])),
    "send_table": lambda at: _sent(at, lambda producer, _: producer.send_table(TABLE, "T")),
    "poll": lambda at: _consumed(_lite(at), lambda consumer: consumer.poll(50)),
    "commit": lambda at: _consumed(_lite(at), lambda consumer: consumer.commit()),
    "listen": lambda at: _consumed(_push(at), lambda consumer: consumer.assignment()),
    "topics": lambda at: _asked(at, lambda admin: admin.topics()),
    "lag": lambda at: _asked(at, lambda admin: admin.lag("L", "T")),
    "seek": lambda at: _asked(at, lambda admin: admin.reset_to_time("L", "T", 0)),
    "read": lambda at: _asked(at, lambda admin: admin.read_table("T")),
    "asyncio": lambda at: asyncio.run(_in_a_loop(at)),
}


def _asked(address, ask):
    with Admin(address) as admin:
        return ask(admin)


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker(own_process=True) as running:
        running.create_topic("T", queues=2)
        running.send("T", "one", "two")
        with Admin(running.address) as admin:
            admin.create_group("L")
        yield running


@pytest.mark.parametrize("name", spread(5, CALLS))
def test_call_without_a_startable_thread_ends_in_a_client_error(broker, monkeypatch, name):
    births, call = Births(monkeypatch), partial(CALLS[name], broker.address)
    whole, count = births.during(call)
    assert not isinstance(whole, BaseException), whole
    assert count > 0
    for first in range(1, count + 1):
        for failing in ((first,), range(first, 100)):
            outcome, _ = births.during(call, failing)
            if isinstance(outcome, BaseException):
                assert isinstance(outcome, RocketPollError), (failing, repr(outcome))
    again, _ = births.during(call)
    assert not isinstance(again, BaseException), again
