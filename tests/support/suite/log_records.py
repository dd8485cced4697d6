"""Log records of some modules of the product, whatever other threads log meanwhile.

Threads of earlier tests and libraries log concurrently. A test that expects no warnings names the
modules that must not log any.
"""

import threading

BROKER = ("rocketpoll.broker", "asyncio")
"""The loggers of a whole broker, including its event loop."""


_earlier_threads = set()


def note_earlier_threads():
    """Note the threads that run before a test, such as those of a broker that tests share."""
    _earlier_threads.clear()
    _earlier_threads.update(thread.ident for thread in threading.enumerate())
    _earlier_threads.discard(threading.get_ident())


def lines_of(caplog, *rooms):
    """Return the lines of loggers such as `rocketpoll.broker.store`, and of their children.

    Without a name, they are those of a broker that the test started: one that other tests share
    may meanwhile close their idle connections.
    """
    return [
        record.getMessage()
        for record in caplog.records
        if any(f"{record.name}.".startswith(f"{room}.") for room in rooms or BROKER)
        and (rooms or record.thread not in _earlier_threads)
    ]
