"""Users share worker threads without waiting for each other."""

import threading

from support.brokers.broker_kinds import wait_until

from rmq_spark.client.concurrency.scheduler import WorkerThreads


def done_by(workers):
    """Return the thread that runs a task."""
    found, done = [], threading.Event()
    workers.schedule(lambda: (found.append(threading.current_thread().name), done.set()))
    assert done.wait(10)
    return found[0]


def test_own_worker_threads_bear_the_name_of_their_user():
    crew = WorkerThreads("a")
    lanes, again, services = crew.broker_executor, crew.retry_executor, crew.service_scheduler
    assert [done_by(each) for each in (lanes.for_broker("b"), again.for_broker("b"), services)] == [
        *("a b-1", "a gives back b-1", "a services-1")
    ]
    crew.stop()


def test_hundred_users_of_shared_worker_threads_have_few_threads():
    crew = WorkerThreads("all", service_threads_max=8)
    for number in range(100):
        own = WorkerThreads(f"user {number}", crew)
        lanes, services = own.broker_executor, own.service_scheduler
        assert done_by(lanes.for_broker("a")) == "all a-1"
        assert done_by(services).startswith("all services-")
        assert lanes.thread_count == services.thread_count == 0
    assert crew.thread_count <= 1 + 8
    crew.stop()
    wait_until("the threads have ended", lambda: not crew.thread_count)


def test_shared_broker_lane_keeps_order_and_does_not_block_other_brokers():
    crew, stuck, order = WorkerThreads("all"), threading.Event(), []
    first, second = (WorkerThreads(name, crew).broker_executor for name in ("first", "second"))
    first.for_broker("a").schedule(lambda: stuck.wait(10))
    for number, lanes in enumerate((first, second, first, second)):
        lanes.for_broker("a").schedule(lambda number=number: order.append(number))
    assert done_by(second.for_broker("b")) == "all b-1"
    assert order == []
    stuck.set()
    done_by(first.for_broker("a"))
    assert order == [0, 1, 2, 3]
    crew.stop()


def test_stopped_user_of_shared_threads_does_not_stop_others():
    crew, done = WorkerThreads("all"), []
    first, second = (WorkerThreads(name, crew).broker_executor for name in ("first", "second"))
    services = WorkerThreads("first", crew).service_scheduler
    held = threading.Event()
    for lanes in (first, second):
        lanes.for_broker("a").schedule(lambda: held.wait(10))
    for name, workers in (
        ("a", first.for_broker("a")),
        ("b", second.for_broker("a")),
        ("c", services),
    ):
        workers.schedule(lambda name=name: done.append(name), 100)
    first.stop()
    assert services.stop(0)
    held.set()
    first.for_broker("a").schedule(lambda: done.append("after the end"))
    wait_until("the other's task", lambda: done == ["b"])
    done_by(second.for_broker("a"))
    assert done == ["b"]
    crew.stop()
