"""A client's learning budget for fast paths: its initial credit, and how requests earn more."""

from rocketpoll.broker.processor.fast_paths import LearningBudget


def test_learning_is_on_credit_until_requests_have_paid_for_more():
    budget = LearningBudget(cost=4, count_max=3)
    assert [budget.spend() for _ in range(5)] == [True] * 3 + [False] * 2
    budget.repay(1)
    assert [budget.spend(), budget.spend()] == [True, False]
    budget.repay(4)
    assert [budget.spend(), budget.spend()] == [True, False]
    budget.repay(1_000)  # the budget does not grow past its start
    assert [budget.spend() for _ in range(5)] == [True] * 3 + [False] * 2
