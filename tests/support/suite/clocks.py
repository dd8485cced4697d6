"""A clock that a test moves."""


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self, now=1_000.0):
        self.now = now

    def __call__(self):
        return self.now
