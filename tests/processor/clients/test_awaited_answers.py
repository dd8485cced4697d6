"""Requests that wait for other clients' replies; counters are compared with plain sums."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers.connections import FakeConnection

from rmq_spark.errors import HeaderError
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.processor.clients.pending_replies import (
    CLIENT_SHARE,
    REQUEST_BYTES,
    PendingReplies,
)
from rocketpoll.broker.processor.request import RequestRejected

ALL = 80 * REQUEST_BYTES
OWN = ALL // CLIENT_SHARE


@given(
    st.lists(st.tuples(st.integers(0, 11), st.booleans(), st.integers(0, 2 * OWN)), max_size=200)
)
def test_pending_reply_limits_hold_per_asker_and_in_total(moves):
    awaited, asked = PendingReplies(ALL), FakeConnection()
    askers = [FakeConnection() for _ in range(12)]
    sizes, refused = {}, 0
    for number, is_answered, kept in moves:
        if is_answered and asked.asked:
            command, _, then = asked.asked.pop(number % len(asked.asked))
            then(None)
            assert sizes.pop(command.opaque)
        else:
            own = Counter(asker for asker, _ in sizes.values())[number]
            own_bytes = sum(size for asker, size in sizes.values() if asker == number)
            size, taken = kept + REQUEST_BYTES, sum(size for _, size in sizes.values())
            fits = (not own or own_bytes + size <= OWN) and (not taken or taken + size <= ALL)
            opaque = len(sizes) + sum(sizes, start=refused) + 1
            question = RemotingCommand(1, opaque=opaque)
            try:
                awaited.request(
                    askers[number], asked, question, 10, lambda _: None, kept_bytes=kept
                )
            except RequestRejected as error:
                assert error.code is ResponseCode.SYSTEM_BUSY
                assert not fits
                refused += 1
            else:
                assert fits
                sizes[opaque] = number, size
        assert awaited.bytes == sum(size for _, size in sizes.values())


def test_request_that_cannot_be_encoded_does_not_wait():
    awaited, asked = PendingReplies(), FakeConnection()

    def cannot(*_):
        raise HeaderError("header", at="its end", needed="less", found="more")

    asked.request = cannot
    with pytest.raises(HeaderError):
        awaited.request(FakeConnection(), asked, RemotingCommand(1), 10, lambda _: None)
    assert awaited.bytes == 0
