"""A countdown ends once, with its last part."""

import threading

from rmq_spark.client.concurrency.lifecycle import Latch


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
