"""Log records of some modules of the product, whatever other threads log meanwhile.

Threads of earlier tests and libraries log concurrently. A test that expects no warnings names the
modules that must not log any.
"""

from __future__ import annotations

import threading

BROKER = ("rocketpoll.broker", "asyncio")
"""The loggers of a whole broker, including its event loop."""


def lines_of(caplog, *rooms):
    """Return the lines of loggers such as `rocketpoll.broker.store`, and of their children.

    Without a name, they are those of a broker.
    """
    return _lines(caplog.records, rooms)


def lines_of_this_thread(caplog, *rooms):
    """Return the lines that were logged in the test's thread, where the story's broker has run.

    A broker that other tests share may meanwhile close their idle connections.
    """
    own = [record for record in caplog.records if record.thread == threading.get_ident()]
    return _lines(own, rooms)


def _lines(records, rooms):
    return [
        record.getMessage()
        for record in records
        if any(f"{record.name}.".startswith(f"{room}.") for room in rooms or BROKER)
    ]
