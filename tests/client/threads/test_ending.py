"""A stop runs once; every caller waits for its end or for a timeout."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rmq_spark.client.concurrency.lifecycle import Latch, SafeStop, run_steps

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 10


def test_safe_stop_runs_once_and_all_callers_wait():
    going, ended, back = threading.Event(), [], []

    def end():
        going.wait(PATIENCE_S)
        ended.append(threading.current_thread().name)

    ending = SafeStop("it ends", end, PATIENCE_S)

    def ask():
        ending.run()
        back.append(list(ended))

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    assert back == []
    going.set()
    for asker in askers:
        asker.join(PATIENCE_S)
    ending.run()
    assert ended == ["it ends"]
    assert ended in back


def test_safe_stop_waits_at_most_its_timeout():
    never = threading.Event()
    SafeStop("never", lambda: never.wait(PATIENCE_S), 0.01).run()
    never.set()


def test_safe_stop_in_a_signal_handler_does_not_deadlock_on_a_held_lock():
    lock, ended = threading.Lock(), threading.Event()

    def end():
        with lock:
            ended.set()

    ending = SafeStop("it ends", end, 0.05)
    old = signal.signal(signal.SIGUSR1, lambda *_: ending.run())
    try:
        with lock:
            signal.raise_signal(signal.SIGUSR1)  # returns although the stop cannot have finished
            assert not ended.is_set()
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert ended.wait(PATIENCE_S)


def test_safe_stop_may_be_called_by_its_own_action():
    def end():
        ending.run()
        ended.append(True)

    ended = []
    ending = SafeStop("it ends", end, PATIENCE_S)
    ending.run()
    assert ended == [True]


def test_safe_stop_without_threads_runs_in_the_caller(monkeypatch):
    def start(_):
        raise RuntimeError("can't start new thread")

    ended = []
    monkeypatch.setattr(threading.Thread, "start", start)
    SafeStop("it ends", lambda: ended.append(threading.current_thread().name), PATIENCE_S).run()
    assert ended == [threading.current_thread().name]


def test_safe_stop_whose_function_raises_runs_once(monkeypatch):
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    ending = SafeStop("it ends", lambda: 1 / 0, PATIENCE_S)
    ending.run()
    ending.run()
    assert len(failed) == 1


@pytest.mark.parametrize("asked_for_seconds", [0.05, 5.0])
def test_exiting_program_waits_for_a_safe_stop_in_progress(asked_for_seconds):
    program = f"""
import sys, threading, time
from rmq_spark.client.concurrency.lifecycle import SafeStop
def end():
    time.sleep(0.3)
    print("said", flush=True)
threading.Thread(target=SafeStop("ends", end, {asked_for_seconds}).run, daemon=True).start()
time.sleep(0.05)
"""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=30,
        check=True,
    )
    assert asked_for_seconds < 1 or done.stdout == "said\n"
    assert time.monotonic() - began < PATIENCE_S


def test_shutdown_steps_all_run_despite_errors(caplog):
    done = []
    run_steps("G", lambda: done.append(1), lambda: 1 / 0, lambda: done.append(2))
    assert done == [1, 2]
    assert "G: a step of the shutdown failed: ZeroDivisionError" in caplog.text


# ---- a countdown ends once, with its last part


def counted(*those):
    ends = []
    return Latch(lambda: ends.append("end"), *those), ends


def test_countdown_ends_once_with_the_last_one():
    countdown, ends = counted("a")
    countdown.add("b", "c")
    countdown.count_down("b", "nobody")
    countdown.count_down("a", "a")
    assert ends == []
    countdown.count_down("c")
    countdown.count_down("c")
    assert ends == ["end"]


def test_countdown_ignores_additions_after_its_end():
    countdown, ends = counted("a")
    countdown.count_down("a")
    countdown.add("b")
    countdown.count_down("b")
    assert ends == ["end"]


def test_countdown_can_be_released_early():
    countdown, ends = counted("a", "b")
    countdown.release()
    countdown.count_down("a", "b")
    countdown.release()
    assert ends == ["end"]


def test_countdown_from_many_threads_ends_once():
    names = range(100)
    countdown, ends = counted(*names)
    threads = [threading.Thread(target=countdown.count_down, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends == ["end"]
