"""Calls of asyncio clients run in a few threads, in order where they must."""

import asyncio
import threading

import pytest
from support.clients.asyncio_tests import names_of_threads, steps, told_in_a_loop, until
from support.programs.python_programs import python_program

from rmq_spark.client.aio.loop_bridge import (
    CALLS_MAX,
    CallQueue,
    LoopBridge,
    call_in_thread,
    stop_in_thread,
)


def here():
    return LoopBridge(asyncio.get_running_loop())


@told_in_a_loop
async def test_call_in_thread_returns_the_result_or_error():
    assert await call_in_thread(here(), threading.get_ident) != threading.get_ident()
    for error in (KeyError("no"), SystemExit(3)):

        def fail(error=error):
            raise error

        future = call_in_thread(here(), fail)
        await asyncio.wait([future])
        assert future.exception() is error


@told_in_a_loop
async def test_stop_iteration_in_a_call_becomes_a_runtime_error():
    def stop():
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        await call_in_thread(here(), stop)


@told_in_a_loop
async def test_concurrent_calls_are_limited_to_a_number_of_threads():
    together = threading.Barrier(CALLS_MAX)
    bridge = here()
    await asyncio.gather(*[call_in_thread(bridge, together.wait) for _ in range(CALLS_MAX)])
    await asyncio.gather(*[call_in_thread(bridge, lambda: None) for _ in range(1_000)])
    assert len(names_of_threads("rocketpoll calls")) == CALLS_MAX


@told_in_a_loop
async def test_stop_in_thread_does_not_wait_for_running_calls():
    go_on, bridge, turns = threading.Event(), here(), CallQueue(is_stop=True)
    calls = [call_in_thread(bridge, lambda: go_on.wait(60)) for _ in range(2 * CALLS_MAX)]
    assert await stop_in_thread(bridge, lambda: "ended") == "ended"
    assert await turns.call(bridge, lambda: "in its turn") == "in its turn"
    assert not any(call.done() for call in calls)
    go_on.set()
    await asyncio.gather(*calls)


@told_in_a_loop
async def test_call_queue_runs_one_call_at_a_time_in_order():
    turns, bridge, made, inside = CallQueue(), here(), [], []

    def call(number):
        inside.append(number)
        assert inside == [number]
        made.append(number)
        inside.clear()

    await asyncio.gather(*[turns.call(bridge, lambda n=n: call(n)) for n in range(200)])
    assert made == list(range(200))


@told_in_a_loop
async def test_cancelled_queued_call_is_not_made():
    turns, bridge, made = CallQueue(), here(), []
    begun, go_on = threading.Event(), threading.Event()

    def slow():
        begun.set()
        go_on.wait(60)
        made.append("slow")

    under_way = turns.call(bridge, slow)
    waiting = turns.call(bridge, lambda: made.append("cancelled"))
    last = turns.call(bridge, lambda: made.append("last"))
    await until("the first call", begun.is_set)
    under_way.cancel()
    waiting.cancel()
    await steps(3)
    go_on.set()
    await last
    assert made == ["slow", "last"]


def test_aio_calls_in_a_forked_child_use_new_threads(tmp_path):
    done = python_program(
        """
        import asyncio, os
        from rmq_spark.client.aio.loop_bridge import call_in_thread
        from rmq_spark.client.aio.loop_bridge import LoopBridge

        async def ask():
            bridge = LoopBridge(asyncio.get_running_loop())
            print(await call_in_thread(bridge, lambda: "made"), flush=True)

        asyncio.run(ask())
        if child := os.fork():
            print(os.waitpid(child, 0)[1])
        else:
            asyncio.run(ask())
            os._exit(0)
        """,
        cwd=tmp_path,
    )
    assert done.stdout == "made\nmade\n0\n", done.stderr
