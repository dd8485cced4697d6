"""Arguments that a method does not take, or lacks: the error is about the call that was made."""

from __future__ import annotations

import inspect

import pytest
from async_stories import told_in_a_loop

from rocketpoll import LitePullConsumer, PushConsumer, aio

NOBODY = "127.0.0.1:9"
WITHOUT_ARGUMENTS = {"start", "close"}  # these are not handed on


def methods_of(kind):
    return [
        name
        for name, found in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    ]


THREADED = [(kind, name) for kind in (LitePullConsumer, PushConsumer) for name in methods_of(kind)]
AWAITED = [
    (kind, name)
    for kind in (aio.Consumer, aio.Admin)
    for name in methods_of(kind)
    if inspect.iscoroutinefunction(getattr(kind, name)) and name not in WITHOUT_ARGUMENTS
]


def made(kind):
    if kind is PushConsumer:
        return kind("g", NOBODY, listener=lambda *_: None)
    return kind(NOBODY) if kind is aio.Admin else kind("g", NOBODY)


@pytest.mark.parametrize(("kind", "name"), THREADED)
def test_a_wrong_call_names_the_class_that_its_user_holds(kind, name):
    why = rf"^{kind.__name__}\.{name}\(\) got an unexpected keyword argument 'unheard_of'$"
    with pytest.raises(TypeError, match=why):
        getattr(made(kind), name)(unheard_of=1)


@pytest.mark.parametrize(("kind", "name"), AWAITED)
@told_in_a_loop
async def test_a_wrong_call_that_is_awaited_does_so_as_well(kind, name):
    why = rf"^{kind.__name__}\.{name}\(\) got an unexpected keyword argument 'unheard_of'$"
    user = made(kind)
    with pytest.raises(TypeError, match=why):
        await getattr(user, name)(unheard_of=1)
    await user.close()


WRONG = {
    "misspelled": (
        lambda consumer: consumer.poll(timeout=1),
        r"poll\(\) got an unexpected keyword argument 'timeout': did you mean timeout_ms\?",
    ),
    "missing": (lambda consumer: consumer.subscribe(), r"subscribe\(\) missing .*'topic'"),
    "too many": (lambda consumer: consumer.poll(1, 2, 3), r"poll\(\) too many positional"),
}


@pytest.mark.parametrize(("call", "why"), WRONG.values(), ids=WRONG)
def test_it_says_what_is_wrong_and_what_was_meant(call, why):
    with pytest.raises(TypeError, match=rf"^LitePullConsumer\.{why}") as told:
        call(LitePullConsumer("g", NOBODY))
    assert told.value.__suppress_context__


@told_in_a_loop
async def test_it_does_so_in_a_loop():
    consumer = aio.Consumer("g", NOBODY)
    with pytest.raises(TypeError, match=r"^Consumer\.seek\(\) got .*: did you mean offset\?"):
        await consumer.seek(None, ofset=1)
    with pytest.raises(TypeError, match=r"^Consumer\.subscribe\(\) missing .*'topic'"):
        await consumer.subscribe()
    await consumer.close()


def test_an_error_of_the_method_itself_stays_what_it_is():
    with pytest.raises(TypeError, match=r"^topic: needed a text"):
        LitePullConsumer("g", NOBODY).subscribe(5)
