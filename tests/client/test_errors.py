"""Client errors name request, address and remedy, and can be pickled."""

import pickle
import re

import pytest

from rmq_spark.client import errors
from rmq_spark.client.errors import (
    BrokerNotFound,
    ClientError,
    ClientShutDown,
    ConnectionClosed,
    ConnectionFailed,
    MessageRejected,
    NoNameServer,
    OffsetMoved,
    PartlySent,
    ProtocolError,
    RequestTimeout,
    RouteNotFound,
    SendFailed,
    TooManyPending,
    refusal,
)
from rmq_spark.errors import RocketPollError

EXAMPLES = [
    ConnectionFailed("h:1", "refused"),
    errors.TlsFailed("h:1", "not trusted"),
    NoNameServer(),
    NoNameServer([ConnectionFailed("h:1", "refused"), RequestTimeout("g:2", 105, 30)]),
    ConnectionClosed("h:1", "gone"),
    RequestTimeout("h:1", 310, 3_000),
    ProtocolError("h:1", "garbage"),
    RouteNotFound("T"),
    BrokerNotFound("b"),
    errors.GroupNotFound("g", "group"),
    refusal(2, "busy", "h:1", 310),
    MessageRejected("body", "bytes", 5.0),
    SendFailed("T", [ConnectionFailed("h:1", "refused")]),
    OffsetMoved("T/b/0", 5, 7, 9, 7),
    errors.NotAssigned("T/b/0"),
    errors.OffsetOutOfRange("T/b/0", 9, 0, 5),
    errors.SubscriptionConflict(),
    errors.TlsRejected("ca_file", "not there"),
    errors.OffsetFileDamaged("/x", "no JSON"),
    errors.ManifestError("it is none", 2),
    errors.OffsetFileFailed("/x", "written", "No space left on device"),
    PartlySent("T", [ConnectionFailed("h:1", "refused")], [1, 2], 2),
    TooManyPending(5, 5_000),
    ClientShutDown(),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_client_error_survives_pickling(error):
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # the test's own data
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert set(vars(again)) == set(vars(error))


def test_error_tree_in_the_docstring_matches_the_classes():
    drawn = {}
    path = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"^([ │├└─]*)([A-Z]\w+)  ", line)
        if match:
            depth = (len(match[1]) - 4) // 4
            path[depth:] = [match[2]]
            drawn[match[2]] = path[depth - 1] if depth else "RocketPollError"
    real = {
        name: kind.__bases__[0].__name__
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, ClientError)
    }
    assert drawn == real
    assert issubclass(ClientError, RocketPollError)


def test_client_errors_name_request_address_and_remedy():
    assert (
        str(RequestTimeout("h:1", 310, 3_000))
        == "h:1 did not answer SEND_MESSAGE_V2 within 3000 ms"
    )
    assert (
        str(refusal(17, None, "h:1", 99_999))
        == "h:1 refused request 99999: TOPIC_NOT_EXIST: no reason"
    )
    assert str(refusal(9_999, "x", "h:1", 11)) == "h:1 refused PULL_MESSAGE: code 9999: x"
    assert "NAMESRV_ADDR" in str(NoNameServer())
    assert "check that a broker listens" in str(ConnectionFailed("h:1", "refused"))


def test_send_failed_error_lists_each_try():
    tries = [ConnectionFailed("h:1", "refused"), refusal(14, "full", "g:2", 310)]
    error = SendFailed("T", tries)
    assert error.tries == tuple(tries)
    assert str(error).startswith("sending to T failed 2 times: cannot connect to h:1: refused")
    assert str(SendFailed("T", tries[:1])).startswith("sending to T failed 1 time: ")
    assert str(PartlySent("T", tries[:1], (), 1)).startswith("1 message sent, then sending to ")


def test_too_many_pending_error_shows_counts():
    assert "responses: 1 with 7 bytes" in str(TooManyPending(1, 7))
    assert "queued: 1 " in str(TooManyPending(1, 7, 1))


def test_error_text_does_not_repeat_a_large_value():
    assert len(str(MessageRejected("body", "bytes", "x" * 10_000))) < 200
