import threading

from rmq_spark.client.threads import turns


def test_what_is_put_off_is_called_at_the_end_of_the_turn_in_its_order():
    called = []
    turns.begin()
    assert turns.put_off(lambda: called.append(1))
    assert turns.put_off(lambda: called.append(2))
    assert called == []
    turns.end()
    assert called == [1, 2]
    turns.begin()
    turns.end()
    assert called == [1, 2]


def test_outside_of_a_turn_and_at_its_end_nothing_is_put_off():
    said = [turns.put_off(lambda: None)]
    turns.begin()
    turns.put_off(lambda: said.append(turns.put_off(lambda: None)))
    turns.end()
    assert said == [False, False]


def test_a_turn_is_of_its_thread_alone():
    said = []
    turns.begin()
    other = threading.Thread(target=lambda: said.append(turns.put_off(lambda: None)))
    other.start()
    other.join(10)
    turns.end()
    assert said == [False]
