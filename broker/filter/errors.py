"""What can be wrong with a subscription's expression. To clients it is SUBSCRIPTION_PARSE_FAILED."""

from __future__ import annotations

from rmq_spark.errors import RocketPollError, excerpt


class FilterError(RocketPollError):
    """Says where in the text it went wrong, what was needed there and what was there.

    ``at`` is the character, counted from 1; None where the text as a whole is wrong.
    """

    def __init__(self, subject: str, *, at: int | None = None, needed: str, found: object) -> None:
        """``found`` is shown cut short: an error never repeats kilobytes of bad input."""
        self.subject = subject
        self.at = at
        self.needed = needed
        self.found = excerpt(found)
        place = "" if at is None else f" at character {at}"
        super().__init__(f"{subject}{place}: needed {needed}, found {self.found}")
