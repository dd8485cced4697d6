"""A client's learning budget for fast paths: its initial credit, and how requests earn more."""

from rocketpoll.broker.processor.fast_paths import LearningBudget


def test_lessons_are_on_credit_until_requests_have_paid_for_more():
    lessons = LearningBudget(cost=4, count_max=3)
    assert [lessons.spend() for _ in range(5)] == [True] * 3 + [False] * 2
    lessons.earn(1)
    assert [lessons.spend(), lessons.spend()] == [True, False]
    lessons.earn(4)
    assert [lessons.spend(), lessons.spend()] == [True, False]
    lessons.earn(1_000)  # nobody saves for later
    assert [lessons.spend() for _ in range(5)] == [True] * 3 + [False] * 2
