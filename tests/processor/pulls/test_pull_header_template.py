"""Pull headers are read by shape only when the codec would give the same values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clients.remoting_clients import pull_request

from rmq_spark.wire.codes import SerializeType
from rmq_spark.wire.remoting.command import decode_command
from rmq_spark.wire.remoting.framing import Frame, FrameReader
from rocketpoll.broker.processor.pulls.fast_pull import build_template, header_prefix

USUAL = pull_request(17, suspend_ms=15_000, commit_offset=5, opaque=7)
ORDERS = ("queueOffset", "commitOffset"), ("commitOffset", "queueOffset")


def header_of(request):
    reader = FrameReader()
    reader.feed(request.encode())
    return bytes(reader.next_frame().header)


def in_order(request, names):
    """Return the request with these fields last, in this order."""
    fields = dict(request.ext_fields)
    last = {name: fields.pop(name) for name in names}
    return request._replace(ext_fields={**fields, **last})


def shape_of_request(request):
    return build_template(header_of(request), request)


SHAPE = shape_of_request(USUAL)


def cut(shape, header):
    """Return the values that a fast path reads from a header whose beginning it knows."""
    known = tuple(
        piece[: -len(mark)] for piece, mark in zip(shape.pieces, shape.marks, strict=False)
    )
    return shape.match(header) if header_prefix(header, shape.marks) == known else None


def test_pull_header_shape_is_cut_at_both_offsets_and_the_opaque():
    assert cut(SHAPE, header_of(USUAL)) == (17, 5, 7)
    others = pull_request(0, suspend_ms=15_000, commit_offset=123_456, opaque=0)
    assert shape_of_request(others) == SHAPE
    assert shape_of_request(pull_request(17, queue_id=1, suspend_ms=15_000)) != SHAPE


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_pull_header_numbers_may_come_in_any_order(order):
    request = in_order(USUAL, order)
    shape = shape_of_request(request)
    assert cut(shape, header_of(request)) == (17, 5, 7)
    assert shape.marks == tuple(f'"{name}":"'.encode() for name in order)
    assert all(map(bytes.endswith, shape.pieces, shape.marks))
    header = header_of(USUAL)
    in_front = b'{"opaque":7,' + header[1:].replace(b'"opaque":7,', b"")
    shape = build_template(in_front, USUAL)
    assert cut(shape, in_front) == (17, 5, 7)
    assert shape.marks[0] == b'"opaque":'


@given(*[st.integers(0, (1 << 63) - 1)] * 2, st.integers(0, (1 << 31) - 1), st.sampled_from(ORDERS))
def test_pull_header_fast_path_reads_like_the_codec(queue_offset, commit_offset, opaque, order):
    shape = shape_of_request(in_order(USUAL, order))
    request = pull_request(
        queue_offset, suspend_ms=15_000, commit_offset=commit_offset, opaque=opaque
    )
    found = cut(shape, header_of(in_order(request, order)))
    if max(queue_offset, commit_offset) < 10**18:
        assert found == (queue_offset, commit_offset, opaque)
    else:
        assert found is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"queueOffset":"17"', b'"queueOffset":"-1"'),
        (b'"queueOffset":"17"', b'"queueOffset":""'),
        (b'"queueOffset":"17"', b'"queueOffset":17'),
        (b'"queueOffset":"17"', b'"queueOffset":"17","queueOffset":"18"'),
        (b'"commitOffset":"5"', b'"commitOffset":"5 "'),
        (b'"commitOffset":"5"', b'"commitOffset":"\xd9\xa5"'),
        (b'"opaque":7', b'"opaque":07'),
        (b'"opaque":7', b'"opaque":-7'),
        (b'"opaque":7', b'"opaque":2147483648'),
        (b'"opaque":7', b'"opaque":7,"opaque":8'),
        (b'"flag":0', b'"flag":2'),
        (b'"topic":"T"', b'"topic":"U"'),
        (b'"queueId":"0"', b'"queueId":"1"'),
        (b"409}", b"409} "),
    ],
    ids=lambda each: each.decode("utf-8", "replace"),
)
def test_unusual_pull_header_is_left_to_the_codec(old, new):
    header = header_of(USUAL)
    assert old in header
    assert cut(SHAPE, header.replace(old, new)) is None


@pytest.mark.parametrize(
    "change",
    [
        (b'"topic":"T"', b'"topic":"T","queueOffset":"17"'),
        (b'"topic":"T"', b'"topic":"T","commitOffset":"6"'),
        (b'"flag":0', b'"flag":0,"opaque":7'),
        (b'"topic":"T"', rb'"topic":"T","x\"queueOffset":"17"'),
        (b'"opaque":7', b'"opaque": 7'),
    ],
    ids=lambda change: change[1].decode(),
)
def test_pull_header_template_is_not_made_from_an_ambiguous_header(change):
    header = header_of(USUAL).replace(*change)
    request = decode_command(Frame(0, memoryview(header), memoryview(b"")))
    shape = build_template(header, request)
    if shape is not None:  # both have the same fields at another position
        fields = request.ext_fields
        offsets = int(fields["queueOffset"]), int(fields["commitOffset"])
        assert cut(shape, header) == (*offsets, request.opaque)
        for name in (b'"queueOffset":"', b'"commitOffset":"', b'"opaque":'):
            other = header.replace(name, name + b"1")
            command = decode_command(Frame(0, memoryview(other), memoryview(b"")))
            fields = command.ext_fields
            expected = int(fields["queueOffset"]), int(fields["commitOffset"]), command.opaque
            assert cut(shape, other) in (None, expected)


def test_pull_header_shape_is_for_bounded_json_only():
    binary = USUAL._replace(serialize_type=SerializeType.ROCKETMQ)
    assert shape_of_request(binary) is None
    long = pull_request(17, subscription="t" * 2_048)
    assert shape_of_request(long) is None
    missing = {name: text for name, text in USUAL.ext_fields.items() if name != "commitOffset"}
    assert shape_of_request(USUAL._replace(ext_fields=missing)) is None
