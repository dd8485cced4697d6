"""Lessons: how much of its time a client may have us spend on learning what its requests look like.

A lane learns the shape of a request in the time that some requests save which have a known shape.
These pay for it; a client that makes each request look like no other is soon left without lessons.
It knows neither requests nor shapes.
"""

from __future__ import annotations


class LearningBudget:
    """The account of one client."""

    __slots__ = ("_debt", "_debt_max", "_cost")

    def __init__(self, cost: int, count_max: int) -> None:
        """Take how many requests pay for a lesson, and how many lessons a client has credit for."""
        self._cost = cost
        self._debt_max = cost * count_max
        self._debt = 0

    def spend(self) -> bool:
        """Return whether one more lesson may be had, which then is owed."""
        if self._debt >= self._debt_max:
            return False
        self._debt += self._cost
        return True

    def earn(self, requests: int) -> None:
        """Note that requests had shapes that were known."""
        self._debt = max(self._debt - requests, 0)
