"""Lines that processes of the tests say, waited for so long and no longer."""

from __future__ import annotations

import selectors


def line_within(stream, seconds):
    """The next line, empty at the end; None if nothing is said in time.

    Lines come one by one, each when the one before has been read: none waits within the stream.
    """
    with selectors.DefaultSelector() as said:
        said.register(stream, selectors.EVENT_READ)
        return stream.readline() if said.select(seconds) else None
