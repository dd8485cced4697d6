"""A thread is started, or it is said why not."""

from __future__ import annotations

import threading

import pytest
from interruptions import Signal, interrupted_everywhere

from rmq_spark.client.threads.starting import start_thread


def test_a_limit_of_threads_is_told_as_python_tells_it(monkeypatch):
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


def test_what_a_signals_handler_raises_is_raised_wherever_it_comes():
    """Python's own lock raises a RuntimeError in its place, if it comes as the lock was let go."""
    raised = []

    def start(_):
        try:
            start_thread(threading.Thread(target=lambda: None, daemon=True))  # some never begin
        except BaseException as error:
            raised.append(type(error))
            raise

    interrupted_everywhere(lambda: None, start, lambda _: None, least=20)
    assert set(raised) == {Signal}
