"""What a real world can be held to: not to time, as the machine may be busy, but to all else.

It takes the place of `world.watch`, and answers the same questions.
"""

SLACK_SECONDS = 3.0
"""Periodic work of a broker, every few hundred milliseconds, is done after this time."""

_GO_SECONDS = 30.0
_LOOK_SECONDS = 0.01


class Watch:
    """Checks refusals, and knows how lives have ended."""

    slack_seconds = SLACK_SECONDS
    may_refuse_a_save = False
    """True if a stop may leave tables unsaved: no call fails then."""
    can_wipe = False
    """True if a full disk lets used pages be overwritten: other calls fail, too."""

    def __init__(self, time, complain, log_min_offset, is_alive, *, may_expire):
        """Store the sources of facts. ``may_expire``: the disk may be so full that the oldest
        messages are deleted; ``log_min_offset`` returns the first offset of the log, and
        ``is_alive`` whether a broker process runs that may change it."""
        self.may_expire = may_expire
        self.may_lose_content = may_expire
        """Whether content of the log or the index may be unreadable, because calls have failed."""
        self._time = time
        self._complain = complain
        self._log_min_offset = log_min_offset
        self._is_alive = is_alive
        self._began_at = 0.0
        self._crashed_at = -1.0
        self._trouble_since = None
        self.last_refusal = ""

    def life_began(self, *, is_in_trouble):
        """Begin a life. ``is_in_trouble``: calls of this life fail or are slow, so that saves may
        be late."""
        self._began_at = self._time.now
        self.may_lose_content |= is_in_trouble
        self._trouble_since = self._time.now if is_in_trouble else None

    def life_ends(self):
        """Stop recording saves; the end of a life may take long."""
        if self._trouble_since is None:
            self._trouble_since = self._time.now

    def life_ended(self, kind):
        if kind != "stop":
            self._crashed_at = self._time.now

    def is_gone_from_log(self, place):
        """Return whether the log begins past a position, or its broker has died.

        A file of it is no longer read a moment before it is gone. That is as long as the machine
        makes it; and a broker that dies in between leaves the file to the next one, which serves
        it.
        """
        until = self._time.now + _GO_SECONDS
        while place >= self._log_min_offset():
            if not self._is_alive():
                return True
            if self._time.now > until:
                return False
            self._time.sleep(_LOOK_SECONDS)
        return True

    def crashed_since(self, time):
        return self._crashed_at >= time

    def is_undisturbed_since(self, time):
        """Return whether this life was running at a time, and no call has failed or been slow
        since."""
        return self._trouble_since is None and self._began_at <= time

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
