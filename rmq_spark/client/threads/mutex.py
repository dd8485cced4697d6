"""Mutexes that a signal's exception leaves free, whenever it comes.

A handler may raise in any thread that polls or sends, as Ctrl-C does. From Python 3.14 on, Python
lets it in between the moment at which ``with`` has taken a lock and that from which on it would let
go of it: the lock is then held for ever. So there, taking one is a method of its own, which lets
go.

Use a mutex in ``with``. Of a Condition use the mutex that it was made of: its own ``with`` lets
signals in where it begins to let go. No mutex is let go of by another thread than its own.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

if sys.version_info < (3, 14):

    def mutex() -> threading.Lock:
        """Return a new mutex."""
        return threading.Lock()

    def reentrant_mutex() -> threading.RLock:
        """Return a new mutex that its thread may take again."""
        return threading.RLock()

else:
    _of_this_python = threading.RLock

    class _Mutex(type(threading.RLock())):
        """One of the threads' own: gevent has others."""

        def __enter__(self) -> bool:
            try:
                return self.acquire()
            except BaseException:
                if self._is_owned():  # it had been taken when the signal came
                    self.release()
                raise

    def mutex() -> Any:
        """Return a new mutex."""
        return reentrant_mutex()

    def reentrant_mutex() -> Any:
        """Return a new mutex that its thread may take again."""
        if threading.RLock is _of_this_python:
            return _Mutex()
        return threading.RLock()  # the threads are simulated
