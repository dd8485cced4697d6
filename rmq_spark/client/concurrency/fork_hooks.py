"""ForkAware: makes objects with threads, locks or connections harmless in a forked child.

A fork copies objects, held locks and open sockets, but of all threads only the one that forks. So
in the child each such object is called once, before anything can use it. It drops what belongs to
the parent, sends nothing, and acquires no lock that existed before the fork. None of these objects
can be pickled.
"""

from __future__ import annotations

import itertools
import os
import weakref
from typing import NoReturn


class ForkAware:
    """An object that loses its threads and connections in a forked child."""

    _public_name: str | None = None
    """The name of the object that users see, if that is another one."""

    def __init__(self) -> None:
        _instances[next(_keys)] = self

    def _after_fork(self) -> None:
        """Let go of what is the parent's: this process is a child now, and has one thread."""
        raise NotImplementedError

    def __reduce__(self) -> NoReturn:
        name = self._public_name or type(self).__name__
        raise TypeError(
            f"a {name} has threads and connections, and cannot be sent to another process: make "
            "one there"
        )


_keys = itertools.count()
_instances: weakref.WeakValueDictionary[int, ForkAware] = weakref.WeakValueDictionary()


def _notify_all() -> None:
    failure: Exception | None = None
    for bound in list(_instances.values()):
        try:
            bound._after_fork()  # its subclasses' alone, and no method for users
        except Exception as error:  # noqa: BLE001, PERF203  # the others have to be told as well
            failure = failure or error
    if failure is not None:
        raise failure  # Python prints it


os.register_at_fork(after_in_child=_notify_all)
