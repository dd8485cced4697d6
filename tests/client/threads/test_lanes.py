"""Tasks of one broker run in order, and do not delay tasks of other brokers."""

import os
import threading

from support.brokers.broker_kinds import wait_until

from rmq_spark.client.concurrency.scheduler import PerBrokerExecutor

LONG_MS = 10_000


def test_slow_broker_does_not_block_lanes_of_other_brokers():
    stuck, done = threading.Event(), threading.Event()
    lanes = PerBrokerExecutor("lane")
    lanes.for_broker("a").schedule(lambda: stuck.wait(10))
    lanes.for_broker("b").schedule(done.set)
    assert done.wait(10)
    stuck.set()
    lanes.stop()


def test_lane_runs_tasks_of_one_broker_in_order():
    order, ended = [], threading.Event()
    lanes = PerBrokerExecutor("lane")
    for number in range(200):
        lanes.for_broker("a").schedule(lambda number=number: order.append(number))
    lanes.for_broker("a").schedule(ended.set)
    assert ended.wait(10)
    assert order == list(range(200))
    assert lanes.thread_count == 1
    lanes.stop()


def test_run_for_each_runs_all_brokers_in_parallel():
    together = threading.Barrier(3)
    lanes = PerBrokerExecutor("lane")
    assert lanes.run_for_each("abc", lambda _: together.wait(10), LONG_MS)
    lanes.stop()


def test_run_for_each_times_out_and_drops_tasks_that_have_not_begun():
    stuck, done = threading.Event(), []
    lanes = PerBrokerExecutor("lane")
    lanes.for_broker("a").schedule(lambda: stuck.wait(10))
    assert not lanes.run_for_each("ab", done.append, 200)
    assert done == ["b"]
    stuck.set()
    lanes.for_broker("a").schedule(lambda: done.append("behind"))
    wait_until("the lane is free", lambda: "behind" in done)
    assert done == ["b", "behind"]
    lanes.stop()


def test_failing_task_counts_as_done_and_does_not_block_its_lane():
    def act(broker):
        done.append(broker)
        raise SystemExit

    done = []
    lanes = PerBrokerExecutor("lane")
    assert lanes.run_for_each("ab", act, LONG_MS)
    assert lanes.run_for_each("ab", act, LONG_MS)
    assert sorted(done) == ["a", "a", "b", "b"]
    lanes.stop()


def test_stopped_lanes_start_nothing_and_do_not_wait():
    done = []
    lanes = PerBrokerExecutor("lane")
    lanes.run_for_each("a", done.append, LONG_MS)
    lanes.stop()
    assert not lanes.run_for_each("ab", done.append, LONG_MS)
    lanes.for_broker("c").schedule(lambda: done.append("c"))
    assert done == ["a"]
    assert [lanes.for_broker(broker).thread_count for broker in "bc"] == [0, 0]


def test_broker_executor_of_a_parent_does_nothing_in_a_forked_child():
    begun, fresh = PerBrokerExecutor("begun"), PerBrokerExecutor("fresh")
    begun.run_for_each("a", lambda _: None, LONG_MS)
    child = os.fork()
    if child == 0:
        is_right = fresh.run_for_each("a", lambda _: None, LONG_MS) and not begun.run_for_each(
            "a", print, LONG_MS
        )
        os._exit(0 if is_right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert begun.run_for_each("a", lambda _: None, LONG_MS)
    begun.stop()
