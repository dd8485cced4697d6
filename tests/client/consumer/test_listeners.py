"""Listener results: only a real success counts, and every exception is logged."""

import asyncio
import functools
import logging

import pytest
from support.messages.received_messages import QUEUE, several

from rmq_spark.client.consumer.dispatch.listeners import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    ListenerFailureLog,
    call_listener,
    check_listener,
    clamp_listener_value,
)

CONTEXT = ConsumeConcurrentlyContext(QUEUE)
SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER


async def coroutine(_messages, _context):
    pass


def generator(_messages, _context):
    yield


async def async_generator(_messages, _context):
    yield


class AsyncCallable:
    async def __call__(self, messages, context):
        pass

    async def method(self, messages, context):
        pass


class Callable:
    def __call__(self, messages, context):
        pass

    def method(self, messages, context):
        pass


ONLY_BEGIN = {
    "a coroutine function": coroutine,
    "a generator function": generator,
    "an asynchronous generator function": async_generator,
    "an object that is called asynchronously": AsyncCallable(),
    "an asynchronous method": AsyncCallable().method,
    "a part of a coroutine function": functools.partial(coroutine),
}


@pytest.mark.parametrize("listener", ONLY_BEGIN.values(), ids=list(ONLY_BEGIN))
def test_coroutine_functions_are_refused_as_listeners(listener):
    with pytest.raises(
        TypeError, match=r"whose body does not run.*def listen\(messages, context\): "
    ):
        check_listener("listener", listener, "messages", "context")


@pytest.mark.parametrize(
    "listener", [lambda _: None, lambda: None, lambda _, __, ___: None, lambda _, *, _context: None]
)
def test_listener_with_a_wrong_signature_is_refused(listener):
    with pytest.raises(
        TypeError, match=r"needed a function of \(messages, context\), found one that takes"
    ):
        check_listener("listener", listener, "messages", "context")


@pytest.mark.parametrize("listener", [None, "listen", 5, [print]])
def test_objects_that_cannot_be_called_are_refused_as_listeners(listener):
    with pytest.raises(TypeError, match="listener: needed a function of"):
        check_listener("listener", listener, "messages", "context")


@pytest.mark.parametrize(
    "listener",
    [
        lambda _messages, _context: None,
        lambda *_: None,
        lambda _messages, _context, _more=None: None,
        Callable(),
        Callable().method,
        functools.partial(lambda _first, _messages, _context: None, 1),
        max,
    ],
)
def test_valid_callables_are_accepted_as_listeners(listener):
    check_listener("listener", listener, "messages", "context")


def said_by(listener, success=SUCCESS):
    return call_listener(listener, several(7), CONTEXT, success, ListenerFailureLog())


def test_listener_may_return_none_or_a_status():
    assert said_by(lambda *_: None) is SUCCESS
    assert said_by(lambda *_: SUCCESS) is SUCCESS
    assert said_by(lambda *_: LATER) is LATER


NONSENSE = {
    "false": False,
    "true": True,
    "a number": 0,
    "a text": "CONSUME_SUCCESS",
    "a word of the other kind": ConsumeOrderlyStatus.SUCCESS,
    "an exception": RuntimeError("returned, not raised"),
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=list(NONSENSE))
def test_unknown_listener_result_is_no_success_and_is_logged(nonsense, caplog):
    assert said_by(lambda *_: nonsense) is None
    assert type(nonsense).__name__ in caplog.text
    assert "needed None or a ConsumeConcurrentlyStatus" in caplog.text
    assert "from offset 7 on" in caplog.text


class Unshown:
    def __repr__(self):
        raise SystemExit("what has no text")


class Pretender:
    @property
    def __class__(self):
        raise KeyboardInterrupt("what has no kind")


def begun_and_not_to_be_ended():
    def steps():
        try:
            yield
        finally:
            raise RuntimeError("what cannot be cleaned up")

    begun = steps()
    next(begun)
    return begun


UNJUDGED = {
    "what shows itself by leaving": Unshown,
    "what raises when it is asked what it is": Pretender,
    "a list of a number that is too long to be shown": lambda: [10**5_000],
    "a generator that fails when it is closed": begun_and_not_to_be_ended,
}


@pytest.mark.parametrize("made", UNJUDGED.values(), ids=list(UNJUDGED))
def test_listener_result_that_raises_when_inspected_is_no_success(made, caplog):
    assert said_by(lambda *_: made()) is None
    assert "from offset 7 on" in caplog.text


def test_coroutine_returned_by_a_listener_is_not_a_success():
    async def say_again():
        said.append(said_by(lambda *_: running))

    said = []
    running = say_again()
    asyncio.run(running)
    assert said == [None]


@pytest.mark.parametrize("begun", [coroutine, generator, async_generator])
def test_coroutine_or_generator_as_listener_result_is_no_success(begun):
    assert said_by(begun) is None


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError,
        asyncio.CancelledError,
        SystemExit,
        KeyboardInterrupt,
        GeneratorExit,
        pytest.fail.Exception,
    ],
)
def test_exception_in_listener_is_no_success_and_is_logged(error, caplog):
    def listen(*_):
        raise error

    with caplog.at_level(logging.ERROR):
        assert said_by(listen) is None
    assert error.__name__ in caplog.text


def test_listener_value_out_of_range_is_clamped():
    assert [clamp_listener_value("n", found, 9, -1, 3) for found in (-2, -1, 0, 3, 4)] == [
        -1,
        -1,
        0,
        3,
        3,
    ]


def test_unprintable_listener_value_is_logged_and_replaced_by_the_default(caplog):
    assert clamp_listener_value("ack_index", Unshown(), 9, -1, 3) == 9
    assert "set ack_index to" in caplog.text


@pytest.mark.parametrize("found", ["1", 1.0, True, None])
def test_invalid_ack_index_is_logged_and_replaced(found, caplog):
    assert clamp_listener_value("ack_index", found, 9, -1, 3) == 9
    assert "set ack_index to" in caplog.text


class Failing:
    """A listener that raises a given error, and the resulting log lines."""

    def __init__(self, caplog):
        self.now = 0.0
        self.caplog = caplog
        self.failures = ListenerFailureLog(lambda: self.now)

    def fail(self, error, times=1):
        """Return the log lines of this number of failures, with or without tracebacks."""

        def listener(*_):
            raise error

        self.caplog.clear()
        for _ in range(times):
            assert call_listener(listener, several(7), CONTEXT, SUCCESS, self.failures) is None
        return [(each.getMessage(), each.exc_info is not None) for each in self.caplog.records]


def test_failing_listener_logs_its_traceback_once_and_then_a_line_a_minute(caplog):
    failing = Failing(caplog)
    [(text, has_traceback)] = failing.fail(ValueError("no total"), 1_000)
    assert text.startswith("the listener failed on 1 message of ")
    assert has_traceback
    failing.now = 59.9
    assert failing.fail(ValueError("no customer"), 5) == []
    failing.now = 60.0
    [(text, has_traceback)] = failing.fail(ValueError("no date"), 3)
    assert text.endswith(": ValueError: no date (1,004 more like this before)")
    assert not has_traceback
    assert len(text) < 200
    [(_, has_traceback)] = failing.fail(KeyError("total"), 3)
    assert has_traceback


def test_each_listener_failure_is_logged_at_debug_level(caplog):
    caplog.set_level(logging.DEBUG)
    assert len(Failing(caplog).fail(ValueError("no total"), 5)) == 5
