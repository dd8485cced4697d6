"""Log records of given modules, without those of threads of earlier tests and libraries.

A test that expects no warnings names the modules that must not log any.
"""

import threading

BROKER = ("rocketpoll.broker", "asyncio")
"""The loggers of a whole broker, including its event loop."""


_earlier_threads = set()


def note_earlier_threads():
    """Record the threads that run before a test, such as those of a shared broker."""
    _earlier_threads.clear()
    _earlier_threads.update(thread.ident for thread in threading.enumerate())
    _earlier_threads.discard(threading.get_ident())


def lines_of(caplog, *rooms):
    """Return the log lines of loggers such as `rocketpoll.broker.store`, and of their children.

    Without a name, return those of a broker that the test started: a shared broker may close idle
    connections meanwhile.
    """
    return [
        record.getMessage()
        for record in caplog.records
        if any(f"{record.name}.".startswith(f"{room}.") for room in rooms or BROKER)
        and (rooms or record.thread not in _earlier_threads)
    ]
