import threading

from rmq_spark.client.concurrency.lifecycle import Latch


def counted(*those):
    ends = []
    return Latch(lambda: ends.append("end"), *those), ends


def test_it_is_over_when_the_last_one_has_ended_and_only_once():
    countdown, ends = counted("a")
    countdown.add("b", "c")
    countdown.count_down("b", "nobody")
    countdown.count_down("a", "a")
    assert ends == []
    countdown.count_down("c")
    countdown.count_down("c")
    assert ends == ["end"]


def test_what_comes_when_it_is_over_is_not_waited_for():
    countdown, ends = counted("a")
    countdown.count_down("a")
    countdown.add("b")
    countdown.count_down("b")
    assert ends == ["end"]


def test_it_can_be_ended_before_its_time():
    countdown, ends = counted("a", "b")
    countdown.release()
    countdown.count_down("a", "b")
    countdown.release()
    assert ends == ["end"]


def test_of_many_that_end_at_a_time_one_is_the_last():
    names = range(100)
    countdown, ends = counted(*names)
    threads = [threading.Thread(target=countdown.count_down, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends == ["end"]
