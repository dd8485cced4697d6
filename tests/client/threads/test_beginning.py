"""What is begun is begun whole, or taken back."""

from __future__ import annotations

import threading

import pytest
from broker_kinds import wait_until
from interruptions import interrupted_everywhere

from rmq_spark.client.concurrency.lifecycle import SafeStart


def test_it_is_done_when_run_returns():
    done = []
    SafeStart("it", lambda: done.append(threading.current_thread().name), done.clear).run()
    assert done == ["it"]


def test_what_fails_fails_in_the_caller_and_is_not_taken_back():
    taken_back = []
    with pytest.raises(ZeroDivisionError):
        SafeStart("it", lambda: 1 // 0, lambda: taken_back.append(True)).run()
    assert not taken_back


def test_it_is_done_here_where_no_thread_can_be_started(monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    done = []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    SafeStart("it", lambda: done.append(threading.current_thread()), done.clear).run()
    assert done == [threading.current_thread()]


def test_wherever_it_is_interrupted_it_is_done_once_and_taken_back_or_not_done_at_all():
    def once():
        done = []

        def take_back():
            assert done == ["done"]
            done.append("taken back")

        return SafeStart("it", lambda: done.append("done"), take_back), done

    def is_nothing_left(made):
        wait_until("nothing is left", lambda: made[1] in ([], ["done", "taken back"]))

    interrupted_everywhere(once, lambda made: made[0].run(), is_nothing_left, least=20)
