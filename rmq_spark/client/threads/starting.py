"""Starting a thread while signals may come.

Python waits there for the thread to begin. An error that a signal's handler raises in that wait can
come out as a RuntimeError of Python's own lock, which is also what a limit of threads is told by.

At the very end of a program, when ``__del__`` of what is left is called, no other thread runs any
more: Python 3.11 and older would wait for ever.
"""

from __future__ import annotations

import sys
import threading

from rmq_spark.client.errors import ThreadNotStarted


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; what a signal's handler raises meanwhile is raised as it is.

    Raises:
        ThreadNotStarted: There are as many threads as there may be, or Python ends.
    """
    before = sys.exc_info()[1]
    if sys.is_finalizing():
        raise ThreadNotStarted("can't start new thread at interpreter shutdown")
    try:
        thread.start()
    except RuntimeError as error:
        raised = error.__context__
        if raised is None or raised is before:
            raise ThreadNotStarted(str(error)) from error
        raise raised from None
