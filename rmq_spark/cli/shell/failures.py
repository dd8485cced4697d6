"""Failures of commands: one line each with the problem and the remedy, and the exit codes.

    0 done   1 failed   2 wrong usage   10 a check found something unhealthy   130 interrupted

An action that its user does not confirm fails as well.

Errors of the client have the place and the reason; this module adds the remedy for a user of the
command line.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

import click

from rmq_spark.cli.shell.output import escape_unprintable
from rmq_spark.client.errors import (
    SQL_EXAMPLE,
    AccessDenied,
    AuthenticationFailed,
    BrokerNotFound,
    BrokerRefused,
    ClientError,
    ConnectionClosed,
    ConnectionFailed,
    GroupNotFound,
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
from rmq_spark.errors import RocketPollError, sanitize

FAILED: Final = 1
USAGE: Final = 2
UNHEALTHY: Final = 10
INTERRUPTED: Final = 130

_STDIN_CHARACTERS_MAX: Final = 10_000

_BROKERS_REMEDY: Final = "Run rocketpoll cluster health to see which brokers answer"
_KEYS_REMEDY: Final = (
    "Use keys that have the permission (--access-key, --profile), or change the topic's --perm"
)
_ACCESS_ERRORS: Final = (AuthenticationFailed, AccessDenied)
"""Errors about users and access lists whose texts contain a remedy."""

_REMARKS: Final = {
    "The subject of User:": "Create the user first: rocketpoll user create NAME",
    "The super user can only": "Use the keys of a super user",
    "authenticationEnabled=false": "",  # the remark says what to set
    "plain_acl.yml, which no request changes": "",
    "AclException": _KEYS_REMEDY,  # RocketMQ 4.9's access lists
    "filter message by": "Set enablePropertyFilter=true at the broker",
    "recall failed, operation is forbidden": "Set recallMessageEnable=true at the broker",
}
"""Remedies by words in the remark of an error whose code is unspecific."""

_FOREIGN_SERVER_ERRORS: Final = (ProtocolError, ConnectionClosed, RequestTimeout, TlsFailed)
"""Errors that occur if something other than a name server listens at the address."""

_REMEDIES: Final[tuple[tuple[type[RocketPollError], str], ...]] = (
    (NoNameServer, "Start one (rocketpoll broker), or give another address with --namesrv"),
    (TlsFailed, "The options are --tls, --tls-ca-file, --tls-cert-file and --tls-server-name"),
    (ConnectionFailed, _BROKERS_REMEDY),
    (ConnectionClosed, "Give the port of a name server, and --tls if it speaks TLS"),
    (
        RequestTimeout,
        (
            "The address accepts connections: check that a name server or a broker listens there, "
            "and is not stopped or overloaded. Give --tls if it speaks TLS"
        ),
    ),
    (ProtocolError, "Give the port of a name server, for example --namesrv localhost:9876"),
    (
        BrokerNotFound,
        "Start a broker that registers there, or list known brokers with rocketpoll cluster info",
    ),
    (GroupNotFound, "List all with rocketpoll group list"),
    (NoPermission, _KEYS_REMEDY),
    (NotSupported, "Run rocketpoll cluster info to see the brokers' versions"),
    (
        SubscriptionRejected,
        f"Correct --sql, for example --sql {SQL_EXAMPLE!r}, or --tags, for example --tags paid",
    ),
    (SystemBusy, "Try again later, or send more slowly"),
)


class Failure(click.ClickException):
    """A reason to stop: a problem, and the remedy as an imperative, if there is one."""

    exit_code = FAILED

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem}. {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy


def explain_error(error: RocketPollError) -> Failure:
    """Return an error of the client in the words of the command line, with the remedy."""
    problem = str(error)
    if isinstance(error, NoNameServer) and error.tries:
        problem = f"no name server answers: {'; '.join(map(_describe_try, error.tries))}"
    elif isinstance(error, ClientError):
        problem = _describe_try(error)
    remedy = (
        _BROKERS_REMEDY if isinstance(error, ConnectionClosed) else _remedy_of(_root_cause(error))
    )
    return Failure(" ".join(problem.split()).rstrip("."), remedy)


def describe_error(error: RocketPollError) -> str:
    """Return an error of the client on one line, with the remedy."""
    return explain_error(error).message


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
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, stream.fileno())
    os.close(devnull)


class OutageNotes:
    """A context that suppresses outages of brokers, so that an endless command tries again.

    It prints when an outage begins and when it is over, and pauses after each error.
    """

    def __init__(
        self, what: str, outages: tuple[type[ClientError], ...], pause_seconds: float
    ) -> None:
        self._what = what
        self._outages = outages
        self._pause_seconds = pause_seconds
        self._since: float | None = None

    def __enter__(self) -> None:
        """Begin one attempt."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """Suppress an outage; note its first error, or the recovery."""
        if error is None and self._since is not None:
            seconds = time.monotonic() - self._since
            print_error("rocketpoll", f"{self._what} recovered after {seconds:.0f} s")
            self._since = None
        if not isinstance(error, self._outages):
            return False
        if self._since is None:
            self._since = time.monotonic()
            print_error("rocketpoll", f"{self._what} failed, retrying: {describe_error(error)}")
        time.sleep(self._pause_seconds)
        return True


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
    """Return the most informative of the errors that an error contains."""
    if isinstance(error, SendFailed) and error.tries:
        return error.tries[-1]
    if isinstance(error, NoNameServer):
        return next(
            (each for each in error.tries if isinstance(each, _FOREIGN_SERVER_ERRORS)), error
        )
    return error


def _describe_try(error: ClientError) -> str:
    """Return an error's text, without its remedy for programs if this module has a better one."""
    if isinstance(error, _ACCESS_ERRORS):
        return BrokerRefused.__str__(error)
    if isinstance(error, SubscriptionRejected):
        return BrokerRefused.__str__(error)
    if isinstance(error, GroupNotFound):
        return f"there is no group {sanitize(error.group)}"
    if _is_tls_mismatch(error):
        return str(error).rpartition(". ")[0]
    if type(error) is ConnectionFailed:
        return f"cannot connect to {sanitize(error.address)}: {error.why}"
    return str(error)


def _is_tls_mismatch(error: RocketPollError) -> bool:
    return isinstance(error, TlsFailed) and error.why.endswith("off here")


def _remedy_of(error: RocketPollError) -> str:
    if isinstance(error, _ACCESS_ERRORS):
        return error.remedy
    if isinstance(error, NotSupported) and error.is_of_proxy:
        return ""  # the text has the remedy
    if isinstance(error, GroupNotFound) and error.near:
        return f"Did you mean {sanitize(error.near)}? List all with rocketpoll group list"
    if _is_tls_mismatch(error):
        return "Turn TLS on there, or give --no-tls"
    if isinstance(error, BrokerRefused):
        for words, remedy in _REMARKS.items():
            if words in (error.remark or ""):
                return remedy
    tries = error.tries if isinstance(error, NoNameServer) else ()
    if tries and all(isinstance(each.__cause__, socket.gaierror) for each in tries):
        return "Correct the host name in --namesrv, NAMESRV_ADDR or the profile"
    return next((remedy for kind, remedy in _REMEDIES if isinstance(error, kind)), "")


def confirm(action: str, *, yes: bool, show_details: Callable[[], None] | None = None) -> None:
    """Ask for confirmation of an action, such as ``delete orders``, after showing its details."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"this would {action}, and stdin is not a terminal to confirm on. Add --yes"
        )
    if show_details is not None:
        show_details()
        sys.stdout.flush()
    if not click.confirm(f"{action}?", err=True):
        raise Failure("nothing was changed")


def ask_secret(
    kind: str, owner: str, option: str, *, from_stdin: bool, is_confirmed: bool = False
) -> str:
    """Return a secret, such as a password, from the first line of stdin or from a prompt.

    Args:
        kind: The kind of secret, such as a password.
        owner: The owner of the secret.
        option: The option that reads it from stdin, and perhaps other ways to give it.
        from_stdin: Whether that option is set.
        is_confirmed: Whether the user has to type it twice, because it is new.
    """
    if from_stdin:
        found = sys.stdin.readline(_STDIN_CHARACTERS_MAX).rstrip("\r\n")
        if not found:
            raise click.UsageError(f"the first line of stdin is empty. Write the {kind} to it")
        return found
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"there is no {kind}, and stdin is not a terminal to ask on. Add {option}"
        )
    answer: str = click.prompt(
        f"{kind} of {owner}", hide_input=True, confirmation_prompt=is_confirmed, err=True
    )
    return answer


@contextmanager
def explain_port_errors(host: str, port: int) -> Iterator[None]:
    """Turn the error for a port that cannot be opened into a Failure with the remedy."""
    try:
        yield
    except OSError as error:
        remedy = "Choose another --port or --host"
        if isinstance(error, PermissionError):  # ports below 1024 are for root
            remedy = "Choose a --port from 1024 on"
        raise Failure(
            f"cannot listen on {host}:{port}: {error.strerror or error}", remedy
        ) from error
