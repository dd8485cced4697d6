"""Errors of the client as one line, with what to do."""

from __future__ import annotations

import logging

import pytest

from rmq_spark.cli.shell.failures import Failure, describe_error, print_error, show_client_warnings
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
        (NoNameServer([ConnectionFailed(AT, "refused")]), "or start one: rocketpoll broker"),
        (NoNameServer([ProtocolError(AT, "no frame")]), "as --namesrv localhost:9876"),
        (NoNameServer([ConnectionClosed(AT, "by the peer")]), "Does it speak TLS (--tls)?"),
        (ConnectionClosed(AT, "by the peer"), "cluster health shows which brokers answer"),
        (TlsFailed(AT, "unknown authority"), "leave --tls out if it speaks none"),
        (ConnectionFailed(AT, "refused"), "cluster health shows which brokers answer"),
        (RequestTimeout(AT, 10, 5), "Does it speak TLS (--tls)?"),
        (BrokerNotFound("b"), "see rocketpoll cluster info"),
        (NoPermission(16, "no", AT, 10), "take keys that may (--access-key, --profile)"),
        (BrokerRefused(1, "a.b.AclException: no", AT, 10), "take keys that may"),
        (SendFailed("T", [NoPermission(16, "no", AT, 10)]), "take keys that may"),
        (NotSupported(3, "no", AT, 10), "cluster info shows the brokers' versions"),
        (SubscriptionRejected(23, "no", AT, 10), "need enablePropertyFilter=true"),
        (SystemBusy(2, "busy", AT, 10), "try again later, or slower"),
    ],
)
def test_an_error_says_what_to_do(error, remedy):
    line = describe_error(error)
    assert line.startswith(str(error))
    assert remedy in line


def test_an_error_that_says_it_itself_is_left_alone():
    error = MessageRejected("topic", "a name", "a/b")
    assert describe_error(error) == str(error)


def test_a_complaint_is_one_line(capsys):
    print_error("rocketpoll topic", "one\n  two")
    assert capsys.readouterr() == ("", "rocketpoll topic: one two\n")
    assert Failure("").exit_code == 1


def test_warnings_are_shown_while_somebody_waits(capsys):
    log = logging.getLogger("rmq_spark.client")
    with show_client_warnings():
        log.warning("%s is away", "b:1")
    log.warning("unheard")
    assert capsys.readouterr().err == "rocketpoll: b:1 is away\n"
