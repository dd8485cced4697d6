"""Errors in a subscription's expression. Clients get SUBSCRIPTION_PARSE_FAILED."""

from __future__ import annotations

from rmq_spark.errors import RocketPollError, excerpt


class FilterError(RocketPollError, page="troubleshooting.md#refused-by-a-broker"):
    """An expression is invalid; the message says where, what was expected, and what was found.

    ``at`` is the number of the character, counted from 1, or None for the whole text.
    """

    def __init__(self, subject: str, *, at: int | None = None, needed: str, found: object) -> None:
        """Compose the message; ``found`` is cut short, because bad input may be kilobytes long."""
        self.subject = subject
        self.at = at
        self.needed = needed
        self.found = excerpt(found)
        position = "" if at is None else f" at character {at}"
        super().__init__(f"{subject}{position}: needed {needed}, found {self.found}")
