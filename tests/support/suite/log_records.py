"""Log records of some modules of the product, whatever other threads log meanwhile.

Threads of earlier tests and libraries log into the same records. A test that expects no
warnings expects none of the modules that it names.
"""

from __future__ import annotations

import threading

BROKER = ("rocketpoll.broker", "asyncio")
"""A whole broker, with what its loop complains of."""


def lines_of(caplog, *rooms):
    """The lines of loggers such as `rocketpoll.broker.store`, and of all below them.

    Without a room, those of a broker.
    """
    return _lines(caplog.records, rooms)


def lines_of_this_thread(caplog, *rooms):
    """The same of what was logged in the thread of the test, where the story's broker has run.

    A broker that other tests share closes their connections when these have been idle.
    """
    own = [record for record in caplog.records if record.thread == threading.get_ident()]
    return _lines(own, rooms)


def _lines(records, rooms):
    return [
        record.getMessage()
        for record in records
        if any(f"{record.name}.".startswith(f"{room}.") for room in rooms or BROKER)
    ]
