"""How many descriptors this process may have, and how the store's files and connections share them.

Each file that is open and each connection takes one. It opens nothing, and knows neither.
"""

from __future__ import annotations

import errno
import logging
import resource
import socket
from typing import Final, NamedTuple

_log = logging.getLogger(__name__)

LACKS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What a call says that needs a descriptor and gets none, for a while."""
_OTHERS: Final = 100
"""Standard streams, ports, locks, directories while they are synced, libraries while they are loaded."""
_FILES_SHARE: Final = 4
"""Files get a quarter at least: the store opens and closes them as it needs to, but that takes time."""


class Descriptors(NamedTuple):
    """What may be open at once."""

    open_files_max: int
    connections_max: int


def shared(allowed: int, open_files_wanted: int, connections_wanted: int) -> Descriptors:
    """Divide what a process is allowed: as wanted if there is enough, one of each at least."""
    left = allowed - _OTHERS
    open_files_max = max(min(open_files_wanted, max(left // _FILES_SHARE, left - connections_wanted)), 1)
    return Descriptors(open_files_max, max(min(connections_wanted, left - open_files_max), 1))


def allow_descriptors(open_files_wanted: int, connections_wanted: int) -> Descriptors:
    """Let this process have as many as are wanted, or as the system lets it; say so if these are fewer."""
    wanted = open_files_wanted + connections_wanted + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return Descriptors(open_files_wanted, connections_wanted)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    given = shared(allowed, open_files_wanted, connections_wanted)
    if allowed < wanted:
        _log.warning(
            "maxConnections is %d and maxOpenFiles %d, as the system allows %d descriptors (ulimit -Hn); "
            "%d connections and %d files would need %d",
            given.connections_max,
            given.open_files_max,
            allowed,
            connections_wanted,
            open_files_wanted,
            wanted,
        )
    return given


def lack() -> OSError | None:
    """Why no connection could be let in now; None if one could."""
    try:
        socket.socket().close()
    except OSError as error:
        if error.errno in LACKS:
            return error
    return None
