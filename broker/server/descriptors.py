"""Descriptors: divides the process's file descriptors among the store's files and connections."""

from __future__ import annotations

import errno
import logging
import resource
import socket
from typing import Final, NamedTuple

from rmq_spark.errors import RocketPollError

_log = logging.getLogger(__name__)

RESOURCE_SHORTAGE_ERRNOS: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
)
"""The errors of a call that gets no descriptor, or no memory for one, for now."""
_RESERVED: Final = 100
"""Descriptors for standard streams, ports, locks, directory syncs, and libraries being loaded."""
_FILES_SHARE: Final = 4
"""Files get at least 1/4: the store opens and closes them as needed, but that takes time."""


_DESCRIPTORS_MIN: Final = 32
"""With fewer, a start may fail anywhere, or the broker could serve no client."""


class TooFewDescriptors(RocketPollError, page="troubleshooting.md#the-broker-and-its-store"):
    """The system allows fewer descriptors than a broker needs."""


class Descriptors(NamedTuple):
    """The numbers of files and connections that may be open at once."""

    open_files_max: int
    connections_max: int


def divide_descriptors(
    allowed: int, open_files_wanted: int, connections_wanted: int
) -> Descriptors:
    """Divide the allowed descriptors: as wanted if there are enough, at least one of each."""
    left = allowed - _RESERVED
    open_files_max = max(
        min(open_files_wanted, max(left // _FILES_SHARE, left - connections_wanted)), 1
    )
    return Descriptors(open_files_max, max(min(connections_wanted, left - open_files_max), 1))


def allow_descriptors(open_files_wanted: int, connections_wanted: int) -> Descriptors:
    """Raise the process's limit of descriptors as far as wanted and possible, and divide it.

    Log a warning if the system allows fewer than wanted.
    """
    wanted = open_files_wanted + connections_wanted + _RESERVED
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return Descriptors(open_files_wanted, connections_wanted)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if allowed < min(_DESCRIPTORS_MIN, wanted):
        raise TooFewDescriptors(
            f"the system allows {allowed} descriptors (ulimit -Hn), and a broker needs "
            f"{_DESCRIPTORS_MIN} "
            "at least, with a file and a client"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    given = divide_descriptors(allowed, open_files_wanted, connections_wanted)
    if allowed < wanted:
        _log.warning(
            "maxConnections is %d and maxOpenFiles %d: ulimit -Hn allows %d descriptors; %d "
            "connections and %d files need %d",
            given.connections_max,
            given.open_files_max,
            allowed,
            connections_wanted,
            open_files_wanted,
            wanted,
        )
    return given


def embedded_open_files_max(open_files_wanted: int) -> int:
    """Return how many files the store of a broker within another program may have open.

    The store gets at most a quarter of the program's soft limit, which is not raised: the rest is
    the program's own. Before the store opens more, it closes others.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return open_files_wanted
    return max(min(open_files_wanted, soft // _FILES_SHARE), 1)


def descriptor_shortage() -> OSError | None:
    """Return the error that prevents new connections now, or None if they are possible."""
    try:
        socket.socket().close()
    except OSError as error:
        if error.errno in RESOURCE_SHORTAGE_ERRNOS:
            return error
    return None
