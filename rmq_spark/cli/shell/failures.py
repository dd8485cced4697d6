"""Failures of commands: one line each with the problem and the remedy, and the exit codes.

    0 done   1 failed   2 wrong usage   10 looked, and found something unhealthy   130 interrupted

Errors of the client have the place and the reason; the remedy for a user of the command line is
added here.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

import click

from rmq_spark.cli.shell.output import escape_unprintable
from rmq_spark.client.errors import (
    BrokerNotFound,
    BrokerRefused,
    ConnectionClosed,
    ConnectionFailed,
    NoNameServer,
    NoPermission,
    NotSupported,
    ProtocolError,
    RequestTimeout,
    SendFailed,
    SubscriptionRejected,
    SystemBusy,
    TlsFailed,
)
from rmq_spark.errors import RocketPollError

FAILED: Final = 1
USAGE: Final = 2
UNHEALTHY: Final = 10
INTERRUPTED: Final = 130

_BROKERS_REMEDY: Final = "rocketpoll cluster health shows which brokers answer"
_KEYS_REMEDY: Final = "take keys that may (--access-key, --profile), or change the topic's --perm"
_ACL_EXCEPTION: Final = "AclException"
"""A word in what RocketMQ 4.9 says where its access list forbids something; the code is 1."""

_FOREIGN_SERVER_ERRORS: Final = (ProtocolError, ConnectionClosed, RequestTimeout, TlsFailed)
"""Errors of a name server's address at which something else listens."""

_REMEDIES: Final[tuple[tuple[type[RocketPollError], str], ...]] = (
    (NoNameServer, "name another by --namesrv, or start one: rocketpoll broker"),
    (TlsFailed, "--tls-ca-file names the authority to trust; leave --tls out if it speaks none"),
    (ConnectionFailed, _BROKERS_REMEDY),
    (ConnectionClosed, "is it the port of a name server? Does it speak TLS (--tls)?"),
    (RequestTimeout, "is it the port of a name server or broker? Does it speak TLS (--tls)?"),
    (ProtocolError, "give the port of a name server, as --namesrv localhost:9876"),
    (BrokerNotFound, "start one that registers there, or see rocketpoll cluster info"),
    (NoPermission, _KEYS_REMEDY),
    (NotSupported, "rocketpoll cluster info shows the brokers' versions"),
    (SubscriptionRejected, "conditions in SQL92 need enablePropertyFilter=true at the broker"),
    (SystemBusy, "try again later, or slower"),
)


class Failure(click.ClickException):
    """A reason to stop, worded for the user."""

    exit_code = FAILED


def describe_error(error: RocketPollError) -> str:
    """Return an error of the client on one line, with the remedy."""
    text = " ".join(str(error).split())
    remedy = (
        _BROKERS_REMEDY if isinstance(error, ConnectionClosed) else _remedy_of(_root_cause(error))
    )
    return f"{text}; {remedy}" if remedy else text


def print_error(program: str, message: str) -> None:
    """Write one line to stderr, in the name of a command; ignore a full or closed stderr."""
    sys.stdout.flush()
    try:
        sys.stderr.write(f"{program}: {escape_unprintable(' '.join(message.split()))}\n")
        sys.stderr.flush()
    except OSError:
        redirect_to_devnull(sys.stderr)


def redirect_to_devnull(stream: TextIO) -> None:
    """Discard all further output, so that Python exits without an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@contextmanager
def show_client_warnings() -> Iterator[None]:
    """Show the client's warnings on stderr while a command runs, such as outages."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_EscapingFormatter("rocketpoll: %(message)s"))
    handler.setLevel(logging.WARNING)
    log = logging.getLogger("rmq_spark")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _EscapingFormatter(logging.Formatter):
    """A formatter that escapes control characters, because names and ids come from others."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        return escape_unprintable(super().formatMessage(record))


def _root_cause(error: RocketPollError) -> RocketPollError:
    """Return the most informative error of those that one contains."""
    if isinstance(error, SendFailed) and error.tries:
        return error.tries[-1]
    if isinstance(error, NoNameServer):
        return next(
            (each for each in error.tries if isinstance(each, _FOREIGN_SERVER_ERRORS)), error
        )
    return error


def _remedy_of(error: RocketPollError) -> str | None:
    if isinstance(error, BrokerRefused) and _ACL_EXCEPTION in (error.remark or ""):
        return _KEYS_REMEDY
    return next((remedy for kind, remedy in _REMEDIES if isinstance(error, kind)), None)
