"""Client errors appear on the command line as one line with the remedy."""

import errno
import logging
import re
import socket

import pytest

from rmq_spark.cli.shell.failures import (
    Failure,
    describe_error,
    explain_port_errors,
    print_error,
    show_client_warnings,
)
from rmq_spark.client.errors import (
    BrokerNotFound,
    BrokerRefused,
    ConnectionClosed,
    ConnectionFailed,
    MessageRejected,
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

AT = "b:1"


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (NoNameServer([ConnectionFailed(AT, "refused")]), "Start one (rocketpoll broker)"),
        (NoNameServer([ProtocolError(AT, "no frame")]), "for example --namesrv localhost:9876"),
        (NoNameServer([ConnectionClosed(AT, "by the peer")]), "and --tls if it speaks TLS"),
        (ConnectionClosed(AT, "by the peer"), "Run rocketpoll cluster health to see which brokers"),
        (TlsFailed(AT, "unknown authority"), "The options are --tls, --tls-ca-file"),
        (ConnectionFailed(AT, "refused"), "Run rocketpoll cluster health to see which brokers"),
        (RequestTimeout(AT, 10, 5), "Give --tls if it speaks TLS"),
        (BrokerNotFound("b"), "or list known brokers with rocketpoll cluster info"),
        (
            NoPermission(16, "no", AT, 10),
            "Use keys that have the permission (--access-key, --profile)",
        ),
        (BrokerRefused(1, "a.b.AclException: no", AT, 10), "Use keys that have the permission"),
        (SendFailed("T", [NoPermission(16, "no", AT, 10)]), "Use keys that have the permission"),
        (NotSupported(3, "no", AT, 10), "Run rocketpoll cluster info to see the brokers' versions"),
        (SubscriptionRejected(23, "no", AT, 10), "Correct --sql, for example --sql 'total > 5'"),
        (BrokerRefused(1, "filter message by SQL92", AT, 10), "Set enablePropertyFilter=true"),
        (SystemBusy(2, "busy", AT, 10), "Try again later, or send more slowly"),
    ],
)
def test_error_line_ends_with_a_remedy(error, remedy):
    line = describe_error(error)
    # without the advice to programmers
    problem = re.split(r"\. (?:Check that|Write for example)", str(error))[0]
    assert line.startswith(problem.removesuffix("; check that a broker listens there"))
    assert remedy in line


def test_tls_towards_a_server_without_it_has_one_remedy():
    failed = TlsFailed(AT, "it closed the connection. Turn TLS on there, or off here")
    said = describe_error(NoNameServer([failed]))
    assert said.endswith("failed: it closed the connection. Turn TLS on there, or give --no-tls")


def test_unknown_host_error_advises_to_correct_the_name_server():
    failed = ConnectionFailed("no-such-host:1", "Name or service not known")
    failed.__cause__ = socket.gaierror()
    assert describe_error(NoNameServer([failed])) == (
        "no name server answers: cannot connect to no-such-host:1: Name or service not known. "
        "Correct the host name in --namesrv, NAMESRV_ADDR or the profile"
    )


def test_error_with_its_own_remedy_is_printed_unchanged():
    error = MessageRejected("topic", "a name", "a/b")
    assert describe_error(error) == str(error)


def test_print_error_prints_one_line(capsys):
    print_error("rocketpoll topic", "one\n  two")
    assert capsys.readouterr() == ("", "rocketpoll topic: one two\n")
    assert Failure("").exit_code == 1


def test_client_warnings_are_shown_within_show_client_warnings(capsys):
    log = logging.getLogger("rmq_spark.client")
    with show_client_warnings():
        log.warning("%s is away", "b:1")
    log.warning("unheard")
    assert capsys.readouterr().err == "rocketpoll: b:1 is away\n"


def test_privileged_port_error_names_the_unprivileged_range():
    with (
        pytest.raises(Failure, match="Choose a --port from 1024 on"),
        explain_port_errors("127.0.0.1", 80),
    ):
        raise PermissionError(errno.EACCES, "Permission denied")
