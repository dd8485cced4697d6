"""Broker threads: the event loop never waits for a thread to start, and a dead thread is replaced.

The table at the end makes the start of each broker thread fail, in each way, in a real process: the
broker resumes after the shortage, or ends with a line that says why. It never hangs.
"""

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, wait
from contextlib import suppress
from functools import partial
from itertools import product

import pyarrow as pa
import pytest
from support.brokers.fork_server import ROOT
from support.faults.thread_start_failures import BIRTHS, KINDS
from support.suite.selection import spread

from rmq_spark.errors import RocketPollError
from rocketpoll import Admin, Message, Producer, read_table
from rocketpoll.broker.common import threads
from rocketpoll.broker.common.threads import DaemonThreadPool, run_in_parallel
from rocketpoll.broker.embedded import EmbeddedBroker, EmbeddedBrokerError

THREADS = (
    "BrokerHousekeeping",
    "StagedBatches",
    "StoreHousekeeping",
    "FlushService",
    "LoadChunkTools",
    "LookInto",
    "Flush_",
    "LastCheckpoint",
)
"""Name prefixes of all threads of a broker process."""
_PATIENCE_SECONDS = 40.0


@pytest.fixture
def births(monkeypatch):
    monkeypatch.setattr(threads, "THREAD_START_TIMEOUT_SECONDS", 0.05)
    for name in ("_start_joinable_thread", "_start_new_thread"):
        if hasattr(threading, name):
            monkeypatch.setattr(threading, name, getattr(threading, name))
    BIRTHS.names.clear()
    yield BIRTHS
    BIRTHS.heal()


def lost(workers):
    """Check the threads until a job of one that never started has failed."""

    def look(future):
        while not future.done():
            workers.fail_stuck_jobs()
            wait([future], 0.01)
        return future.exception()

    return look


# ---- workers


def test_thread_pool_runs_jobs_in_order_and_futures_hold_results():
    workers, order = DaemonThreadPool("W"), []
    futures = [workers.submit(lambda n=n: order.append(n) or n) for n in range(20)]
    assert [each.result() for each in futures] == order == list(range(20))
    failed = workers.submit([].pop)
    assert isinstance(failed.exception(), IndexError)
    workers.shutdown_and_wait()
    with pytest.raises(RuntimeError, match="W takes no more jobs"):
        workers.submit(list)


def test_thread_pool_limits_concurrent_jobs():
    workers, together, gate = DaemonThreadPool("W", 3), [], threading.Barrier(3)

    def job():
        together.append(threading.get_ident())
        gate.wait(_PATIENCE_SECONDS)

    for future in [workers.submit(job) for _ in range(9)]:
        future.result(_PATIENCE_SECONDS)
    assert len(set(together)) == 3
    workers.shutdown_and_wait()


def test_shutdown_cancels_jobs_that_have_not_begun_and_finish_waits_for_the_one_under_way():
    workers, began, go_on = DaemonThreadPool("W"), threading.Event(), threading.Event()
    under_way = workers.submit(lambda: began.set() or go_on.wait(_PATIENCE_SECONDS))
    later = workers.submit(list)
    began.wait(_PATIENCE_SECONDS)
    workers.shutdown()
    with pytest.raises(CancelledError):
        later.result()
    go_on.set()
    workers.shutdown_and_wait()
    assert under_way.result() is True


@pytest.mark.parametrize(("kind", "error"), [("refused", RuntimeError), ("memory", MemoryError)])
def test_submit_raises_if_no_thread_can_be_started_and_the_next_job_starts_one(births, kind, error):
    workers, done = DaemonThreadPool("W"), []
    births.fail("W", kind, times=1)
    with pytest.raises(error):
        workers.submit(lambda: done.append("refused"))
    workers.submit(lambda: done.append("done")).result(_PATIENCE_SECONDS)
    assert done == ["done"]
    workers.shutdown_and_wait()


def test_thread_pool_runs_all_jobs_though_a_second_thread_cannot_be_started(births):
    workers = DaemonThreadPool("W", 2)
    workers.submit(list).result(_PATIENCE_SECONDS)
    births.fail("W", "refused", times=9)
    futures = [workers.submit(list) for _ in range(4)]
    assert [each.result(_PATIENCE_SECONDS) for each in futures] == [[]] * 4
    workers.shutdown_and_wait()


def test_thread_that_dies_at_start_blocks_no_job_and_is_replaced(births):
    workers = DaemonThreadPool("W")
    births.fail("W", "stillborn", times=1)
    first, second = workers.submit(list), workers.submit(list)  # returns in any case
    assert isinstance(lost(workers)(first), MemoryError)
    assert isinstance(second.exception(), MemoryError)
    assert workers.submit(list).result(_PATIENCE_SECONDS) == []
    assert births.names == ["W", "W"]
    workers.shutdown_and_wait()


def test_thread_that_starts_too_late_runs_nothing(births):
    """Otherwise two threads would run jobs that exclude each other."""
    workers = DaemonThreadPool("W")
    births.fail("W", "late", times=1)
    assert isinstance(lost(workers)(workers.submit(list)), MemoryError)
    busy = threading.Event()
    running = workers.submit(lambda: busy.wait(_PATIENCE_SECONDS))
    waiting = workers.submit(list)
    births.may_begin.set()
    has_ended, was_done = births.late_has_ended.wait(_PATIENCE_SECONDS), waiting.done()
    busy.set()
    assert has_ended, "it runs jobs beside the other"
    assert not was_done
    assert running.result(_PATIENCE_SECONDS)
    workers.shutdown_and_wait()


@pytest.mark.parametrize("kind", KINDS)
def test_parallel_jobs_all_run_with_any_number_of_threads(births, kind):
    for born in range(3):
        done = []
        births.fail(f"T_{born}", kind, times=1)
        run_in_parallel([partial(done.append, n) for n in range(50)], 4, "T")
        assert sorted(done) == list(range(50))


def test_parallel_jobs_raise_the_error_of_one_of_them():
    with pytest.raises(ZeroDivisionError):
        run_in_parallel([list] * 20 + [lambda: 1 / 0] + [list] * 20, 4, "T")


LATE_THREAD = """
import atexit, sys, threading, time
began = []
atexit.register(lambda: print(began))  # runs last
from rocketpoll.broker.common.threads import DaemonThreadPool

name = "_start_joinable_thread" if sys.version_info >= (3, 13) else "_start_new_thread"
start = getattr(threading, name)

def start_late(run, *arguments, **more):
    def run_late(*arguments):
        time.sleep(0.3)
        began.append(len(arguments))
        run(*arguments)
    return start(run_late, *arguments, **more)

setattr(threading, name, start_late)
workers = DaemonThreadPool("W", waits_at_exit=False)
workers.submit(list)
workers.shutdown()
"""


def test_process_does_not_end_before_its_pool_threads_have_begun():
    """Python would crash if a thread started after its state was freed."""
    ended = subprocess.run(
        [sys.executable, "-c", LATE_THREAD], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (ended.stdout in {"[0]\n", "[1]\n"}, ended.stderr) == (True, "")


def test_forked_child_does_not_wait_for_pool_threads_at_exit():
    text = (
        "import os, threading\n"
        "from rocketpoll.broker.common.threads import DaemonThreadPool\n"
        "began, go_on = threading.Event(), threading.Event()\n"
        "workers = DaemonThreadPool('W')\n"
        "workers.submit(lambda: began.set() or go_on.wait())\n"
        "began.wait()\n"
        "child = os.fork()\n"
        "if child:\n"
        "    print(os.waitpid(child, 0)[1], flush=True)\n"
        "    go_on.set()\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", text],
        cwd=ROOT, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=True,
    )  # fmt: skip
    assert done.stdout == "0\n"


# ---- an embedded broker


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["EmbeddedBroker", *THREADS[:4]])
def test_embedded_broker_survives_a_thread_that_cannot_be_started_or_says_so(
    births, monkeypatch, name, kind
):
    monkeypatch.setattr("rocketpoll.broker.runtime.housekeeping._THREAD_CHECK_MS", 50)
    births.fail(name, kind, times=1)
    broker = EmbeddedBroker()
    try:
        broker.start()
    except EmbeddedBrokerError as error:
        assert "no thread can be started" in str(error) or "short of memory" in str(error)
        broker.start()
    try:
        again(lambda: broker.create_topic("orders"))
        broker.send("orders", "one")
        assert [each.body for each in broker.messages("orders")] == [b"one"]
        broker.delete_topic("orders")
    finally:
        broker.stop()


# ---- a broker process

_BROKER = """
import sys
sys.path.insert(0, "tests")
from support.faults import thread_start_failures
thread_start_failures.fail_by_arguments()
import signal
signal.signal(signal.SIGUSR1, lambda *_: thread_start_failures.BIRTHS.heal())
from rocketpoll.broker.__main__ import main
code = main()
thread_start_failures.report()
sys.exit(code)
"""
_SETTINGS = {
    "listenPort": 0,
    "vipChannelEnable": "false",
    "mappedFileSizeCommitLog": 1 << 20,
    "maxMessageSize": 1 << 18,
    "mappedFileSizeConsumeQueue": 6_000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "checkpointIntervalMills": 300,
    "cleanResourceInterval": 300,
    "flushConsumerOffsetInterval": 200,
    "syncFlushTimeout": 2_000,
}


_TABLE = pa.table({"topic": ["T0"] * 3_000, "body": [b"y" * 500] * 3_000})


class Process:
    """A broker process in which thread starts fail."""

    def __init__(self, root, prefix, kind, times, **more):
        self._log = root / "log"
        place = f"storePathRootDir={root / 'store'}"
        words = [f"{name}={value}" for name, value in {**_SETTINGS, **more}.items()]
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BROKER, prefix, kind, str(times), place, *words],

                cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        started.append(self)
        self.line = self.process.stdout.readline()
        self.address = f"127.0.0.1:{self.line.rpartition(':')[2].strip()}"

    def log(self):
        return self._log.read_text()

    def births(self):
        return self.log().rpartition("births: ")[2].split()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_PATIENCE_SECONDS)

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


started = []
"""The broker processes of a test."""


@pytest.fixture(autouse=True)
def none_left():
    yield
    while started:
        started.pop().end()


def again(action):
    """Repeat a request until the broker accepts it, which a shortage may delay."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return action()
        except RocketPollError:  # noqa: PERF203  # retried
            if time.monotonic() > until:
                raise


def use(address, number):
    """Send, read, look up a key, delete a topic and write a table, as clients do."""
    with Admin(address) as admin:
        for each in range(20):
            with suppress(RocketPollError):  # the topic may exist
                admin.create_topic(f"T{each}", queues=1)
        with Producer("P", address) as producer:
            for each in range(20):
                again(
                    lambda n=each: producer.send(Message(f"T{n}", b"x" * 2_000, keys=f"k{number}"))
                )
            again(lambda: producer.send_table(_TABLE))
        again(lambda: admin.messages_by_key("T1", f"k{number}"))
        again(lambda: read_table("T0", address))
        again(lambda: admin.delete_topic("T19", missing_ok=True))


def tried(root, name, kind, times):
    """Use a broker whose thread starts fail, stop it, and start it again; return its process and
    exit code."""
    broker = Process(root, name, kind, times)
    if broker.line:
        with suppress(RocketPollError):
            use(broker.address, 1)
        broker.process.send_signal(signal.SIGUSR1)  # ends the shortage
        use(broker.address, 2)
    return broker, broker.stop()


@pytest.mark.parametrize(("name", "kind"), spread(3, product(THREADS, KINDS)))
def test_broker_survives_any_thread_that_cannot_be_started_or_ends_with_a_line(
    tmp_path, name, kind
):
    clean = Process(tmp_path, "-", "refused", 0)
    use(clean.address, 0)
    assert clean.stop() == 0
    broker, code = tried(tmp_path, name, kind, 1 << 30 if name.endswith("_") else 1)
    assert code == 0 or (not broker.line and code == 1), broker.log()
    if code:
        last = broker.log().splitlines()[-2]
        assert last.startswith("the broker cannot run: ")
        assert "no thread can be started" in last or "short of memory" in last
    healed = Process(tmp_path, "-", "refused", 0)
    assert {f"T{n}" for n in range(19)} <= set(again(lambda: topics(healed.address)))
    assert healed.stop() == 0


def topics(address):
    with Admin(address) as admin:
        return [each for each in admin.topics() if each.startswith("T")]


def test_table_of_threads_lists_all_threads_of_a_broker(tmp_path):
    """Only the last checkpoint flushes the queues: with periodic ones, a slow machine would leave
    too few files for the flushing threads."""
    for _ in range(2):
        broker = Process(tmp_path, "-", "refused", 0, checkpointIntervalMills=3_600_000)
        use(broker.address, 0)
        assert broker.stop() == 0
    assert {f"{name}".rstrip("_") for name in THREADS} == set(broker.births()), broker.log()
