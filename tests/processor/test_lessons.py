"""A client has credit for so many lessons, and its requests pay for more."""

from rocketpoll.broker.processor.fast_path.learning_budget import Lessons


def test_lessons_are_on_credit_until_requests_have_paid_for_more():
    lessons = Lessons(price=4, count_max=3)
    assert [lessons.take() for _ in range(5)] == [True] * 3 + [False] * 2
    lessons.pay(1)
    assert [lessons.take(), lessons.take()] == [True, False]
    lessons.pay(4)
    assert [lessons.take(), lessons.take()] == [True, False]
    lessons.pay(1_000)  # nobody saves for later
    assert [lessons.take() for _ in range(5)] == [True] * 3 + [False] * 2
