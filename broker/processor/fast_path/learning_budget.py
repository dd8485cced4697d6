"""Lessons: how much of its time a client may have us spend on learning what its requests look like.

A lane learns the shape of a request in the time that some requests save which have a known shape.
These pay for it; a client that makes each request look like no other is soon left without lessons.
It knows neither requests nor shapes.
"""

from __future__ import annotations


class Lessons:
    """The account of one client."""

    __slots__ = ("_debt", "_debt_max", "_price")

    def __init__(self, price: int, count_max: int) -> None:
        """Take how many requests pay for a lesson, and how many lessons a client has credit for."""
        self._price = price
        self._debt_max = price * count_max
        self._debt = 0

    def take(self) -> bool:
        """Return whether one more lesson may be had, which then is owed."""
        if self._debt >= self._debt_max:
            return False
        self._debt += self._price
        return True

    def pay(self, requests: int) -> None:
        """Note that requests had shapes that were known."""
        self._debt = max(self._debt - requests, 0)
