import threading

from rmq_spark.client.concurrency.lifecycle import Countdown


def counted(*those):
    ends = []
    return Countdown(lambda: ends.append("end"), *those), ends


def test_it_is_over_when_the_last_one_has_ended_and_only_once():
    countdown, ends = counted("a")
    countdown.wait_for("b", "c")
    countdown.ended("b", "nobody")
    countdown.ended("a", "a")
    assert ends == []
    countdown.ended("c")
    countdown.ended("c")
    assert ends == ["end"]


def test_what_comes_when_it_is_over_is_not_waited_for():
    countdown, ends = counted("a")
    countdown.ended("a")
    countdown.wait_for("b")
    countdown.ended("b")
    assert ends == ["end"]


def test_it_can_be_ended_before_its_time():
    countdown, ends = counted("a", "b")
    countdown.end()
    countdown.ended("a", "b")
    countdown.end()
    assert ends == ["end"]


def test_of_many_that_end_at_a_time_one_is_the_last():
    names = range(100)
    countdown, ends = counted(*names)
    threads = [threading.Thread(target=countdown.ended, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends == ["end"]
