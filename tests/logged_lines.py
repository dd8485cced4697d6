"""What rooms of the sources have logged, whatever others do meanwhile.

Threads of earlier tests and libraries log into the same records: a test that wants silence wants it
of a room.
"""

from __future__ import annotations

BROKER = ("rocketpoll.broker", "asyncio")
"""A whole broker, with what its loop complains of."""


def lines_of(caplog, *rooms):
    """The lines of loggers such as `rocketpoll.broker.store`, and of all below them.

    Without a room, those of a broker.
    """
    return [
        record.getMessage()
        for record in caplog.records
        if any(f"{record.name}.".startswith(f"{room}.") for room in rooms or BROKER)
    ]
