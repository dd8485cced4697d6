"""What a real world can be held to: not to time, as the machine may be busy, but to all else.

It takes the place of `world.watch`, and answers the same questions.
"""

from __future__ import annotations

SLACK_SECONDS = 3.0
"""What a broker does every few hundred milliseconds is done after that."""


class Watch:
    """Looks at what is refused, and knows how lives have ended."""

    slack_seconds = SLACK_SECONDS
    may_refuse_a_save = False
    """Whether what a broker knows may stay unsaved as it stops: no call fails then."""

    def __init__(self, time, complain, *, may_expire):
        """``may_expire``: the disk may be so full that the oldest messages go."""
        self.may_expire = may_expire
        self._time = time
        self._complain = complain
        self._crashed_at = -1.0
        self._trouble_since = None
        self.last_refusal = ""

    def life_began(self, *, is_in_trouble):
        """``is_in_trouble``: calls of this life fail or are slow,
        and nothing need be saved in time."""
        self._trouble_since = self._time.now if is_in_trouble else None

    def life_ended(self, kind):
        if kind != "stop":
            self._crashed_at = self._time.now

    def crashed_since(self, time):
        return self._crashed_at >= time

    def delays_pass_since(self, time):
        return True

    def was_flushed_since(self, time):
        return False

    def calm_since(self):
        return self._time.now if self._trouble_since is None else self._trouble_since

    def is_calm_since(self, time):
        return self._trouble_since is None

    def check_patience(self, connection, asked_at, what):
        pass

    def check_refusal(self, answer, what):
        self.last_refusal = f"{what}: {answer.code} {answer.remark}"
        if "internal error" in (answer.remark or ""):
            self._complain(self.last_refusal)

    def check_lateness(self, sent, delivered_at, where):
        pass

    def check_wakefulness(self, asked, asked_at, suspend_seconds, told):
        pass
